"""Strategies: ways to shard an op that its rule cannot say, each with a local program of its own.

The placements are here, next to the rules; the local programs are in :mod:`irc.sharding.local`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from irc.dialects.placement import AxisPlacement, B, Partial, Split
from irc.dialects.size import Dim
from irc.ops.custom import declaration
from irc.ops.infer import Attrs, Signature
from irc.ops.rules import op_signatures
from irc.ops.rules_naming import dim_of

if TYPE_CHECKING:
    from irc.dialects.flow import FlowOp


@dataclass(frozen=True)
class Strategy:
    """A one-axis signature beyond the rule.

    Attributes:
        name: under which :mod:`irc.sharding.local` knows its local program.
        operands: the placement of each operand.
        results: the placement of each result.
        size: the size that the axis divides; 0 where it divides none.
        split: what the axis splits, for strategies that split one of several dims.
    """

    name: str
    operands: tuple[AxisPlacement, ...]
    results: tuple[AxisPlacement, ...]
    size: Dim
    split: str = ""


AS_IT_IS = "rule"
"""The name of strategies whose local program is the op itself."""

StrategyFunction: TypeAlias = Callable[
    [Attrs, Sequence[Signature], Sequence[Signature]], list[Strategy]
]


def strategies_of(op: FlowOp) -> list[Strategy]:
    """Return the strategies of an op, often none."""
    make = STRATEGIES.get(op.name)
    if op.name == "flow.extern":
        known = declaration(op.plain["target"])
        make = known.strategies if known else None
    return make(op.plain, *op_signatures(op)) if make else []


def _masked(name: str) -> StrategyFunction:
    """Split the table along the indexed dim: each rank gives its own rows and zeros elsewhere."""

    def strategies(
        attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
    ) -> list[Strategy]:
        (table, dtype), dim = operands[0], dim_of(attrs)
        if dtype == "i1" or table[dim] == 1:
            return []
        return [Strategy(name, (Split(dim), B), (Partial("sum"),), table[dim])]

    return strategies


def _offset_iota(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> list[Strategy]:
    """Split the counted dim: each rank counts from where its shard starts."""
    (shape, _), dim = results[0], dim_of(attrs)
    return [] if shape[dim] == 1 else [Strategy("offset-iota", (), (Split(dim),), shape[dim])]


def _offset_random(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> list[Strategy]:
    """Split any dim: each rank draws the numbers of its own places in the whole tensor."""
    shape, _ = results[0]
    return [
        Strategy("offset-random", (B,), (Split(dim),), size, split=f"dim {dim}")
        for dim, size in enumerate(shape)
        if size != 1 and len(operands) == 1
    ]


def _zeros(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> list[Strategy]:
    """Zeros are the sum of zeros: what is added into them may then differ from rank to rank."""
    if attrs["value"] in ((0,), (0.0,)):
        return [Strategy(AS_IT_IS, (), (Partial("sum"),), 0, split="nothing")]
    return []


def _scatter(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> list[Strategy]:
    """Split the table along the written dim (each rank writes its own rows), or what is added."""
    (table, dtype), (index, _), dim = operands[0], operands[1], dim_of(attrs)
    found: list[Strategy] = []
    if table[dim] != 1:
        rows = Split(dim)
        found.append(Strategy("masked-scatter", (rows, B, B), (rows,), table[dim]))
    if attrs["fn"] == "sum" and index[dim] != 1 and dtype != "i1":
        part, updates = Partial("sum"), Split(dim)
        found.append(
            Strategy(AS_IT_IS, (part, updates, updates), (part,), index[dim], split="updates")
        )
    return found


def _causal_rows(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> list[Strategy]:
    """Split the rows of q under a causal mask: a rank masks by the logical number of its rows."""
    q = operands[0][0]
    rows = len(q) - 2
    placed: list[AxisPlacement] = [Split(rows), B, B]
    for shape, dtype in operands[3:]:
        if dtype != "i1":
            return []
        of_rows = len(shape) >= 2 and shape[-2] == q[rows]
        placed.append(Split(len(shape) - 2) if of_rows else B)
    if not attrs["is_causal"] or q[rows] == 1:
        return []
    return [Strategy("causal-rows", tuple(placed), (Split(rows),), q[rows])]


STRATEGIES: Mapping[str, StrategyFunction] = {
    "flow.take": _masked("masked-take"),
    "flow.gather": _masked("masked-gather"),
    "flow.scatter": _scatter,
    "flow.iota": _offset_iota,
    "flow.random": _offset_random,
    "flow.constant": _zeros,
    "flow.attention": _causal_rows,
}
