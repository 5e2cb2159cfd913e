"""Searches in sorted tables: a bisection whose steps are lookups and selections of one kernel.

    first = 0; last = n
    repeat floor(log2 n) + 1 times:
        middle = first + (last - first) / 2
        if first < last: (first = middle + 1) if table[middle] < x else (last = middle)

The number of steps depends on the table's size alone, so that all elements of a vector take them
together. It probes what ``at::native::cus_lower_bound`` does, in its order, and compares as that
does (``not (table >= x)``): tables with NaN, or not sorted at all, give what they give in torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import ExternOp, tensor
from irc.dialects.indexing import GatherOp, TakeOp
from irc.kernels.holds import LIBRARY_DTYPES, shape_of

SEARCHES = frozenset(
    {
        "aten::searchsorted.Tensor",
        "aten::searchsorted.Scalar",
        "aten::bucketize.Tensor",
        "aten::bucketize.Scalar",
    }
)
"""Library calls that search."""


@dataclass(frozen=True)
class Search:
    """What a call searches.

    Attributes:
        table: [n], or [.., n] with the other dims of ``values``; each row sorted.
        values: what is searched for.
        right: the last suitable place, not the first one.
    """

    table: SSAValue
    values: SSAValue
    right: bool


def searched(b: FlowBuilder, op: ExternOp) -> SSAValue | None:
    """Append what a search computes; None where it stays in the library.

    That is empty or of odd dtypes, or what the library looks at and may refuse: a table of rows for
    ``bucketize``, a side that there is not, positions to sort by.
    """
    search = _search_of(b, op)
    if search is None:
        return None
    kinds = [tensor(value) for value in (search.table, search.values, op.outputs[0])]
    if any(0 in kind.shape or kind.dtype in (*LIBRARY_DTYPES, "i1") for kind in kinds):
        return None
    if kinds[0].dtype != kinds[1].dtype or (kinds[0].ndim > 1 and not _rows_agree(search)):
        return None
    return b.cast(bisection(b, search), kinds[2].dtype)


def _rows_agree(search: Search) -> bool:
    return shape_of(search.table)[:-1] == shape_of(search.values)[:-1]


def _search_of(b: FlowBuilder, op: ExternOp) -> Search | None:
    """Read a call; None for one that the library may refuse."""
    positional, keywords = json.loads(op.arguments)

    def operand(value: Any, dtype: str) -> SSAValue:
        if not isinstance(value, dict):
            return b.scalar(value, dtype)
        said = cast("dict[str, str | int]", value)
        position = said.get("operand")
        return (
            b.scalar(float(said["float"]), dtype)
            if position is None
            else op.operands[int(position)]
        )

    bucketize = op.target.startswith("aten::bucketize")
    arguments = positional[::-1] if bucketize else positional
    table = operand(arguments[0], "")
    if keywords.get("sorter") is not None or keywords.get("side", "left") not in SIDES:
        return None
    if bucketize and tensor(table).ndim != 1:
        return None
    right = keywords.get("right", False) or keywords.get("side") == "right"
    return Search(table, operand(arguments[1], tensor(table).dtype), right)


SIDES = ("left", "right")


def bisection(b: FlowBuilder, search: Search) -> SSAValue:
    """Append the bisection: i64 positions from 0 to n, of the values' shape."""
    n, shape = shape_of(search.table)[-1], shape_of(search.values)
    first = b.broadcast(b.scalar(0, "i64"), shape)
    last = b.broadcast(b.scalar(n, "i64"), shape)
    one, end = b.scalar(1, "i64"), b.scalar(n - 1, "i64")
    for _ in range(n.bit_length()):
        middle = b.pointwise("shift_right", b.pointwise("add", first, last), one)
        # Where nothing is left to search, the middle may be n: it is looked up inside.
        here = _element(b, search.table, b.pointwise("minimum", middle, end))
        reached = b.pointwise("gt" if search.right else "ge", here, search.values)
        # Not reached, and more to search; else the middle is the end of what is left.
        up = b.pointwise("lt", reached, b.pointwise("lt", first, last))
        first = b.pointwise("where", up, b.pointwise("add", middle, one), first)
        last = b.pointwise("where", up, last, middle)
    return first


def _element(b: FlowBuilder, table: SSAValue, place: SSAValue) -> SSAValue:
    if tensor(table).ndim == 1:
        return b.op(TakeOp, [table, place], dim=0)
    return b.op(GatherOp, [table, place], dim=tensor(table).ndim - 1)
