"""ATen's elementwise ops."""

# ruff: noqa: A002 - arguments have the names of ATen's schemas
from __future__ import annotations

import math
from typing import Any

from xdsl.ir import SSAValue

from irc.dialects.flow import BroadcastOp, ReshapeOp, tensor
from irc.dialects.literals import ConstantOp
from irc.dialects.types import is_complex, is_smooth
from irc.frontends.torch.half_quotients import floored, rounds_first, truncated
from irc.frontends.torch.kinks import bounded
from irc.frontends.torch.lowering import Lowering, Operand, enter, is_float, lowers
from irc.frontends.torch.own_backward import is_differentiated
from irc.ops.functions import POINTWISE
from irc.ops.functions.record import Pointwise

# fmt: off
ON_BOOLS = {"mul": "logical_and", "bit_and": "logical_and", "bit_or": "logical_or",
            "bit_xor": "logical_xor", "maximum": "logical_or", "minimum": "logical_and"}
BITS = frozenset({"bit_and", "bit_or", "bit_xor", "shift_left", "shift_right"})
DIVISIONS = frozenset({"floor_div", "remainder", "fmod"})
ROUNDING = ("floor", "ceil", "round", "trunc")
# fmt: on


def _unary(fn: str) -> Any:
    def row(t: Lowering, self: SSAValue, **options: Any) -> SSAValue:
        if options.get("decimals"):
            t.decline()
        if t.dtype == "i1" and fn == "bit_not":
            return t.b.pointwise("logical_not", self)
        if t.dtype == "i1" and fn == "relu":
            t.decline()  # torch refuses it
        if fn in ROUNDING and not is_float(tensor(self).dtype):
            return self
        return t.pointwise(fn, self)

    return row


def _binary(fn: str) -> Any:
    def row(t: Lowering, self: Operand, other: Operand) -> SSAValue:
        if is_float(t.dtype) and fn in BITS:
            t.decline()  # torch refuses it
        if fn in DIVISIONS:
            _refuse_zero(t, other)
        if fn == "floor_div" and rounds_first(t, other):
            return floored(t, self, other)
        if fn in ("remainder", "fmod"):
            self, other = t.rounded(self), t.rounded(other)
        return t.pointwise(ON_BOOLS.get(fn, fn) if t.dtype == "i1" else fn, self, other)

    return row


def _compare(fn: str) -> Any:
    def row(t: Lowering, self: Operand, other: Operand) -> SSAValue:
        dtype = t.promoted(self, other)
        return t.b.pointwise(fn, t.value(self, dtype), t.value(other, dtype))

    return row


def _logical(fn: str) -> Any:
    def row(t: Lowering, self: Operand, other: Operand) -> SSAValue:
        return t.b.pointwise(fn, t.value(self, "i1"), t.value(other, "i1"))

    return row


def _row(function: Pointwise) -> Any:
    """Return the row of ops of ATen that are a function and no more."""
    if function.arity == 1:
        return _unary(function.name)
    if function.name.startswith("logical_"):
        return _logical(function.name)
    return _compare(function.name) if function.result == "bool" else _binary(function.name)


for _function in POINTWISE.values():
    for _name in _function.torch.split():
        enter({_name: _row(_function)}, "complex" if _function.complex else "real")


def _refuse_zero(t: Lowering, divisor: Operand) -> None:
    """Leave a division of integers to torch, which refuses zeros, unless it is by a known number.

    The number 0 is refused before it comes here.
    """
    if (
        isinstance(divisor, SSAValue)
        and not is_smooth(t.dtype)
        and not _has_no_zero(divisor, t.dtype)
    ):
        t.decline()


def _has_no_zero(divisor: SSAValue, dtype: str) -> bool:
    """True for a constant none of whose elements is zero in a dtype of integers."""
    while isinstance(divisor.owner, BroadcastOp | ReshapeOp):
        divisor = divisor.owner.operands[0]
    if not isinstance(divisor.owner, ConstantOp):
        return False
    bits = int(dtype[1:])
    return all(int(value) % 2**bits for value in divisor.owner.value)


def scaled(t: Lowering, value: Operand, alpha: Any) -> Operand:
    """Return ``alpha * value``."""
    return value if alpha == 1 else t.pointwise("mul", value, alpha)


