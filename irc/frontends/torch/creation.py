"""ATen's tensors from nothing: fills, ranges, random numbers."""

# ruff: noqa: A002 - arguments have the names of ATen's schemas
from __future__ import annotations

import math
from typing import Any

from xdsl.ir import SSAValue

from irc.dialects.flow import tensor
from irc.dialects.literals import RandomOp
from irc.dialects.size import Dim
from irc.dialects.types import TensorType, is_float
from irc.frontends.torch.lowering import Lowering, Operand, enter, lowers, number
from irc.frontends.torch.shapes import iota

ZEROS = ("zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty", "empty_strided",
         "new_empty_strided", "empty_permuted", "zero")  # fmt: skip
ONES = ("ones", "ones_like", "new_ones")


def _zeros(t: Lowering, *shape: Any, **options: Any) -> SSAValue:
    return t.full(0)


def _ones(t: Lowering, *shape: Any, **options: Any) -> SSAValue:
    return t.full(1)


enter(dict.fromkeys(ZEROS, _zeros), numbers="complex")
enter(dict.fromkeys(ONES, _ones), numbers="complex")


@lowers("full", "full_like", numbers="complex")
def full(t: Lowering, size: Any, fill_value: Operand, **options: Any) -> SSAValue:
    """Fill with one number."""
    return t.full(fill_value)


@lowers("new_full", numbers="complex")
def new_full(
    t: Lowering, self: SSAValue, size: Any, fill_value: Operand, **options: Any
) -> SSAValue:
    """Fill with one number, in a dtype that may be that of another tensor."""
    return t.full(fill_value)


@lowers("scalar_tensor", numbers="complex")
def scalar_tensor(t: Lowering, s: Operand, **options: Any) -> SSAValue:
    """Make a tensor of a number."""
    return t.full(s)


WHOLE_BITS = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}
"""Whole numbers of so many bits are numbers of a float type."""


@lowers("arange")
def arange(t: Lowering, *bounds: Any, **options: Any) -> SSAValue:
    """Return ``start + i * step``; what is rounded, as torch does vector by vector, is torch's."""
    start, step = (bounds[0] if len(bounds) > 1 else 0), (bounds[2] if len(bounds) > 2 else 1)
    if _is_rounded(start, step, t.shape[0], t.dtype):
        t.decline()
    whole = isinstance(start, int) and isinstance(step, int) and t.dtype in ("f32", "f64")
    index = iota(t, t.shape[0], "f64" if is_float(t.dtype) and not whole else t.dtype)
    dtype = tensor(index).dtype
    if step != 1:
        index = t.b.pointwise("mul", index, t.value(step, dtype))
    if start != 0:
        index = t.b.pointwise("add", index, t.value(start, dtype))
    return t.b.cast(index, t.dtype)


def _is_rounded(start: Any, step: Any, count: Dim, dtype: str) -> bool:
    """True where not all of some numbers are numbers of their dtype; of open sizes not asked."""
    known = all(isinstance(n, int | float) for n in (start, step, count))
    if not is_float(dtype) or not known:
        return False
    if not (math.isfinite(start) and math.isfinite(step)):
        return True
    unit = max(float(n).as_integer_ratio()[1] for n in (start, step))
    return max(abs(start), abs(start + count * step)) * unit > 1 << WHOLE_BITS[dtype]


