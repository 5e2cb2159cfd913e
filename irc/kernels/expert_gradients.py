"""Gradients of grouped matmuls and of layers of experts, as grouped products and grouped sums.

With rows x[r] of expert e = index[r], a row of the result is ``W[e] x[r]``. So the gradient of a
row is a grouped product by the transposed matrices, and that of a matrix a sum of outer products
over its own rows (``flow.grouped_outer``).
"""

from __future__ import annotations

import json
from typing import Any

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import ConcatOp, ExternOp, TransposeOp, tensor
from irc.dialects.packed_products import GroupedOuterOp
from irc.kernels.experts import (
    ACT,
    IsFixed,
    Layer,
    fits,
    group_of,
    pays,
    plain,
    turned,
)
from irc.kernels.grouped import grouped_product
from irc.kernels.holds import shape_of
from irc.ops.derivatives_pointwise import slope
from irc.ops.experts import EXPERTS
from irc.ops.grouped import GROUPED_MM

GATE_UP, DOWN = 3, 4
"""Operands of ``irc::experts`` that are matrices."""


def summed_outer(b: FlowBuilder, op: ExternOp) -> SSAValue | None:
    """Append columns [m, s] times rows [s, n], grouped along s by where each group ends."""
    if [tensor(value).ndim for value in op.inputs] != [2, 2, 1] or not plain(op):
        return None
    x, g, ends = op.inputs
    if not fits(op) or min(*shape_of(x), *shape_of(g)) < 2:
        return None
    rows = b.op(TransposeOp, [x], perm=(1, 0))
    return grouped_outer(b, rows, g, group_of(b, shape_of(g)[0], ends), shape_of(ends)[0])


def grouped_outer(
    b: FlowBuilder, x: SSAValue, g: SSAValue, index: SSAValue, count: int, fill: float | None = None
) -> SSAValue:
    """Append ``result[e, m, n] = sum over r where index[r] = e of x[r, m] g[r, n]``.

    ``fill`` is the part of the rows whose index is expected to name a group, None for all.
    """
    return b.op(GroupedOuterOp, [x, g, b.cast(index, "i64")], count=count, fill=fill)


def expert_derivative(b: FlowBuilder, op: ExternOp, fixed: IsFixed) -> list[SSAValue] | None:
    """Append the derivative of a call; None for one of another op."""
    name, attrs, count, reached, wanted = json.loads(op.arguments)
    if name != ExternOp.name or reached != [0] or not fits(op):
        return None
    positional, keywords = json.loads(attrs["arguments"])
    if attrs["target"] in GROUPED_MM and not keywords and count == 3:
        return _of_product(b, op, wanted, fixed)
    if attrs["target"] == EXPERTS:
        return _of_layer(b, op, positional, wanted, fixed)
    return None


def _of_product(
    b: FlowBuilder, op: ExternOp, wanted: list[int], fixed: IsFixed
) -> list[SSAValue] | None:
    x, w, ends, g = op.inputs
    if [tensor(value).ndim for value in (x, w, ends)] != [2, 3, 1] or not pays(x, w, fixed):
        return None
    group = group_of(b, shape_of(x)[0], ends)
    gradients = {
        0: lambda: grouped_product(b, g, w, group),
        1: lambda: grouped_outer(b, x, g, group, shape_of(w)[0]),
    }
    return [gradients[operand]() for operand in wanted] if set(wanted) <= {0, 1} else None


def _of_layer(
    b: FlowBuilder, op: ExternOp, call: list[Any], wanted: list[int], fixed: IsFixed
) -> list[SSAValue] | None:
    """The derivative of a layer: its forward pass again, then each product's."""
    *operands, g = op.inputs
    layer = Layer.of(b, operands, call, fixed)
    if layer is None or 1 in wanted:
        return None
    tokens, choices, width = layer.tokens, layer.choices, shape_of(operands[DOWN])[1]
    dtype = tensor(g).dtype
    spread = b.broadcast(b.reshape(g, (tokens, 1, width)), (tokens, choices, width))
    wide = dtype if tensor(operands[2]).dtype == dtype else "f32"
    scales = b.reshape(b.cast(operands[2], wide), (tokens, choices, 1))
    weighed = b.pointwise("mul", b.cast(spread, wide), scales)
    dy = b.reshape(b.cast(weighed, dtype), (tokens * choices, width))
    dgated = layer.product(dy, turned(b, operands[DOWN]))
    parts = [slope(b, call[ACT], layer.gate, dgated if layer.up is None else
                   b.pointwise("mul", dgated, layer.up))]  # fmt: skip
    if layer.up is not None:
        parts.append(b.pointwise("mul", dgated, layer.activated))
    both = parts[0] if len(parts) == 1 else b.op(ConcatOp, parts, dim=1)
    gradients: dict[int, Any] = {
        0: lambda: layer.summed(layer.product(both, turned(b, layer.matrices))),
        2: lambda: _of_weights(b, layer, spread, operands),
        GATE_UP: lambda: b.reshape(
            grouped_outer(b, both, layer.rows, layer.chosen, layer.count, layer.fill),
            shape_of(operands[GATE_UP]),
        ),
        DOWN: lambda: grouped_outer(b, dy, layer.gated, layer.chosen, layer.count, layer.fill),
    }
    return [gradients[operand]() for operand in wanted]


def _of_weights(
    b: FlowBuilder, layer: Layer, spread: SSAValue, operands: list[SSAValue]
) -> SSAValue:
    """The gradient of how much each chosen expert counts: its result times the gradient."""
    shape = shape_of(spread)
    y = b.reshape(layer.product(layer.gated, operands[DOWN]), shape)
    dtype = tensor(operands[2]).dtype
    wide = "f32" if tensor(y).dtype in ("f16", "bf16") else tensor(y).dtype
    both = b.pointwise("mul", b.cast(y, wide), b.cast(spread, wide))
    return b.cast(b.reduce("sum", both, [2], keep_dims=False), dtype)
