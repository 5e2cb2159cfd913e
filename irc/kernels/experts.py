"""Library calls of grouped matmuls and layers of experts, as grouped products.

Fixed matrices are packed once. Others (in training, they change at each call) are packed at each
call, where there are rows enough for each matrix that this is little of the work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import ExternOp, SliceOp, TransposeOp, tensor
from irc.dialects.literals import IotaOp
from irc.dialects.types import TensorType
from irc.kernels.grouped import grouped_product
from irc.kernels.holds import shape_of
from irc.kernels.weights.panels import PAIRED
from irc.ops.experts import NUM_EXPERTS, expected_part

ACT = 5
"""Position of the argument ``act`` of ``irc::experts``."""
ACTIVATIONS = frozenset({"silu", "gelu", "gelu_tanh", "relu"})
"""Activations that are functions of flow by the same name."""
LEAST_ROWS = 8
"""Rows of a matrix, on average, from which on packing it for one call pays."""

IsFixed: TypeAlias = Callable[[SSAValue], bool]


@dataclass(frozen=True)
class Layer:
    """A layer of experts up to its second product (`irc.ops.experts`).

    Attributes:
        b: where its ops stand.
        tokens, choices, count: of hidden rows, of experts for each, of all experts.
        fill: part of the rows that is expected to go to experts that are held.
        rows: each token once for each of its experts, [tokens * choices, i].
        chosen: the expert of each row.
        matrices: the first matrices, gate above up, [count, parts * f, i].
        gate, up: what they give, [rows, f]; up is None without a gate.
        activated, gated: the activation of the gate, and that times up.
    """

    b: FlowBuilder
    tokens: int
    choices: int
    count: int
    fill: float
    rows: SSAValue
    chosen: SSAValue
    matrices: SSAValue
    gate: SSAValue
    up: SSAValue | None
    activated: SSAValue
    gated: SSAValue

    @staticmethod
    def of(
        b: FlowBuilder, operands: Sequence[SSAValue], call: Sequence[Any], fixed: IsFixed
    ) -> Layer | None:
        """Append a layer with the positional arguments of a call; None: it stays in the library."""
        act = call[ACT]
        hidden, index, _, gate_up, down = operands
        (tokens, width), choices = shape_of(hidden), shape_of(index)[1]
        count, parts, inner, _ = shape_of(gate_up)
        rows = tokens * choices
        if act not in ACTIVATIONS or not (
            all(map(fixed, (gate_up, down))) or rows >= LEAST_ROWS * count
        ):
            return None
        chosen = b.reshape(index, (rows,))
        apart = b.reshape(hidden, (tokens, 1, width))
        x = b.reshape(b.broadcast(apart, (tokens, choices, width)), (rows, width))
        matrices = b.reshape(gate_up, (count, parts * inner, width))
        fill = expected_part(count, int(call[NUM_EXPERTS]))
        both = grouped_product(b, x, matrices, chosen, fill)
        gate = _columns(b, both, 0, inner)
        activated = b.pointwise(act, gate)
        up = _columns(b, both, inner, 2 * inner) if parts == 2 else None
        gated = activated if up is None else b.pointwise("mul", activated, up)
        return Layer(
            b, tokens, choices, count, fill, x, chosen, matrices, gate, up, activated, gated
        )

    def product(self, x: SSAValue, w: SSAValue) -> SSAValue:
        """Append the product of rows with the matrix [n, k] of their expert in w [count, n, k]."""
        return grouped_product(self.b, x, w, self.chosen, self.fill)

    def summed(self, y: SSAValue, weights: SSAValue | None = None) -> SSAValue:
        """Sum rows [t k, o] over k, by weights [t, k], in the wider dtype of both."""
        b, dtype, width = self.b, tensor(y).dtype, shape_of(y)[1]
        apart = b.reshape(y, (self.tokens, self.choices, width))
        if weights is None:
            wide = "f32" if dtype in ("f16", "bf16") else dtype
            return b.cast(b.reduce("sum", b.cast(apart, wide), [1], keep_dims=False), dtype)
        wide = dtype if tensor(weights).dtype == dtype else "f32"
        scales = b.reshape(b.cast(weights, wide), (self.tokens, self.choices, 1))
        scaled = b.pointwise("mul", b.cast(apart, wide), scales)
        return b.cast(b.reduce("sum", scaled, [1], keep_dims=False), dtype)


def layer_of_experts(b: FlowBuilder, op: ExternOp, fixed: IsFixed) -> SSAValue | None:
    """Append a layer of experts (`irc.ops.experts`); None where it stays in the library."""
    if not fits(op):
        return None
    _, _, weights, _, down, *_ = op.inputs
    layer = Layer.of(b, op.inputs, _call(op)[0], fixed)
    if layer is None:
        return None
    return layer.summed(layer.product(layer.gated, down), weights)


def grouped_matmul(b: FlowBuilder, op: ExternOp, fixed: IsFixed) -> SSAValue | None:
    """Append rows [s, k] times matrices [e, k, n], grouped by where each group ends."""
    if [tensor(value).ndim for value in op.inputs] != [2, 3, 1] or not plain(op):
        return None
    x, w, ends = op.inputs
    if not fits(op) or not pays(x, w, fixed):
        return None
    return grouped_product(b, x, turned(b, w), group_of(b, shape_of(x)[0], ends))


def grouped_rows(b: FlowBuilder, op: ExternOp, fixed: IsFixed) -> SSAValue | None:
    """Append the same where groups begin at a row: a rank's part."""
    x, w, starts, ends = op.inputs
    if not fits(op) or not pays(x, w, fixed):
        return None
    rows = shape_of(x)[0]
    first = b.op(SliceOp, [starts], starts=(0,), stops=(1,), steps=(1,))
    place = b.op(IotaOp, [], result=TensorType.of((rows,), tensor(starts).dtype), dim=0)
    before = b.pointwise("lt", place, first)
    group = group_of(b, rows, ends)
    return grouped_product(
        b, x, turned(b, w), b.pointwise("where", before, b.scalar(-1, "i64"), group)
    )