@lowers("add", numbers="complex")
def add(t: Lowering, self: Operand, other: Operand, *, alpha: Any = 1) -> SSAValue:
    """Return ``self + alpha * other``."""
    if t.dtype == "i1":
        return t.pointwise("logical_or", self, other if alpha else False)
    return t.pointwise("add", self, scaled(t, other, alpha))


@lowers("sub", "subtract", numbers="complex")
def sub(t: Lowering, self: Operand, other: Operand, *, alpha: Any = 1) -> SSAValue:
    """Return ``self - alpha * other``."""
    return t.pointwise("sub", self, scaled(t, other, alpha))


@lowers("rsub", numbers="complex")
def rsub(t: Lowering, self: Operand, other: Operand, alpha: Any = 1) -> SSAValue:
    """Return ``other - alpha * self``."""
    return t.pointwise("sub", other, scaled(t, self, alpha))


@lowers("div", "divide", "true_divide", numbers="complex")
def div(
    t: Lowering, self: Operand, other: Operand, *, rounding_mode: str | None = None
) -> SSAValue:
    """Divide; the stated dtype is a float where no rounding is asked for."""
    fn = {None: "div", "floor": "floor_div", "trunc": "trunc_div"}[rounding_mode]
    _refuse_zero(t, other)
    if rounding_mode is not None and rounds_first(t, other):
        return (floored if rounding_mode == "floor" else truncated)(t, self, other)
    return t.pointwise(fn, self, other)


@lowers("logical_not")
def logical_not(t: Lowering, self: SSAValue) -> SSAValue:
    """Return where the value is zero."""
    return t.b.pointwise("logical_not", t.value(self, "i1"))


@lowers("square", numbers="complex")
def square(t: Lowering, self: SSAValue) -> SSAValue:
    """Return ``self * self``."""
    return t.pointwise("mul", self, self)


@lowers("pow.Tensor_Scalar", numbers="complex")
def power(t: Lowering, self: SSAValue, exponent: float) -> SSAValue:
    """Raise to a number; squares, cubes and roots are cheaper than pow."""
    if not is_smooth(t.dtype) and exponent < 0:
        t.decline()  # torch refuses it
    match exponent:
        case 1:
            return t.value(self, t.dtype)
        case 2:
            return t.pointwise("mul", self, self)
        case 3:
            return t.pointwise("mul", t.pointwise("mul", self, self), self)
        case 0.5:
            return t.pointwise("sqrt", self)
        case -0.5:
            return t.pointwise("rsqrt", self)
        case -1:
            return t.pointwise("reciprocal", self)
        case _:
            return t.pointwise("pow", self, t.rounded(exponent))


@lowers("pow.Tensor_Tensor", "pow.Scalar", numbers="complex")
def power_of(t: Lowering, self: Operand, exponent: Operand) -> SSAValue:
    """Raise to the power of a tensor."""
    return t.pointwise("pow", t.rounded(self), exponent)


@lowers("gelu")
def gelu(t: Lowering, self: SSAValue, *, approximate: str = "none") -> SSAValue:
    """Apply GELU, by erf or by tanh."""
    return t.pointwise("gelu_tanh" if approximate == "tanh" else "gelu", self)


@lowers("where", numbers="complex")
def where(t: Lowering, condition: SSAValue, self: Operand = 0, other: Operand = 0) -> SSAValue:
    """Choose between two operands."""
    chosen = [t.value(operand, t.dtype) for operand in (self, other)]
    return t.b.pointwise("where", t.value(condition, "i1"), *chosen)


@lowers("masked_fill", numbers="complex")
def masked_fill(t: Lowering, self: SSAValue, mask: SSAValue, value: Operand) -> SSAValue:
    """Put ``value`` where the mask is true."""
    return t.b.pointwise("where", mask, t.value(value, t.dtype), self)


@lowers("clamp", "clip")
def clamp(
    t: Lowering, self: SSAValue, min: Operand | None = None, max: Operand | None = None
) -> SSAValue:
    """Bound from below, then from above; NaN stays."""
    return bounded(t, self, min, max)


@lowers("hardtanh")
def hardtanh(t: Lowering, self: SSAValue, min_val: float = -1, max_val: float = 1) -> SSAValue:
    """Bound from both sides."""
    return bounded(t, self, min_val, max_val, ends=False)


@lowers("clamp_min")
def clamp_min(t: Lowering, self: SSAValue, min: Operand) -> SSAValue:
    """Bound from below."""
    return bounded(t, self, min, None)


