"""Converters of elementwise ops: arithmetic, comparison, activations, casts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from xdsl.ir import SSAValue

from irc.dialects.flow import tensor
from irc.dialects.types import is_float
from irc.frontends.onnx.external import dtype_of
from irc.frontends.onnx.node import Node, Unsupported, Value
from irc.ops.functions import POINTWISE

Converter = Callable[[Node], "SSAValue | Value | Sequence[SSAValue | Value]"]

NAMED: Mapping[str, str] = {
    operator: function.name for function in POINTWISE.values() for operator in function.onnx.split()
}
"""Operators that are one function of flow and no more."""

ROUNDING = ("ceil", "floor", "round")
VARIADIC: Mapping[str, str] = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


def scalar(node: Node, value: float, like: SSAValue) -> SSAValue:
    """Return a constant of the dtype of another value."""
    return node.b.scalar(value, tensor(like).dtype)


def widen(node: Node, x: SSAValue) -> SSAValue:
    """Cast half types to f32, in which chains of several functions are computed."""
    return node.b.cast(x, "f32") if tensor(x).dtype in ("f16", "bf16") else x


def convert_named(node: Node) -> SSAValue:
    """One function of flow, of all operands."""
    fn = NAMED[node.kind]
    if fn in ROUNDING and not is_float(tensor(node[0]).dtype):
        return node[0]
    return node.b.pointwise(fn, *(node[i] for i in range(POINTWISE[fn].arity)))


def convert_sign(node: Node) -> SSAValue:
    """Of NaN it is NaN; flow's sign is torch's, which is 0."""
    x, b = node[0], node.b
    sign = b.pointwise("sign", x)
    if not is_float(tensor(x).dtype):
        return sign
    return b.pointwise("where", b.pointwise("is_nan", x), x, sign)


def convert_variadic(node: Node) -> SSAValue:
    """Any number of operands, joined from the left."""
    return reduce(lambda a, b: node.b.pointwise(VARIADIC[node.kind], a, b), node.values())


def convert_mean(node: Node) -> SSAValue:
    """The mean of the operands."""
    values = node.values()
    total = reduce(lambda a, b: node.b.pointwise("add", a, b), values)
    return node.b.pointwise("div", total, scalar(node, len(values), total))


def convert_div(node: Node) -> SSAValue:
    """Integers divide towards zero."""
    fn = "div" if is_float(node.dtype()) else "trunc_div"
    return node.b.pointwise(fn, node[0], node[1])


def convert_mod(node: Node) -> SSAValue:
    """``fmod=1`` takes the sign of the dividend (C), else the divisor's (Python)."""
    return node.b.pointwise("fmod" if node.attr("fmod", 0) else "remainder", node[0], node[1])


def convert_pow(node: Node) -> SSAValue:
    """The result has the type of the base, whatever that of the exponent."""
    base, exponent = node[0], node[1]
    kinds = tensor(base).dtype, tensor(exponent).dtype
    if kinds[0] == kinds[1] or is_float(kinds[0]):
        return node.b.pointwise("pow", base, node.b.cast(exponent, kinds[0]))
    wide = kinds[1] if is_float(kinds[1]) else "i64"
    power = node.b.pointwise("pow", node.b.cast(base, wide), node.b.cast(exponent, wide))
    return node.b.cast(power, kinds[0])


def convert_shift(node: Node) -> SSAValue:
    """BitShift by its direction."""
    fns = {"LEFT": "shift_left", "RIGHT": "shift_right"}
    fn = fns[node.choice("direction", "", fns)]
    return node.b.pointwise(fn, node[0], node[1])


def convert_is_inf(node: Node) -> SSAValue:
    """IsInf, of either sign or one."""
    x, b = node[0], node.b
    infinite = b.pointwise("is_inf", x)
    for attribute, fn in (("detect_negative", "gt"), ("detect_positive", "lt")):
        if not node.attr(attribute, 1):
            infinite = b.pointwise("logical_and", infinite, b.pointwise(fn, x, scalar(node, 0, x)))
    return infinite


