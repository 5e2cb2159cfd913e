"""Quantised operators of ONNX Runtime: the float op between a dequantised and a quantised side."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from irc.frontends.onnx.contrib.compose import Composer, Composition
from irc.frontends.onnx.node import Value


def wide(x: Composer, first: int) -> Value:
    """Dequantise operand ``first`` by the scale and zero point that follow it."""
    return x.op("DequantizeLinear", x[first], x[first + 1], x.get(first + 2))


def narrow(x: Composer, value: Value, scale: int) -> Value:
    """Quantise by the scale and zero point at the end of the operands, to the input's type."""
    zero = x.get(scale + 1)
    if zero is None:
        dtype = {"u8": 2, "i8": 3}[x[0].dtype]
        return x.op("QuantizeLinear", value, x[scale], output_dtype=dtype)
    return x.op("QuantizeLinear", value, x[scale], zero)


def binary(kind: str, x: Composer) -> Value:
    """A, its scale and zero, B, its scale and zero, scale and zero of the result."""
    return narrow(x, x.op(kind, wide(x, 0), wide(x, 3)), 6)


def unary(kind: str, names: tuple[str, ...], x: Composer) -> Value:
    """X, its scale and zero, scale and zero of the result."""
    attributes: dict[str, Any] = {name: x.attr(name) for name in names}
    return narrow(x, x.op(kind, wide(x, 0), **attributes), 3)


POOLING = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")


def pooled(kind: str, names: tuple[str, ...], x: Composer) -> Value:
    """A pooling, of which the channels may come last."""
    value, last = wide(x, 0), x.attr("channels_last", 0)
    n = len(x[0].shape)
    if last:
        value = x.op("Transpose", value, perm=[0, n - 1, *range(1, n - 1)])
    value = x.op(kind, value, **{name: x.attr(name) for name in names})
    if last:
        value = x.op("Transpose", value, perm=[0, *range(2, n), 1])
    return narrow(x, value, 3)


def concat(x: Composer) -> Value:
    """Scale and zero of the result, then of each part: values, scale and zero."""
    parts = [wide(x, i) for i in range(2, len(x.node.inputs), 3)]
    joined = x.op("Concat", *parts, axis=x.attr("axis"))
    return x.op("QuantizeLinear", joined, x[0], x[1])


def where(x: Composer) -> Value:
    """A condition, then two sides."""
    return narrow(x, x.op("Where", x[0], wide(x, 1), wide(x, 4)), 7)


def gemm(x: Composer) -> Value:
    """QGemm: the bias is in the product's own scale; without a scale the result is a float."""
    names = ("alpha", "transA", "transB")
    axis = 0 if x.attr("transB", 0) else 1
    b = x.op("DequantizeLinear", x[3], x[4], x.get(5), axis=axis)
    product = x.op("Gemm", wide(x, 0), b, None, **{name: x.attr(name) for name in names})
    if x.has(6):
        scale = x.op("Mul", x.op("Mul", x[1], x[4]), x.number(x.attr("alpha", 1.0), x[1]))
        product = x.op("Add", product, x.op("Mul", x.op("CastLike", x[6], x[1]), scale))
    return narrow(x, product, 7) if x.has(7) else product


def integer_product(
    x: Composer, a: Value, b: Value, scale: Value, zeros: list[Value | None], bias: Value | None
) -> Value:
    """Multiply integers exactly, then scale."""
    whole = x.op("MatMulInteger", a, b, *zeros)
    product = x.op("Mul", x.op("Cast", whole, to=1), scale)
    return product if bias is None else x.op("Add", product, bias)


def dynamic_matmul(x: Composer) -> Value:
    """DynamicQuantizeMatMul: the left side is quantised by its own range."""
    a, scale, zero = x.ops("DynamicQuantizeLinear", x[0], outputs=3)
    return integer_product(x, a, x[1], x.op("Mul", scale, x[2]), [zero, x.get(3)], x.get(4))


def integer_to_float(x: Composer) -> Value:
    """MatMulIntegerToFloat."""
    return integer_product(x, x[0], x[1], x.op("Mul", x[2], x[3]), [x.get(4), x.get(5)], x.get(6))


def mul_integer(x: Composer) -> Value:
    """MulInteger: A, its zero point, B, its zero point; exact."""
    sides = [x.op("Cast", x[i], to=6) for i in (0, 2)]
    for i in (0, 1):
        if x.has(2 * i + 1):
            sides[i] = x.op("Sub", sides[i], x.op("Cast", x[2 * i + 1], to=6))
    return x.op("Mul", *sides)


def sum_integer(x: Composer) -> Value:
    """ReduceSumInteger: of 8-bit integers, in 32 bits."""
    axes = x.ints(*x.attr("axes"))
    return x.op("ReduceSum", x.op("Cast", x[0], to=6), axes, keepdims=x.attr("keepdims", 1))


def mean(x: Composer) -> Value:
    """QLinearReduceMean."""
    axes = x.attr("axes")
    axes_operand = None if axes is None else x.ints(*axes)
    average = x.op("ReduceMean", wide(x, 0), axes_operand, keepdims=x.attr("keepdims", 1))
    return narrow(x, average, 3)


COMPOSITIONS: Mapping[str, Composition] = {
    "DynamicQuantizeMatMul": dynamic_matmul,
    "MatMulIntegerToFloat": integer_to_float,
    "MulInteger": mul_integer,
    "QGemm": gemm,
    "QLinearAdd": partial(binary, "Add"),
    "QLinearAveragePool": partial(pooled, "AveragePool", POOLING),
    "QLinearConcat": concat,
    "QLinearGlobalAveragePool": partial(pooled, "GlobalAveragePool", ()),
    "QLinearLeakyRelu": partial(unary, "LeakyRelu", ("alpha",)),
    "QLinearMul": partial(binary, "Mul"),
    "QLinearReduceMean": mean,
    "QLinearSigmoid": partial(unary, "Sigmoid", ()),
    "QLinearSoftmax": partial(unary, "Softmax", ("axis",)),
    "QLinearWhere": where,
    "ReduceSumInteger": sum_integer,
}
