"""Library calls of grouped matmuls and layers of experts, as grouped products.

The matrices are packed once, so they must be fixed; a training step, whose weights change at each
call, keeps the library's loop over experts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import ExternOp, IotaOp, SliceOp, TransposeOp, tensor
from irc.dialects.types import TensorType
from irc.kernels.grouped import grouped_product
from irc.kernels.holds import shape_of
from irc.kernels.weights.panels import PAIRED

ACT = 5
"""Position of the argument ``act`` of ``irc::experts``."""
ACTIVATIONS = frozenset({"silu", "gelu", "gelu_tanh", "relu"})
"""Activations that are functions of flow by the same name."""

IsFixed: TypeAlias = Callable[[SSAValue], bool]


def layer_of_experts(b: FlowBuilder, op: ExternOp, fixed: IsFixed) -> SSAValue | None:
    """Append a layer of experts (`irc.ops.experts`); None where it stays in the library."""
    hidden, index, weights, gate_up, down = op.inputs
    act, (tokens, width), choices = _call(op)[0][ACT], shape_of(hidden), shape_of(index)[1]
    if act not in ACTIVATIONS or not (_fits(op) and fixed(gate_up) and fixed(down)):
        return None
    count, parts, inner, _ = shape_of(gate_up)
    rows, chosen = tokens * choices, b.reshape(index, (tokens * choices,))
    apart = b.reshape(hidden, (tokens, 1, width))
    x = b.reshape(b.broadcast(apart, (tokens, choices, width)), (rows, width))
    both = grouped_product(b, x, b.reshape(gate_up, (count, parts * inner, width)), chosen)
    made = b.pointwise(act, _columns(b, both, 0, inner))
    if parts == 2:
        made = b.pointwise("mul", made, _columns(b, both, inner, 2 * inner))
    y = grouped_product(b, made, down, chosen)
    return _weighted_sum(b, b.reshape(y, (tokens, choices, shape_of(down)[1])), weights)


def _weighted_sum(b: FlowBuilder, y: SSAValue, weights: SSAValue) -> SSAValue:
    """Sum y [t, k, o] over k by weights [t, k], in the wider dtype of both."""
    dtype, (tokens, choices, _) = tensor(y).dtype, shape_of(y)
    wide = dtype if tensor(weights).dtype == dtype else "f32"
    scales = b.reshape(b.cast(weights, wide), (tokens, choices, 1))
    scaled = b.pointwise("mul", b.cast(y, wide), scales)
    return b.cast(b.reduce("sum", scaled, [1], keep_dims=False), dtype)


def grouped_matmul(b: FlowBuilder, op: ExternOp, fixed: IsFixed) -> SSAValue | None:
    """Append rows [s, k] times matrices [e, k, n], grouped by where each group ends."""
    if [tensor(value).ndim for value in op.inputs] != [2, 3, 1] or not _plain(op):
        return None
    x, w, ends = op.inputs
    if not _fits(op) or not fixed(w):
        return None
    return grouped_product(b, x, _turned(b, w), _group_of(b, shape_of(x)[0], ends))


def grouped_rows(b: FlowBuilder, op: ExternOp, fixed: IsFixed) -> SSAValue | None:
    """Append the same where groups begin at a row: a rank's part."""
    x, w, starts, ends = op.inputs
    if not _fits(op) or not fixed(w):
        return None
    rows = shape_of(x)[0]
    first = b.op(SliceOp, [starts], starts=(0,), stops=(1,), steps=(1,))
    place = b.op(IotaOp, [], result=TensorType.of((rows,), tensor(starts).dtype), dim=0)
    before = b.pointwise("lt", place, first)
    group = _group_of(b, rows, ends)
    return grouped_product(
        b, x, _turned(b, w), b.pointwise("where", before, b.scalar(-1, "i64"), group)
    )


def _group_of(b: FlowBuilder, rows: int, ends: SSAValue) -> SSAValue:
    """The group of each row, i64 [rows]: how many groups end before it or at it."""
    place = b.op(IotaOp, [], result=TensorType.of((rows,), tensor(ends).dtype), dim=0)
    over = b.pointwise("le", b.reshape(ends, (1, *shape_of(ends))), b.reshape(place, (rows, 1)))
    return b.reduce("sum", b.cast(over, "i64"), [1], keep_dims=False)


def _turned(b: FlowBuilder, w: SSAValue) -> SSAValue:
    return b.op(TransposeOp, [w], perm=(0, 2, 1))


def _columns(b: FlowBuilder, value: SSAValue, start: int, stop: int) -> SSAValue:
    rows = shape_of(value)[0]
    return b.op(SliceOp, [value], starts=(0, start), stops=(rows, stop), steps=(1, 1))


def _call(op: ExternOp) -> Any:
    return json.loads(op.arguments.data)


def _plain(op: ExternOp) -> bool:
    """True where a call has operands alone, in order, and options that say nothing."""
    positional, keywords = _call(op)
    given = [*positional, *keywords.values()]
    operands = [value for value in given if value is not None]
    return operands == [{"operand": i} for i in range(len(op.inputs))]


def _fits(op: ExternOp) -> bool:
    """True for what grouped kernels multiply: one packed dtype, nothing empty, sums of several."""
    dtype = tensor(op.inputs[0]).dtype
    matrices = [value for value in op.inputs if tensor(value).ndim > 2]
    same = all(tensor(value).dtype == dtype for value in (*matrices, *op.outputs))
    whole = all(0 not in shape_of(value) for value in (*op.inputs, *op.outputs))
    summed = all(min(shape_of(value)[-2:]) > 1 for value in matrices)
    return dtype in PAIRED and same and whole and summed
