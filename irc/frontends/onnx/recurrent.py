"""RNN, GRU and LSTM of few steps as plain ops: a product for all inputs, then one a step.

A step of a library op costs as much as tens of small kernels; written out, steps of a streaming
model (one a call) are matrix products with their activations fused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from irc.dialects.flow import ConcatOp, ContractOp, tensor
from irc.dialects.size import Dim
from irc.frontends.onnx.elementwise import scalar
from irc.frontends.onnx.node import Node
from irc.frontends.onnx.shapes import cut

MOST_STEPS = 8
"""Longer sequences are a library call: their steps would be most of a program."""

GATES: Mapping[str, int] = {"RNN": 1, "GRU": 3, "LSTM": 4}
DEFAULTS: Mapping[str, Sequence[str]] = {
    "RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh"),
}  # fmt: skip
SIMPLE: Mapping[str, str] = {"tanh": "tanh", "sigmoid": "sigmoid", "relu": "relu"}
"""Activations without parameters, and flow's name for each."""


@dataclass(frozen=True)
class Direction:
    """One direction: its weights, its states before the first step, its activations."""

    index: int
    backwards: bool
    hidden: int
    activations: Sequence[str]


def is_plain(node: Node, activations: Sequence[str]) -> bool:
    """True for few steps of known number, all samples of one length, nothing clipped."""
    steps = node.shape()[0] if node.ndim() else 0
    count = len(activations) // len(DEFAULTS[node.kind])
    return (
        isinstance(steps, int)
        and node.ndim(1) == node.ndim(2) == 3
        and node.shape(1)[0] == count
        and 0 < steps <= MOST_STEPS
        and node.ndim() == 3
        and not node.attr("layout", 0)
        and not node.has(4)
        and not node.has(7)
        and node.attr("clip") is None
        and not node.attr("input_forget", 0)
        and all(name.lower() in SIMPLE for name in activations)
        and all(isinstance(size, int) for i in (1, 2) for size in node.shape(i))
    )


def unrolled(node: Node, activations: Sequence[str]) -> list[SSAValue]:
    """Write the steps out; results as the op's: all hidden states, the last ones, the last cells.

    Args:
        node: the op, which :func:`is_plain`.
        activations: of all directions, one after the other.
    """
    kind = node.attr("direction", "forward")
    count, hidden = (int(str(size)) for size in (node.shape(1)[0], node.shape(2)[2]))
    each = len(DEFAULTS[node.kind])
    runs = [
        _run(node, Direction(
            i, kind == "reverse" or i == 1, hidden,
            [SIMPLE[name.lower()] for name in activations[i * each : (i + 1) * each]],
        ))
        for i in range(count)
    ]  # fmt: skip
    b, batch = node.b, node.shape()[1]
    rows = [
        _joined(node, [b.reshape(h, (1, 1, batch, hidden)) for h in every], 0)
        for every, _, _ in runs
    ]
    states = [[h for _, h, _ in runs], [c for _, _, c in runs if c is not None]]
    lasts = [
        _joined(node, [b.reshape(value, (1, batch, hidden)) for value in column], 0)
        for column in states
        if column
    ]
    return [_joined(node, rows, 1), *lasts]


def _run(node: Node, one: Direction) -> tuple[list[SSAValue], SSAValue, SSAValue | None]:
    """Return the hidden state after each step in the order of time, the last, and the last cell."""
    steps, b = int(str(node.shape()[0])), node.b
    recurrent = _of(node, 2, one.index)
    inputs = b.op(ContractOp, [node[0], _of(node, 1, one.index)], spec="sbi,gi->sbg")
    biases = _biases(node, one)
    if biases[0] is not None:
        inputs = b.pointwise("add", inputs, biases[0])
    h = _state(node, 5, one)
    c = _state(node, 6, one) if node.kind == "LSTM" else None
    seen: list[SSAValue] = []
    for at in reversed(range(steps)) if one.backwards else range(steps):
        x = cut(node, inputs, 0, at, at + 1) if steps > 1 else inputs
        x = b.reshape(x, tensor(x).shape[1:])
        if c is not None:
            h, c = _lstm(node, one, x, h, c, recurrent)
        elif node.kind == "GRU":
            h = _gru(node, one, x, h, recurrent, biases[1])
        else:
            total = b.pointwise("add", x, _product(node, h, recurrent))
            h = b.pointwise(one.activations[0], total)
        seen.append(h)
    return (seen[::-1] if one.backwards else seen), h, c


