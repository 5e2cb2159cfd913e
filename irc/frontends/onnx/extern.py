"""Nodes that run as library ops: `flow.extern` with a target in `irc.runtime.onnx_library`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from xdsl.ir import SSAValue

from irc.dialects.flow import ExternOp
from irc.dialects.size import Dim
from irc.dialects.types import TensorType
from irc.frontends.onnx.elementwise import Converter
from irc.frontends.onnx.node import Node, Unsupported, Value, check_axis, static
from irc.frontends.onnx.recurrent import is_plain, unrolled
from irc.frontends.onnx.shapes import transpose
from irc.ops.infer import ShapeError, equal_sizes

ACTIVATIONS = frozenset({
    "Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh",
    "HardSigmoid", "Elu", "Softsign", "Softplus",
})  # fmt: skip


def extern(
    node: Node,
    shapes: Sequence[Sequence[Dim]],
    *,
    dtypes: Sequence[str] | None = None,
    target: str | None = None,
    **options: Any,
) -> list[SSAValue]:
    """Append a library op of the node's operands; absent optional operands are null in its JSON."""
    operands: list[SSAValue] = []
    positions: list[dict[str, int] | None] = []
    for index in range(len(node.inputs)):
        if node.has(index):
            positions.append({"operand": len(operands)})
            operands.append(node[index])
        else:
            positions.append(None)
    names = dtypes or [node.dtype()] * len(shapes)
    results = [TensorType.of(shape, dtype) for shape, dtype in zip(shapes, names, strict=True)]
    plain: dict[str, Any] = {key: [*v] if isinstance(v, tuple) else v for key, v in options.items()}
    return node.b.ops(
        ExternOp, operands, results=results,
        target=f"onnx::{target or node.kind}",
        arguments=json.dumps([positions, plain], sort_keys=True),
    )  # fmt: skip


def convert_recurrent(node: Node) -> list[SSAValue]:
    """RNN, GRU and LSTM: few steps written out, more as they are."""
    activations = activations_of(node, node.kind)
    _check_states(node)
    if node.attr("layout", 0) and node.ndim() == 3:
        return _batch_first(node, activations)
    return _steps_first(node, activations)


def _steps_first(node: Node, activations: Sequence[str]) -> list[SSAValue]:
    if is_plain(node, activations):
        return unrolled(node, activations)
    return recurrent(node, node.kind, activations)


def _batch_first(node: Node, activations: Sequence[str]) -> list[SSAValue]:
    """A cell whose batch comes first, as one whose steps do, between transpositions."""
    inputs = [
        Value.of(transpose(node, node[i], (1, 0, 2))) if i in (0, 5, 6) and node.has(i) else value
        for i, value in enumerate(node.inputs)
    ]
    inner = replace(node, inputs=inputs, attributes={**node.attributes, "layout": 0})
    every, *last = _steps_first(inner, activations)
    turned = [transpose(node, value, (1, 0, 2)) for value in last]
    return [transpose(node, every, (2, 0, 1, 3)), *turned]


def convert_quantized_lstm(node: Node) -> list[SSAValue]:
    """DynamicQuantizeLSTM of ONNX Runtime: an LSTM of weights of 8 bits, transposed."""
    for index in (8, 9, 10, 11):
        node.operand(index)
    _check_states(node)
    return recurrent(node, "LSTM", activations_of(node, "LSTM"))


def _check_states(node: Node) -> None:
    """Hold the batch of first states and lengths against the inputs': a cell does not look.

    Raises:
        ShapeError: where they differ.
    """
    if node.ndim() != 3:
        return
    layout = node.attr("layout", 0)
    batch = node.shape()[0 if layout else 1]
    for index, dim in ((4, 0), (5, 0 if layout else 1), (6, 0 if layout else 1)):
        if node.has(index) and not equal_sizes(state_batch := node.shape(index)[dim], batch):
            raise ShapeError(
                f"operand {index} is for a batch of {state_batch}, the inputs of {batch}"
            )


def activations_of(node: Node, kind: str) -> list[str]:
    """Return the activations of all directions, by the names that the library knows.

    Raises:
        Unsupported: for one that it does not know.
    """
    default = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
    directions = 2 if node.attr("direction", "forward") == "bidirectional" else 1
    names = node.attr("activations") or default[kind] * directions
    known = {name.lower(): name for name in ACTIVATIONS}
    if unknown := [a for a in names if a.lower() not in known]:
        raise Unsupported(f"activation {unknown[0]!r}")
    return [known[a.lower()] for a in names]