def convert_where(node: Node) -> SSAValue:
    """Choose elementwise."""
    return node.b.pointwise("where", node[0], node[1], node[2])


def convert_cast(node: Node) -> SSAValue:
    """Cast, and CastLike with the type of its second operand."""
    dtype = node.dtype(1) if node.kind == "CastLike" else dtype_of(int(node.attr("to")))
    x = node[0]
    if dtype == "i1" and tensor(x).dtype != "i1":
        return node.b.pointwise("ne", x, scalar(node, 0, x))
    return node.b.cast(x, dtype)


def convert_clip(node: Node) -> SSAValue:
    """Bounds are attributes before opset 11, then optional operands."""
    x, b = node[0], node.b
    if node.version < 11:
        low, high = node.attr("min"), node.attr("max")
        bounds = [None if v is None else scalar(node, v, x) for v in (low, high)]
    else:
        bounds = [node[i] if node.has(i) else None for i in (1, 2)]
    if bounds[0] is not None:
        x = b.pointwise("maximum", x, bounds[0])
    if bounds[1] is not None:
        x = b.pointwise("minimum", x, bounds[1])
    return x


def convert_leaky_relu(node: Node) -> SSAValue:
    """``x < 0 ? alpha x : x``."""
    x, b = node[0], node.b
    low = b.pointwise("mul", x, scalar(node, node.attr("alpha", 0.01), x))
    return b.pointwise("where", b.pointwise("lt", x, scalar(node, 0, x)), low, x)


def convert_prelu(node: Node) -> SSAValue:
    """``x < 0 ? slope x : x``; the slope broadcasts."""
    x, b = node[0], node.b
    low = b.pointwise("mul", x, node[1])
    return b.pointwise("where", b.pointwise("lt", x, scalar(node, 0, x)), low, x)


def exponential(node: Node, *, alpha: float, gamma: float = 1.0, inner: float = 1.0) -> SSAValue:
    """``gamma * (x > 0 ? x : alpha (exp(x / inner) - 1))``: Elu, Selu, Celu."""
    x, b = node[0], node.b
    scaled = x if inner == 1.0 else b.pointwise("div", x, scalar(node, inner, x))
    # Only the negative side reaches expm1: the other could overflow.
    clipped = b.pointwise("minimum", scaled, scalar(node, 0, x))
    low = b.pointwise("mul", b.pointwise("expm1", clipped), scalar(node, alpha, x))
    selected = b.pointwise("where", b.pointwise("gt", x, scalar(node, 0, x)), x, low)
    return selected if gamma == 1.0 else b.pointwise("mul", selected, scalar(node, gamma, x))


def convert_selu(node: Node) -> SSAValue:
    """Selu."""
    alpha = node.attr("alpha", 1.67326319217681884765625)
    return exponential(node, alpha=alpha, gamma=node.attr("gamma", 1.05070102214813232421875))


def convert_celu(node: Node) -> SSAValue:
    """Celu."""
    alpha = node.attr("alpha", 1.0)
    return exponential(node, alpha=alpha, inner=alpha)


def softplus(node: Node, x: SSAValue) -> SSAValue:
    """``log(1 + exp(x))``, written so that it does not overflow."""
    b = node.b
    small = b.pointwise("exp", b.pointwise("neg", b.pointwise("abs", x)))
    return b.pointwise("add", b.pointwise("relu", x), b.pointwise("log1p", small))


def convert_mish(node: Node) -> SSAValue:
    """``x tanh(softplus(x))``."""
    x = node[0]
    return node.b.pointwise("mul", x, node.b.pointwise("tanh", softplus(node, x)))


def convert_softsign(node: Node) -> SSAValue:
    """``x / (1 + |x|)``."""
    x, b = node[0], node.b
    return b.pointwise("div", x, b.pointwise("add", b.pointwise("abs", x), scalar(node, 1, x)))


def convert_thresholded_relu(node: Node) -> SSAValue:
    """``x > alpha ? x : 0``."""
    x, b = node[0], node.b
    above = b.pointwise("gt", x, scalar(node, node.attr("alpha", 1.0), x))
    return b.pointwise("where", above, x, scalar(node, 0, x))


