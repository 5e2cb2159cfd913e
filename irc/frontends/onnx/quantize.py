"""Converters of quantization: pointwise arithmetic around a scale and a zero point."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import SSAValue

from irc.dialects.flow import tensor
from irc.dialects.windows import ConvolutionOp
from irc.frontends.onnx.elementwise import Converter, scalar
from irc.frontends.onnx.external import dtype_of
from irc.frontends.onnx.node import Node, Unsupported, check_axis, static
from irc.frontends.onnx.products import matmul, window

RANGES: Mapping[str, tuple[int, int]] = {
    "u8": (0, 255), "i8": (-128, 127), "i16": (-32768, 32767), "i32": (-(1 << 31), (1 << 31) - 1),
}  # fmt: skip


def spread(node: Node, value: SSAValue) -> SSAValue:
    """Shape a scale or zero point to broadcast against operand 0: one, one a slice, or blocks."""
    kind, shape = tensor(value), node.shape()
    block = int(node.attr("block_size", 0))
    if kind.ndim == 0 or kind.shape == (1,):
        # One scale has no axis: its default, 1, is none of a bias's.
        return node.b.reshape(value, ())
    axis = check_axis(int(node.attr("axis", 1)), max(len(shape), 1))
    if kind.ndim == 1 and not block:
        return node.b.reshape(value, [*kind.shape, *[1] * (len(shape) - axis - 1)])
    if not block:
        raise Unsupported(f"a scale of shape {list(map(str, kind.shape))}")
    apart = [*kind.shape[: axis + 1], 1, *kind.shape[axis + 1 :]]
    wide = node.b.broadcast(
        node.b.reshape(value, apart), [*kind.shape[: axis + 1], block, *kind.shape[axis + 1 :]]
    )
    size = kind.shape[axis] * block
    if size != shape[axis]:
        raise Unsupported(f"blocks of {block} in size {shape[axis]}")
    return node.b.reshape(wide, shape)


def quantize(
    node: Node, x: SSAValue, scale: SSAValue, zero: SSAValue | None, dtype: str
) -> SSAValue:
    """``clip(round(x / scale) + zero)``; rounding is to even."""
    if dtype not in RANGES:
        raise Unsupported(f"quantizing to {dtype}")
    b = node.b
    x, scale = b.cast(x, "f32"), b.cast(scale, "f32")
    quantized = b.pointwise("round", b.pointwise("div", x, scale))
    if zero is not None:
        quantized = b.pointwise("add", quantized, b.cast(zero, "f32"))
    low, high = RANGES[dtype]
    quantized = b.pointwise("maximum", quantized, scalar(node, low, quantized))
    return b.cast(b.pointwise("minimum", quantized, scalar(node, high, quantized)), dtype)


def dequantize(node: Node, x: SSAValue, scale: SSAValue, zero: SSAValue | None) -> SSAValue:
    """``(x - zero) * scale``, the difference in i32."""
    b, dtype = node.b, tensor(scale).dtype
    wide = b.cast(x, "i32")
    if zero is not None:
        wide = b.pointwise("sub", wide, b.cast(zero, "i32"))
    return b.pointwise("mul", b.cast(wide, dtype), scale)


def convert_quantize(node: Node) -> SSAValue:
    """QuantizeLinear; the zero point says the type."""
    dtype = node.dtype(2) if node.has(2) else "u8"
    if not node.has(2) and node.attr("output_dtype"):
        dtype = dtype_of(int(node.attr("output_dtype")))
    zero = spread(node, node[2]) if node.has(2) else None
    return quantize(node, node[0], spread(node, node[1]), zero, dtype)


def convert_dequantize(node: Node) -> SSAValue:
    """DequantizeLinear."""
    zero = spread(node, node[2]) if node.has(2) else None
    dequantized = dequantize(node, node[0], spread(node, node[1]), zero)
    wanted = node.attr("output_dtype")
    return node.b.cast(dequantized, dtype_of(int(wanted))) if wanted else dequantized


def convert_qlinear_matmul(node: Node) -> SSAValue:
    """A product of quantized matrices, quantized."""
    sides: list[SSAValue] = []
    for first in (0, 3):
        scale, zero = (node[first + i] for i in (1, 2))
        if first == 0 and tensor(scale).ndim == 1 and tensor(scale).shape != (1,):
            scale, zero = (node.b.reshape(v, [*tensor(v).shape, 1]) for v in (scale, zero))
        sides.append(dequantize(node, node[first], node.b.cast(scale, "f32"), zero))
    product = matmul(node, *sides)
    scale, zero = (_one(node, node[i]) for i in (6, 7))
    return quantize(node, product, scale, zero, node.dtype(7))


def convert_qlinear_conv(node: Node) -> SSAValue:
    """A convolution of quantized values, quantized; the bias counts in the product's scale."""
    b, ndim = node.b, node.ndim()
    x_scale, w_scale = (b.cast(node[i], "f32") for i in (1, 4))
    x = dequantize(node, node[0], _one(node, x_scale), _one(node, node[2]))
    sides = [_by_channel(node, value, ndim) for value in (w_scale, node[5])]
    operands = [x, dequantize(node, node[3], *sides)]
    if node.has(8):
        scale = b.pointwise("mul", _one(node, x_scale), _one(node, w_scale))
        operands.append(b.pointwise("mul", b.cast(node[8], "f32"), scale))
    kernel = static(node.shape(3)[2:])
    static(node.shape()[2:])
    attrs = window(node, kernel, node.shape()[2:])
    groups: int = node.attr("group", 1)
    convolved = b.op(ConvolutionOp, operands, result=None, **attrs, groups=groups)
    return quantize(node, convolved, _one(node, node[6]), _one(node, node[7]), node.dtype(7))


def _by_channel(node: Node, value: SSAValue, ndim: int) -> SSAValue:
    """Shape one value, or one for each output channel, to broadcast against a weight."""
    value = _one(node, value)
    shape = tensor(value).shape
    return node.b.reshape(value, [*shape, *[1] * (ndim - 1)]) if shape else value


def convert_dynamic_quantize(node: Node) -> list[SSAValue]:
    """u8, with the scale and zero point of the values at hand."""
    b, x = node.b, node[0]
    zero = scalar(node, 0, x)
    dims = range(node.ndim())
    high = b.pointwise("maximum", b.reduce("max", x, dims, keep_dims=False), zero)
    low = b.pointwise("minimum", b.reduce("min", x, dims, keep_dims=False), zero)
    scale = b.pointwise("div", b.pointwise("sub", high, low), scalar(node, 255, x))
    point = b.pointwise("round", b.pointwise("div", b.pointwise("sub", zero, low), scale))
    point = b.pointwise("minimum", b.pointwise("maximum", point, zero), scalar(node, 255, x))
    return [quantize(node, x, scale, point, "u8"), scale, b.cast(point, "u8")]


def _one(node: Node, value: SSAValue) -> SSAValue:
    return node.b.reshape(value, ()) if tensor(value).shape == (1,) else value


CONVERTERS: Mapping[str, Converter] = {
    "DequantizeLinear": convert_dequantize,
    "DynamicQuantizeLinear": convert_dynamic_quantize,
    "QLinearConv": convert_qlinear_conv,
    "QLinearMatMul": convert_qlinear_matmul,
    "QuantizeLinear": convert_quantize,
}
