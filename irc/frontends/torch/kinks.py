"""Where functions have no slope, or an endless one, a step takes the gradient that eager takes.

A row says what an op computes, and the derivative follows from that. At a bound of a clamp, at the
length of a vector of zeros and between equal elements that leaves a choice, or no number at all. So
in what is trained such ops are written in a form whose derivative is the one that torch chose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.ir import SSAValue

from irc.dialects.flow import tensor
from irc.dialects.indexing import GatherOp
from irc.dialects.searches import ArgReduceOp
from irc.frontends.torch.lowering import Lowering, Operand, is_float
from irc.frontends.torch.own_backward import is_differentiated


def root(t: Lowering, x: SSAValue) -> SSAValue:
    """Return the root of what is not below 0, with no gradient at 0: of a norm, a deviation."""
    return power(t, x, 0.5)


def power(t: Lowering, x: SSAValue, exponent: float) -> SSAValue:
    """Return a power of what is not below 0, with no gradient at 0."""

    def raised(base: SSAValue) -> SSAValue:
        if exponent == 0.5:
            return t.b.pointwise("sqrt", base)
        return t.b.pointwise("pow", base, t.value(exponent, tensor(x).dtype))

    if not is_differentiated():
        return raised(x)
    zero, one = (t.value(number, tensor(x).dtype) for number in (0, 1))
    is_zero = t.b.pointwise("eq", x, zero)
    return t.b.pointwise("where", is_zero, zero, raised(t.b.pointwise("where", is_zero, one, x)))


def bounded(
    t: Lowering, x: Operand, low: Operand | None, high: Operand | None, *, ends: bool = True
) -> SSAValue:
    """Bound from below, then from above; NaN stays, and has no gradient in what is trained.

    That is what eager's vectors do; the last few elements of a tensor, one by one, have others.

    Args:
        t: the op at hand.
        x: what is bounded.
        low: its lower bound.
        high: its upper bound.
        ends: whether a gradient passes at the bounds themselves.
    """
    bounds = [bound for bound in (low, high) if bound is not None]
    if not is_differentiated() or not is_float(t.dtype):
        for fn, bound in (("maximum", low), ("minimum", high)):
            x = x if bound is None else t.pointwise(fn, x, bound)
        return t.value(x, t.dtype)
    wide = t.widened("maximum", t.dtype, bounds)
    value = t.value(x, wide)
    is_number = t.b.pointwise("eq", value, value)
    for fn, bound in (("lt" if ends else "le", low), ("gt" if ends else "ge", high)):
        if bound is None:
            continue
        limit = t.value(bound, wide)
        if isinstance(bound, SSAValue):  # NaN of a bound stays, too
            is_number = t.b.pointwise("logical_and", is_number, t.b.pointwise("eq", limit, limit))
        value = t.b.pointwise("where", t.b.pointwise(fn, value, limit), limit, value)
    value = t.b.pointwise("where", is_number, value, t.value(math.nan, wide))
    return t.b.cast(value, t.dtype)


def extreme_of_all(t: Lowering, x: SSAValue, fn: str, dims: Sequence[int]) -> SSAValue:
    """Return the extreme of a tensor: those that are it share the gradient, or what is NaN does."""
    dtype = tensor(x).dtype
    if not is_differentiated() or not is_float(dtype):
        return t.b.reduce(fn, x, dims, keep_dims=False)
    is_number = t.b.pointwise("eq", x, x)
    zero, one = t.value(0, dtype), t.value(1, dtype)
    least = t.value(-math.inf if fn == "max" else math.inf, dtype)
    extreme = t.b.reduce(fn, t.b.pointwise("where", is_number, x, least), dims, keep_dims=False)
    # The mean of what is NaN has the slopes that are wanted. Halves cannot count far.
    wide = t.accumulating(dtype)
    left = t.b.cast(t.b.pointwise("where", is_number, zero, x), wide)
    ones = t.b.cast(t.b.pointwise("where", is_number, zero, one), wide)
    count = t.b.reduce("sum", ones, dims, keep_dims=False)
    is_clean = t.b.pointwise("eq", count, t.value(0, wide))
    count = t.b.pointwise("maximum", count, t.value(1, wide))
    mean = t.b.pointwise("div", t.b.reduce("sum", left, dims, keep_dims=False), count)
    return t.b.pointwise("where", is_clean, extreme, t.b.cast(mean, dtype))


def extreme_along(
    t: Lowering, x: SSAValue, fn: str, dim: int, keepdim: bool
) -> list[SSAValue | None]:
    """Return the extremes along a dim and where they are: the gradient goes to those alone."""
    is_trained = is_differentiated() and is_float(tensor(x).dtype)
    if not is_trained and not t.read[1]:
        return [t.b.reduce(fn, x, [dim], keep_dims=keepdim), None]
    index = t.b.op(ArgReduceOp, [x], fn=fn, dim=dim, keep_dims=is_trained or keepdim)
    if not is_trained:
        return [t.b.reduce(fn, x, [dim], keep_dims=keepdim), index]
    value = t.b.op(GatherOp, [x, index], dim=dim)
    if keepdim:
        return [value, index]
    return [t.b.reshape(value, t.results[0].shape), t.b.reshape(index, t.results[1].shape)]