def convert_shrink(node: Node) -> SSAValue:
    """``x < -lambd ? x + bias : x > lambd ? x - bias : 0``."""
    x, b = node[0], node.b
    bias, bound = node.attr("bias", 0.0), node.attr("lambd", 0.5)
    above = b.pointwise("gt", x, scalar(node, bound, x))
    high = b.pointwise(
        "where", above, b.pointwise("sub", x, scalar(node, bias, x)), scalar(node, 0, x)
    )
    below = b.pointwise("lt", x, scalar(node, -bound, x))
    return b.pointwise("where", below, b.pointwise("add", x, scalar(node, bias, x)), high)


def hard_sigmoid(node: Node, x: SSAValue, alpha: float, beta: float) -> SSAValue:
    """``clip(alpha x + beta, 0, 1)``."""
    b = node.b
    line = b.pointwise("add", b.pointwise("mul", x, scalar(node, alpha, x)), scalar(node, beta, x))
    return b.pointwise(
        "minimum", b.pointwise("maximum", line, scalar(node, 0, x)), scalar(node, 1, x)
    )


def convert_hard_swish(node: Node) -> SSAValue:
    """``x hard_sigmoid(x / 6 + 1 / 2)``."""
    x = node[0]
    return node.b.pointwise("mul", x, hard_sigmoid(node, x, 1 / 6, 0.5))


def convert_gelu(node: Node) -> SSAValue:
    """Gelu, exact or by tanh."""
    return node.b.pointwise("gelu_tanh" if node.attr("approximate") == "tanh" else "gelu", node[0])


def convert_swish(node: Node) -> SSAValue:
    """``x sigmoid(alpha x)``."""
    x, alpha = node[0], node.attr("alpha", 1.0)
    if alpha == 1.0:
        return node.b.pointwise("silu", x)
    inner = node.b.pointwise("mul", x, scalar(node, alpha, x))
    return node.b.pointwise("mul", x, node.b.pointwise("sigmoid", inner))


def convert_dropout(node: Node) -> list[SSAValue | Value]:
    """The identity outside training; the mask, if asked for, is all true."""
    if node.has(2) and bool(node.number(2)):
        ratio = node.number(1, 0.5)
        if ratio:
            raise Unsupported("dropout in training mode", "export the model for inference")
    results: list[SSAValue | Value] = [node.operand(0)]
    if len(node.proto.output) > 1:
        dtype = "i1" if node.version >= 10 else node.dtype()
        results.append(node.b.constant([1], node.shape(), dtype))
    return results


CONVERTERS: Mapping[str, Converter] = {
    **dict.fromkeys(NAMED, convert_named),
    **dict.fromkeys(VARIADIC, convert_variadic),
    "BitShift": convert_shift,
    "Cast": convert_cast,
    "CastLike": convert_cast,
    "Celu": convert_celu,
    "Clip": convert_clip,
    "Div": convert_div,
    "Dropout": convert_dropout,
    "Elu": lambda node: exponential(node, alpha=node.attr("alpha", 1.0)),
    "Gelu": convert_gelu,
    "HardSigmoid": lambda node: hard_sigmoid(
        node, node[0], node.attr("alpha", 0.2), node.attr("beta", 0.5)
    ),
    "HardSwish": convert_hard_swish,
    "Identity": lambda node: node.operand(0),
    "IsInf": convert_is_inf,
    "LeakyRelu": convert_leaky_relu,
    "Mean": convert_mean,
    "Mish": convert_mish,
    "Mod": convert_mod,
    "PRelu": convert_prelu,
    "Pow": convert_pow,
    "Selu": convert_selu,
    "Shrink": convert_shrink,
    "Sign": convert_sign,
    "Softplus": lambda node: softplus(node, node[0]),
    "Softsign": convert_softsign,
    "Swish": convert_swish,
    "ThresholdedRelu": convert_thresholded_relu,
    "Where": convert_where,
}
