"""Ops on channels that come last, as ONNX Runtime writes them for quantised and half types.

Each is the op of ONNX between two transpositions, which cancel between neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from irc.frontends.onnx.contrib.compose import Composer, Composition
from irc.frontends.onnx.contrib.layers import activated
from irc.frontends.onnx.node import Value

WINDOW = ("auto_pad", "dilations", "kernel_shape", "pads", "strides")


def channels_first(x: Composer, value: Value) -> Value:
    """Put the last dim behind the batch."""
    n = len(value.shape)
    return x.op("Transpose", value, perm=[0, n - 1, *range(1, n - 1)])


def channels_last(x: Composer, value: Value) -> Value:
    """Undo :func:`channels_first`."""
    return x.op("Transpose", value, perm=[0, *range(2, len(value.shape)), 1])


def around(x: Composer, run: Callable[[Value], Value], *, last: bool = True) -> Value:
    """Run an op of ONNX on the first operand."""
    return channels_last(x, run(channels_first(x, x[0]))) if last else run(x[0])


def convolution(x: Composer) -> Value:
    """NhwcConv and NhwcFusedConv: a convolution, the sum with another tensor, an activation."""
    attributes = {name: x.attr(name) for name in (*WINDOW, "group")}
    convolved = around(x, lambda value: x.op("Conv", value, x[1], x.get(2), **attributes))
    return activated(x, x.op("Add", convolved, x[3]) if x.has(3) else convolved)


def max_pool(x: Composer) -> Value:
    """NhwcMaxPool of quantised numbers."""
    attributes = {name: x.attr(name) for name in (*WINDOW, "ceil_mode")}
    return around(x, lambda value: x.op("MaxPool", value, **attributes))


def qlinear_conv(x: Composer) -> Value:
    """QLinearConv whose channels may come last."""
    attributes = {name: x.attr(name) for name in (*WINDOW, "group")}
    rest = [x.get(i) for i in range(1, len(x.node.inputs))]
    last = bool(x.attr("channels_last", 0))
    return around(x, lambda value: x.op("QLinearConv", value, *rest, **attributes), last=last)


def conv_transpose(x: Composer) -> Value:
    """ConvTranspose whose amount of padding is an operand."""
    attributes = {name: x.attr(name) for name in (*WINDOW, "group", "output_padding")}
    attributes["pads"] = [int(n) for n in x.array(2).reshape(-1).tolist()] if x.has(2) else None
    return x.op("ConvTranspose", x[0], x[1], x.get(3), **attributes)


COMPOSITIONS: Mapping[str, Composition] = {
    "ConvTransposeWithDynamicPads": conv_transpose,
    "NhwcConv": convolution,
    "NhwcFusedConv": convolution,
    "NhwcMaxPool": max_pool,
    "QLinearConv": qlinear_conv,
}
