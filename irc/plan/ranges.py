"""Which integers an input may hold: an index must lie inside the table that it indexes.

Random inputs for a trial run need this; nothing else does. Read off level flow: from each integer
input forward through ops that keep its values, to the index operand of take, gather or scatter.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import SSAValue

from irc.dialects.builder import arguments, entry, functions
from irc.dialects.flow import (
    BroadcastOp,
    ConcatOp,
    FusionOp,
    PointwiseOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    names_of,
    tensor,
)
from irc.dialects.indexing import GatherOp, ScatterOp, TakeOp
from irc.dialects.types import TensorType

KEEPING = frozenset({
    *names_of(ReshapeOp, TransposeOp, SliceOp, ConcatOp, BroadcastOp), "sbp.boxing",
    "comm.local_chunk", "comm.all_gather", "comm.all_to_all", "comm.permute", "comm.wait",
    "comm.dispatch_rows", "task.view",
})  # fmt: skip


def input_ranges(module: ModuleOp) -> dict[str, tuple[int, int]]:
    """Return, for each input used as an index, the first and last value that is safe everywhere."""
    ranges: dict[str, tuple[int, int]] = {}
    known = functions(module)
    for role, name, value in arguments(entry(module)):
        if role != "input" or not isinstance(value.type, TensorType):
            continue
        if not value.type.dtype.startswith(("i", "u")):
            continue
        if size := smallest_table(value, known):
            ranges[name] = (0, size - 1)
    return ranges


def smallest_table(value: SSAValue, known: dict[str, FuncOp]) -> int | None:
    """Return the size of the smallest table that a value indexes; None where it indexes none.

    Args:
        value: integers.
        known: the functions of the module.
    """
    return min(_table_sizes(value, known, set()), default=None)


def _table_sizes(value: SSAValue, known: dict[str, FuncOp], seen: set[SSAValue]) -> Iterator[int]:
    if value in seen:
        return
    seen.add(value)
    for use in value.uses:
        op = use.operation
        if isinstance(op, CallOp):
            callee = known[op.callee.string_value()]
            yield from _table_sizes(callee.body.block.args[use.index], known, seen)
        elif isinstance(op, FusionOp):
            yield from _table_sizes(op.body.block.args[use.index], known, seen)
        elif isinstance(op, TakeOp | GatherOp | ScatterOp) and use.index == 1:
            table = op.table if isinstance(op, TakeOp) else op.x
            size = tensor(table).shape[op.dim]
            if isinstance(size, int):
                yield size
        elif op.name in KEEPING or (isinstance(op, PointwiseOp) and op.fn == "cast"):
            yield from _table_sizes(op.results[0], known, seen)