def _lstm(
    node: Node, one: Direction, x: SSAValue, h: SSAValue, c: SSAValue, recurrent: SSAValue
) -> tuple[SSAValue, SSAValue]:
    """``c' = f c + i g``, ``h' = o tanh(c')``; the gates lie as i, o, f, g."""
    b, (gate, new, out) = node.b, one.activations
    total = b.pointwise("add", x, _product(node, h, recurrent))
    i, o, f, g = (_gate(node, total, index, one.hidden) for index in range(4))
    kept = b.pointwise("mul", b.pointwise(gate, f), c)
    c = b.pointwise("add", kept, b.pointwise("mul", b.pointwise(gate, i), b.pointwise(new, g)))
    return b.pointwise("mul", b.pointwise(gate, o), b.pointwise(out, c)), c


def _gru(
    node: Node, one: Direction, x: SSAValue, h: SSAValue, recurrent: SSAValue,
    bias: SSAValue | None,
) -> SSAValue:  # fmt: skip
    """``h' = (1 - z) n + z h``; the gates lie as z, r, n."""
    b, size = node.b, one.hidden
    gate, new = one.activations
    after = bool(node.attr("linear_before_reset", 0))
    weights = recurrent if after else cut(node, recurrent, 0, 0, 2 * size)
    products = _product(node, h, weights)
    z, r = (
        b.pointwise(
            gate, b.pointwise("add", _gate(node, x, i, size), _gate(node, products, i, size))
        )
        for i in range(2)
    )
    if after:
        inner = _gate(node, products, 2, size)
        inner = inner if bias is None else b.pointwise("add", inner, bias)
        inner = b.pointwise("mul", r, inner)
    else:
        inner = _product(
            node, b.pointwise("mul", r, h), cut(node, recurrent, 0, 2 * size, 3 * size)
        )
        inner = inner if bias is None else b.pointwise("add", inner, bias)
    n = b.pointwise(new, b.pointwise("add", _gate(node, x, 2, size), inner))
    rest = b.pointwise("sub", scalar(node, 1, z), z)
    return b.pointwise("add", b.pointwise("mul", rest, n), b.pointwise("mul", z, h))


def _product(node: Node, h: SSAValue, weights: SSAValue) -> SSAValue:
    return node.b.op(ContractOp, [h, weights], spec="bh,gh->bg")


def _gate(node: Node, x: SSAValue, index: int, size: int) -> SSAValue:
    return cut(node, x, 1, index * size, (index + 1) * size)


def _of(node: Node, operand: int, direction: int) -> SSAValue:
    """Return one direction's part of an operand."""
    value = node[operand]
    shape: Sequence[Dim] = tensor(value).shape
    part = value if shape[0] == 1 else cut(node, value, 0, direction, direction + 1)
    return node.b.reshape(part, shape[1:])


def _biases(node: Node, one: Direction) -> tuple[SSAValue | None, SSAValue | None]:
    """Return what all products get, and what a GRU's last gate gets inside its product."""
    if not node.has(3):
        return None, None
    b, size = node.b, one.hidden
    both, width = _of(node, 3, one.index), GATES[node.kind] * one.hidden
    first, second = cut(node, both, 0, 0, width), cut(node, both, 0, width, 2 * width)
    if node.kind != "GRU":
        return b.pointwise("add", first, second), None
    shared = b.pointwise("add", cut(node, first, 0, 0, 2 * size), cut(node, second, 0, 0, 2 * size))
    last = cut(node, first, 0, 2 * size, 3 * size)
    inner = cut(node, second, 0, 2 * size, 3 * size)
    return _joined(node, [shared, last], 0), inner


def _state(node: Node, operand: int, one: Direction) -> SSAValue:
    if node.has(operand):
        return _of(node, operand, one.index)
    return node.b.constant([0.0], (node.shape()[1], one.hidden), node.dtype())


def _joined(node: Node, parts: Sequence[SSAValue], dim: int) -> SSAValue:
    return parts[0] if len(parts) == 1 else node.b.op(ConcatOp, list(parts), dim=dim)