def pays(x: SSAValue, w: SSAValue, fixed: IsFixed) -> bool:
    """True where packing matrices pays: they are fixed, or each meets rows enough."""
    return fixed(w) or shape_of(x)[0] >= LEAST_ROWS * shape_of(w)[0]


def group_of(b: FlowBuilder, rows: int, ends: SSAValue) -> SSAValue:
    """The group of each row, i64 [rows]: how many groups end before it or at it."""
    place = b.op(IotaOp, [], result=TensorType.of((rows,), tensor(ends).dtype), dim=0)
    over = b.pointwise("le", b.reshape(ends, (1, *shape_of(ends))), b.reshape(place, (rows, 1)))
    return b.reduce("sum", b.cast(over, "i64"), [1], keep_dims=False)


def turned(b: FlowBuilder, w: SSAValue) -> SSAValue:
    """Matrices [e, k, n] as [e, n, k]."""
    return b.op(TransposeOp, [w], perm=(0, 2, 1))


def _columns(b: FlowBuilder, value: SSAValue, start: int, stop: int) -> SSAValue:
    rows = shape_of(value)[0]
    return b.op(SliceOp, [value], starts=(0, start), stops=(rows, stop), steps=(1, 1))


def _call(op: ExternOp) -> Any:
    return json.loads(op.arguments)


def plain(op: ExternOp) -> bool:
    """True where a call has operands alone, in order, and options that say nothing."""
    positional, keywords = _call(op)
    arguments = [*positional, *keywords.values()]
    operands = [value for value in arguments if value is not None]
    return operands == [{"operand": i} for i in range(len(op.inputs))]


def fits(op: ExternOp) -> bool:
    """True for what grouped kernels multiply: one packed dtype, nothing empty, sums of several."""
    x, *_ = op.inputs
    dtype = tensor(x).dtype
    matrices = [value for value in op.inputs if tensor(value).ndim > 2]
    same = all(tensor(value).dtype == dtype for value in (*matrices, *op.outputs))
    whole = all(0 not in shape_of(value) for value in (*op.inputs, *op.outputs))
    summed = all(min(shape_of(value)[-2:]) > 1 for value in matrices)
    return dtype in PAIRED and same and whole and summed
