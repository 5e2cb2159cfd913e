"""Fused layers: activations with a bias, residual norms, matrix products with more in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from irc.frontends.onnx.contrib.compose import Composer, Composition
from irc.frontends.onnx.node import Value

Results = Sequence[Value | None]


def gelu(x: Composer, approximate: str = "none") -> Value:
    """Gelu of the operand, plus a bias where there is one."""
    value = x.op("Add", x[0], x[1]) if x.has(1) else x[0]
    return x.op("Gelu", value, approximate=approximate)


def quick_gelu(x: Composer) -> Value:
    """``x sigmoid(alpha x)``."""
    scaled = x.op("Mul", x[0], x.number(x.attr("alpha", 1.702), x[0]))
    return x.op("Mul", x[0], x.op("Sigmoid", scaled))


def skip_norm(x: Composer) -> Results:
    """The norm of a sum, and the sum."""
    total = x.op("Add", x[0], x[1])
    if x.has(4):
        total = x.op("Add", total, x[4])
    y, mean, inverse = x.ops(
        "LayerNormalization", total, x[2], x.get(3), outputs=3, axis=-1,
        epsilon=x.attr("epsilon", 1e-12),
    )  # fmt: skip
    return [y, mean, inverse, total]


def simplified_norm(x: Composer) -> Results:
    """RMSNormalization under its older name."""
    epsilon, axis = x.attr("epsilon", 1e-5), x.attr("axis", -1)
    return [x.op("RMSNormalization", x[0], x[1], axis=axis, epsilon=epsilon), None]


def skip_simplified_norm(x: Composer) -> Results:
    """RMSNormalization of a sum, and the sum."""
    total = x.op("Add", x[0], x[1])
    if x.has(3):
        total = x.op("Add", total, x[3])
    epsilon = x.attr("epsilon", 1e-12)
    return [x.op("RMSNormalization", total, x[2], axis=-1, epsilon=epsilon), None, None, total]


def fused_matmul(x: Composer) -> Value:
    """A product of matrices, each transposed or not, times a number."""
    if x.attr("transBatchA", 0) or x.attr("transBatchB", 0):
        raise x.unsupported("a transposed batch dim")
    left = "...ki" if x.attr("transA", 0) else "...ik"
    right = "...jk" if x.attr("transB", 0) else "...kj"
    if left == "...ik" and right == "...kj":
        product = x.op("MatMul", x[0], x[1])
    else:
        product = x.op("Einsum", x[0], x[1], equation=f"{left},{right}->...ij")
    alpha = x.attr("alpha", 1.0)
    return product if alpha == 1.0 else x.op("Mul", product, x.number(alpha, product))


def activated(x: Composer, value: Value) -> Value:
    """Apply the activation that attributes name."""
    kind, numbers = x.attr("activation", ""), list(x.attr("activation_params") or [])
    names = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Clip": ("min", "max")}
    if kind == "Clip":
        low, high = (x.number(n, value) for n in numbers)
        return x.op("Clip", value, low, high)
    parameters = dict(zip(names.get(kind, ()), numbers, strict=False))
    if kind not in ("", "Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "HardSwish"):
        raise x.unsupported(f"activation {kind!r}")
    return x.op(kind, value, **parameters) if kind else value


def fused_conv(x: Composer) -> Value:
    """Convolution, a sum with another tensor, an activation."""
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    convolved = x.op("Conv", x[0], x[1], x.get(2), **{name: x.attr(name) for name in names})
    if x.has(3):
        convolved = x.op("Add", convolved, x[3])
    return activated(x, convolved)


def fused_gemm(x: Composer) -> Value:
    """Gemm and an activation."""
    names = ("alpha", "beta", "transA", "transB")
    product = x.op("Gemm", x[0], x[1], x.get(2), **{name: x.attr(name) for name in names})
    kind = {"activation": x.attr("activation", "")}
    parameters = {n: x.attr(f"activation_{n}") for n in ("alpha", "beta")}
    if kind["activation"] not in ("", "Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid"):
        raise x.unsupported(f"activation {kind['activation']!r}")
    return x.op(kind["activation"], product, **parameters) if kind["activation"] else product


def bias_softmax(x: Composer) -> Value:
    """Softmax of a sum."""
    return x.op("Softmax", x.op("Add", x[0], x[1]), axis=x.attr("axis", -1))


def embeddings(x: Composer) -> Results:
    """Rows of three tables, summed and normalised; and how many positions of each row count."""
    words = x.op("Gather", x[2], x[0], axis=0)
    if x.has(8):
        places = x[8]
    else:
        steps = x.op("Gather", x.op("Shape", x[0]), x.ints(1), axis=0)
        zero, one = (x.op("Squeeze", x.ints(n)) for n in (0, 1))
        places = x.op("Range", zero, x.op("Squeeze", steps), one)
    total = x.op("Add", words, x.op("Gather", x[3], places, axis=0))
    if x.has(1):
        total = x.op("Add", total, x.op("Gather", x[4], x[1], axis=0))
    epsilon = x.attr("epsilon", 1e-12)
    y = x.op("LayerNormalization", total, x[5], x[6], axis=-1, epsilon=epsilon)
    if x.has(7):
        count = x.op("ReduceSum", x.op("Cast", x[7], to=6), x.ints(1), keepdims=0)
    else:
        batch = x.op("Gather", x.op("Shape", x[0]), x.ints(0), axis=0)
        count = x.op("Cast", x.op("Expand", x.ints(0), batch), to=6)
    return [y, count, total]


def same(kind: str, x: Composer) -> Value:
    """An op that is ONNX's own under another domain."""
    operands = [x.get(i) for i in range(len(x.node.inputs))]
    return x.op(kind, *operands, **x.node.attributes)


COMPOSITIONS: Mapping[str, Composition] = {
    "BiasGelu": gelu,
    "BiasSoftmax": bias_softmax,
    "DequantizeLinear": partial(same, "DequantizeLinear"),
    "EmbedLayerNormalization": embeddings,
    "FastGelu": partial(gelu, approximate="tanh"),
    "FusedConv": fused_conv,
    "FusedGemm": fused_gemm,
    "FusedMatMul": fused_matmul,
    "GatherND": partial(same, "GatherND"),
    "Gelu": gelu,
    "Pad": partial(same, "Pad"),
    "QuantizeLinear": partial(same, "QuantizeLinear"),
    "QuickGelu": quick_gelu,
    "Range": partial(same, "Range"),
    "SimplifiedLayerNormalization": simplified_norm,
    "SkipLayerNormalization": skip_norm,
    "SkipSimplifiedLayerNormalization": skip_simplified_norm,
    "TransposeMatMul": fused_matmul,
    "Trilu": partial(same, "Trilu"),
}