@lowers("linspace")
def linspace(t: Lowering, start: Operand, end: Operand, steps: Any, **options: Any) -> SSAValue:
    """Return evenly spaced numbers, counted from the end that is nearer.

    Each is what torch's loop on the CPU gives, ``start + step * i`` as it is compiled there: with
    one rounding in float32, where float64 holds the product; with one after each operation in half
    types. In float64, torch itself computes it. Between integers the step is a float64, and the
    bounds are integers first: torch's own decomposition rounds them at the end.
    """
    count = number(t.shape[0])
    first, last = t.value(start, t.dtype), t.value(end, t.dtype)
    if count == 1:
        return t.b.broadcast(first, t.shape)
    if t.dtype == "f64":
        t.decline()
    wide = "f32" if t.dtype in ("f16", "bf16") else "f64"

    def rounded(fn: str, a: SSAValue, b: SSAValue) -> SSAValue:
        value = t.b.pointwise(fn, a, b)
        return t.b.cast(t.b.cast(value, t.dtype), wide) if wide == "f32" else value

    def counted(index: SSAValue) -> SSAValue:
        return t.b.cast(t.b.cast(index, t.dtype), wide) if wide == "f32" else t.b.cast(index, wide)

    span = t.value(count - 1, t.dtype if is_float(t.dtype) else wide)
    if t.dtype == "f32":
        step = t.b.pointwise("div", t.b.pointwise("sub", last, first), span)
        first, last, step = (t.b.cast(value, wide) for value in (first, last, step))
    else:
        first, last, span = (t.b.cast(value, wide) for value in (first, last, span))
        step = rounded("div", rounded("sub", last, first), span)
    index = iota(t, count)
    back = t.b.pointwise("sub", t.value(count - 1, "i64"), index)
    left, right = (rounded("mul", step, counted(i)) for i in (index, back))
    numbers = t.b.pointwise(
        "where",
        t.b.pointwise("lt", index, t.value(count // 2, "i64")),
        t.b.pointwise("add", first, left),
        t.b.pointwise("sub", last, right),
    )
    return t.b.cast(numbers, t.dtype)


@lowers("eye", numbers="complex")
def eye(t: Lowering, n: Any, m: Any = None, **options: Any) -> SSAValue:
    """Return where row and column are equal."""
    rows, columns = t.shape
    same = t.b.pointwise("eq", t.b.reshape(iota(t, rows), (rows, 1)), iota(t, columns))
    return t.b.cast(same, t.dtype)


def random(t: Lowering, distribution: str, dtype: str | None = None) -> SSAValue:
    """Draw numbers in the result's shape; each op has a stream of its own."""
    kind = TensorType.of(t.shape, dtype or t.dtype)
    seed, stream = t.random()
    return t.b.op(RandomOp, [seed], result=kind, distribution=distribution, stream=stream)


def _uniform(t: Lowering, *shape: Any, **options: Any) -> SSAValue:
    return random(t, "uniform")


def _normal(t: Lowering, *shape: Any, **options: Any) -> SSAValue:
    return random(t, "normal")


enter(dict.fromkeys(("rand", "rand_like"), _uniform))
enter(dict.fromkeys(("randn", "randn_like"), _normal))


@lowers("bernoulli.default")
def bernoulli(t: Lowering, self: SSAValue, **options: Any) -> SSAValue:
    """Return 1 with the probability that each element gives."""
    return t.b.cast(t.b.pointwise("lt", random(t, "uniform", tensor(self).dtype), self), t.dtype)


def kept(t: Lowering, p: float) -> SSAValue:
    """Return a mask that is true with probability ``1 - p``."""
    return t.b.pointwise("ge", random(t, "uniform", "f32"), t.value(p, "f32"))


def dropped(t: Lowering, x: SSAValue, mask: SSAValue, p: float) -> SSAValue:
    """Zero what is not in the mask, and scale the rest up."""
    if p == 1:
        return t.full(0)
    bigger = t.pointwise("mul", x, 1 / (1 - p))
    return t.b.pointwise("where", mask, bigger, t.value(0, t.dtype))


@lowers("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")
def dropout(t: Lowering, input: SSAValue, p: float, train: bool) -> SSAValue:
    """Drop elements while training; otherwise nothing."""
    return t.decline() if train and p else input


@lowers("dropout.default")
def plain_dropout(t: Lowering, input: SSAValue, p: float, train: bool) -> SSAValue:
    """Drop elements while training; otherwise nothing."""
    return dropped(t, input, kept(t, p), p) if train and p else input


@lowers("native_dropout")
def native_dropout(t: Lowering, input: SSAValue, p: float, train: bool | None) -> list[SSAValue]:
    """Drop elements, and give the mask for backward."""
    if not (train and p):
        return [input, t.b.constant([True], t.shape, "i1")]
    mask = kept(t, p)
    return [dropped(t, input, mask, p), mask]