@lowers("clamp_max")
def clamp_max(t: Lowering, self: SSAValue, max: Operand) -> SSAValue:
    """Bound from above."""
    return bounded(t, self, None, max)


@lowers("relu6")
def relu6(t: Lowering, self: SSAValue) -> SSAValue:
    """Clamp to [0, 6]."""
    return bounded(t, self, 0, 6, ends=False)


@lowers("leaky_relu")
def leaky_relu(t: Lowering, self: SSAValue, negative_slope: float = 0.01) -> SSAValue:
    """Scale the negative side."""
    return _negative_side(t, self, t.pointwise("mul", self, negative_slope))


@lowers("prelu", "_prelu_kernel")
def prelu(t: Lowering, self: SSAValue, weight: SSAValue) -> SSAValue:
    """Scale the negative side of each channel."""
    ndim, channels = tensor(self).ndim, tensor(weight).shape
    if len(channels) == 1 and ndim > 1:
        weight = t.b.reshape(weight, (1, channels[0], *(1,) * (ndim - 2)))
    elif not ndim:
        weight = t.b.reshape(weight, ())
    return _negative_side(t, self, t.pointwise("mul", self, weight))


@lowers("elu")
def elu(
    t: Lowering, self: SSAValue, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> SSAValue:
    """Exponential on the negative side."""
    x, zero = self, t.value(0, t.dtype)
    is_left = None
    if is_differentiated():  # NaN is right; the curve of large numbers has an infinite slope
        is_left = t.b.pointwise("le", self, zero)
        x = t.b.pointwise("where", is_left, self, zero)
    curve = t.pointwise("expm1", t.value(scaled(t, x, input_scale), t.dtype))
    left = t.value(scaled(t, curve, alpha * scale), t.dtype)
    right = t.value(scaled(t, self, scale), t.dtype)
    if is_left is not None:
        return t.b.pointwise("where", is_left, left, right)
    return t.b.pointwise("where", t.b.pointwise("gt", self, zero), right, left)


@lowers("hardsigmoid")
def hardsigmoid(t: Lowering, self: SSAValue) -> SSAValue:
    """Return ``clamp(x + 3, 0, 6) / 6``."""
    return t.pointwise("div", bounded(t, t.pointwise("add", self, 3), 0, 6, ends=False), 6)


@lowers("hardswish")
def hardswish(t: Lowering, self: SSAValue) -> SSAValue:
    """Return ``x * clamp(x + 3, 0, 6) / 6``."""
    gate = bounded(t, t.pointwise("add", self, 3), 0, 6, ends=False)
    value = t.pointwise("div", t.pointwise("mul", self, gate), 6)
    if not is_differentiated():
        return value
    is_high = t.b.pointwise("ge", self, t.value(3, t.dtype))
    is_low = t.b.pointwise("le", self, t.value(-3, t.dtype))
    value = t.b.pointwise("where", is_high, self, value)
    return t.b.pointwise("where", is_low, t.value(0, t.dtype), value)


@lowers("softplus")
def softplus(t: Lowering, self: SSAValue, beta: float = 1, threshold: float = 20) -> SSAValue:
    """Return ``log(1 + exp(beta x)) / beta``, linear above the threshold."""
    steep = t.value(scaled(t, self, beta), t.dtype)
    large = t.b.pointwise("gt", steep, t.value(threshold, t.dtype))
    if is_differentiated():  # the slope of an exponential that overflows is no number
        steep = t.b.pointwise("where", large, t.value(0, t.dtype), steep)
    curve = t.pointwise("log1p", t.pointwise("exp", steep))
    curve = curve if beta == 1 else t.pointwise("div", curve, beta)
    return t.b.pointwise("where", large, self, curve)


@lowers("log_sigmoid")
def log_sigmoid(t: Lowering, self: SSAValue) -> SSAValue:
    """Return ``min(x, 0) - log1p(exp(-abs(x)))``, which overflows nowhere."""
    decay = t.pointwise("exp", t.pointwise("neg", t.pointwise("abs", self)))
    return t.pointwise("sub", t.pointwise("minimum", self, 0), t.pointwise("log1p", decay))


@lowers("mish")
def mish(t: Lowering, self: SSAValue) -> SSAValue:
    """Return ``x * tanh(softplus(x))``."""
    return t.pointwise("mul", self, t.pointwise("tanh", softplus(t, self)))


@lowers("lerp", numbers="complex")
def lerp(t: Lowering, self: SSAValue, end: SSAValue, weight: Operand) -> SSAValue:
    """Return ``self + weight * (end - self)``, from the end that is nearer."""
    dtype = t.accumulating(t.dtype)

    def of(fn: str, *operands: Operand) -> SSAValue:
        return t.pointwise(fn, *operands, dtype=dtype)

    way = of("sub", end, self)
    from_first = of("add", self, of("mul", way, weight))
    if is_complex(dtype):
        return from_first
    from_last = of("sub", end, of("mul", way, of("sub", 1, weight)))
    if isinstance(weight, int | float):
        return t.value(from_first if abs(weight) < 0.5 else from_last, t.dtype)
    is_near = t.b.pointwise("lt", of("abs", weight), t.value(0.5, dtype))
    return t.value(t.b.pointwise("where", is_near, from_first, from_last), t.dtype)


@lowers("addcmul", numbers="complex")
def addcmul(
    t: Lowering, self: SSAValue, tensor1: SSAValue, tensor2: SSAValue, *, value: Any = 1
) -> SSAValue:
    """Return ``self + value * tensor1 * tensor2``."""
    return _added(t, "mul", self, (tensor1, tensor2), value)


@lowers("addcdiv", numbers="complex")
def addcdiv(
    t: Lowering, self: SSAValue, tensor1: SSAValue, tensor2: SSAValue, *, value: Any = 1
) -> SSAValue:
    """Return ``self + value * tensor1 / tensor2``."""
    return _added(t, "div", self, (tensor1, tensor2), value)


def _added(
    t: Lowering, fn: str, x: SSAValue, pair: tuple[SSAValue, SSAValue], value: Any
) -> SSAValue:
    """Add a product or quotient of two tensors times a number, which goes with the first."""
    dtype = t.accumulating(t.dtype)
    first: Operand = pair[0] if value == 1 else t.pointwise("mul", pair[0], value, dtype=dtype)
    more = t.pointwise(fn, first, pair[1], dtype=dtype)
    return t.value(t.pointwise("add", x, more, dtype=dtype), t.dtype)


@lowers("threshold")
def threshold(t: Lowering, self: SSAValue, threshold: float, value: float) -> SSAValue:
    """Replace what is at most the threshold: a nan stays."""
    low = t.b.pointwise("le", self, t.value(threshold, t.dtype))
    return t.b.pointwise("where", low, t.value(value, t.dtype), self)


@lowers("nan_to_num")
def nan_to_num(
    t: Lowering,
    self: SSAValue,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> SSAValue:
    """Replace NaN and, where numbers are given for them, infinities."""
    if not is_float(t.dtype) or posinf is None or neginf is None:
        t.decline()
    for bound, new in ((math.inf, posinf), (-math.inf, neginf)):
        is_bound = t.b.pointwise("eq", self, t.value(bound, t.dtype))
        self = t.b.pointwise("where", is_bound, t.value(new, t.dtype), self)
    return t.b.pointwise("where", t.b.pointwise("is_nan", self), t.value(nan or 0.0, t.dtype), self)


def _negative_side(t: Lowering, x: SSAValue, left: SSAValue) -> SSAValue:
    return t.b.pointwise("where", t.b.pointwise("gt", x, t.value(0, t.dtype)), x, left)


@lowers("isnan")
def isnan(t: Lowering, self: SSAValue) -> SSAValue:
    """Return where the value is NaN."""
    return t.b.pointwise("is_nan", self) if is_float(tensor(self).dtype) else t.full(False)


@lowers("isinf")
def isinf(t: Lowering, self: SSAValue) -> SSAValue:
    """Return where the value is infinite."""
    return t.b.pointwise("is_inf", self) if is_float(tensor(self).dtype) else t.full(False)


@lowers("isfinite")
def isfinite(t: Lowering, self: SSAValue) -> SSAValue:
    """Return where ``x - x`` is zero: it is NaN for infinities and NaN alone."""
    if not is_float(tensor(self).dtype):
        return t.full(True)
    return t.b.pointwise("eq", t.b.pointwise("sub", self, self), t.value(0, tensor(self).dtype))


@lowers("sgn")
def sgn(t: Lowering, self: SSAValue) -> SSAValue:
    """Return the sign; that of a complex number, its direction, is the library's."""
    return t.pointwise("sign", self)
