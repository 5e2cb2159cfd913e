"""Gathers move in front of what is computed of their table: few elements instead of all.

``gather(f(x, y), i)`` is ``f(gather(x, i), gather(y, i))``: the loss of a classifier takes one of
the log-probabilities of a row, so the others need not be written (cross-entropy without
materialised probabilities), and the gather reads memory, which a kernel can do in its loops.
"""

from __future__ import annotations

from math import prod

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, SSAValue

from irc.dialects.flow import FlowOp, PointwiseOp, carry, id_of, tensor
from irc.dialects.indexing import GatherOp
from irc.dialects.types import TensorType
from irc.kernels.holds import shape_of

FEWER = 8
"""How many times fewer elements a gather takes than its table has, for which computing those again
is nothing."""


def move_gathers(block: Block) -> None:
    """Rewrite the gathers of a block whose table nothing else reads."""
    for op in list(block.ops):
        if isinstance(op, GatherOp) and len(list(op.x.uses)) == 1:
            moved = _moved(op)
            if moved is not None:
                op.outputs[0].replace_all_uses_with(moved)
                op.detach()
                op.erase()


def _moved(op: GatherOp) -> SSAValue | None:
    """Write a gather's function on gathered operands in front of it; None where it must stay."""
    table, index = op.x, op.index
    source, dim = table.owner, op.dim
    if not isinstance(source, PointwiseOp) or not isinstance(table.type, TensorType):
        return None
    shape, wanted = shape_of(table), shape_of(index)
    same = all(n == m or d == dim for d, (n, m) in enumerate(zip(shape, wanted, strict=True)))
    if not same or prod(wanted) * FEWER > prod(shape):
        return None
    kinds = [_part(value, shape, dim) for value in source.inputs]
    if None in kinds or "whole" not in kinds:
        return None
    operands: list[SSAValue] = []
    for number, (value, kind) in enumerate(zip(source.inputs, kinds, strict=True)):
        operands.append(_gathered(op, value, number) if kind == "whole" else value)
    moved = PointwiseOp.make(operands, [op.outputs[0].type], fn=source.fn)
    _place(moved, op, source, id_of(op))
    if "sbp" in op.attributes:
        moved.attributes["sbp"] = op.attributes["sbp"]
    return moved.outputs[0]


def _part(value: SSAValue, shape: tuple[int, ...], dim: int) -> str | None:
    """Say whether an operand is gathered (``whole``), stays (``same``), or is neither."""
    own = shape_of(value)
    if own == shape:
        return "whole"
    at = dim - (len(shape) - len(own))
    return "same" if at < 0 or own[at] == 1 else None


def _gathered(op: GatherOp, value: SSAValue, number: int) -> SSAValue:
    index = op.index
    kind = TensorType.of(tensor(index).shape, tensor(value).dtype)
    inner = GatherOp.make([value, index], [kind], dim=op.dim)
    assert isinstance(inner, GatherOp)
    _place(inner, op, op, f"{id_of(op)}.{number}")
    moved = _moved(inner)
    if moved is None:
        return inner.outputs[0]
    inner.detach()
    inner.erase()
    return moved


def _place(op: FlowOp, before: FlowOp, origin: FlowOp, name: str) -> None:
    assert before.parent is not None
    carry(op, origin)
    op.attributes["id"] = StringAttr(name)
    before.parent.insert_op_before(op, before)