def recurrent(node: Node, kind: str, activations: Sequence[str]) -> list[SSAValue]:
    """Append a cell over time as a library op."""
    if node.ndim() != 3:
        raise Unsupported(f"an input of {node.ndim()} dims, where 3 are taken")
    layout, direction = node.attr("layout", 0), node.attr("direction", "forward")
    steps, batch = node.shape()[:2] if not layout else (node.shape()[1], node.shape()[0])
    if not node.ndim(1) == node.ndim(2) == 3:
        raise ShapeError(f"weights of {node.ndim(1)} and {node.ndim(2)} dims, where 3 are taken")
    inputs, gates = node.shape(1)[2], {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    if kind == node.kind and not (
        equal_sizes(inputs, node.shape()[2])
        and equal_sizes(node.shape(1)[1], node.shape(2)[2] * gates)
        and equal_sizes(node.shape(2)[1], node.shape(2)[2] * gates)
    ):
        raise ShapeError("weights of other sizes than the inputs and the hidden state")
    directions = node.shape(1)[0]
    width = node.shape(2)[2 if kind == node.kind else 1]
    hidden = node.attr("hidden_size") or static([width])[0]
    if layout:
        last = (batch, directions, hidden)
        every = (batch, steps, directions, hidden)
    else:
        last = (directions, batch, hidden)
        every = (steps, directions, batch, hidden)
    shapes = [every, last] + ([last] if kind == "LSTM" else [])
    return extern(
        node, shapes, direction=direction, layout=layout, hidden=hidden,
        activations=list(activations),
        alpha=list(node.attr("activation_alpha") or []),
        beta=list(node.attr("activation_beta") or []),
        clip=node.attr("clip"), input_forget=node.attr("input_forget", 0),
        linear_before_reset=node.attr("linear_before_reset", 0),
    )  # fmt: skip


def convert_non_zero(node: Node) -> list[SSAValue]:
    """NonZero: how many there are is known only when it runs, so the size has a name of its own."""
    count = node.owner.unbacked(node.kind)
    results = extern(node, [(node.ndim(), count)], dtypes=["i64"])
    node.owner.backed_by[str(count)] = results[0]
    return results


def convert_grid_sample(node: Node) -> list[SSAValue]:
    """GridSample of 4-D or 5-D tensors."""
    if node.ndim() not in (4, 5):
        raise Unsupported(f"a grid over {node.ndim()} dims")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(m := node.attr("mode", "linear"), m)
    if mode == "cubic" and node.ndim() == 5:
        raise Unsupported("cubic interpolation of volumes")
    shape = (*node.shape()[:2], *node.shape(1)[1:-1])
    return extern(
        node, [shape], mode=mode, padding=node.attr("padding_mode", "zeros"),
        align=node.attr("align_corners", 0),
    )  # fmt: skip


def convert_det(node: Node) -> list[SSAValue]:
    """Determinants of the last two dims."""
    return extern(node, [node.shape()[:-2]])


def convert_col2im(node: Node) -> list[SSAValue]:
    """Col2Im of images."""
    image, block = node.ints(1), node.ints(2)
    if len(image) != 2:
        raise Unsupported(f"Col2Im of {len(image)} dims")
    channels = static(node.shape()[1:2])[0] // (block[0] * block[1])
    pads = node.attr("pads") or [0] * 4
    node.inputs = [node.operand(0)]
    return extern(
        node, [(node.shape()[0], channels, *image)], image=image, block=block, pads=list(pads),
        strides=list(node.attr("strides") or [1, 1]),
        dilations=list(node.attr("dilations") or [1, 1]),
    )  # fmt: skip


def convert_dft(node: Node) -> list[SSAValue]:
    """DFT along one axis, of real or complex numbers (pairs in the last dim)."""
    axis = int(node.number(2, -2)) if node.version >= 20 else node.attr("axis", 1)
    axis = check_axis(axis, node.ndim())
    length = int(node.number(1)) if node.has(1) else None
    onesided, inverse = node.attr("onesided", 0), node.attr("inverse", 0)
    shape = list(node.shape())
    if onesided and inverse:
        shape[axis] = 2 * (static([shape[axis]])[0] - 1)
    elif onesided and length is None:
        shape[axis] = static([shape[axis]])[0] // 2 + 1
    if length is not None:
        shape[axis] = length // 2 + 1 if onesided and not inverse else length
    shape[-1] = 1 if onesided and inverse else 2
    node.inputs = [node.operand(0)]
    return extern(node, [shape], axis=axis, length=length, onesided=onesided, inverse=inverse)


CONVERTERS: Mapping[str, Converter] = {
    "Col2Im": convert_col2im,
    "DFT": convert_dft,
    "com.microsoft::DynamicQuantizeLSTM": convert_quantized_lstm,
    "Det": convert_det,
    "GRU": convert_recurrent,
    "GridSample": convert_grid_sample,
    "LSTM": convert_recurrent,
    "NonZero": convert_non_zero,
    "RNN": convert_recurrent,
}
