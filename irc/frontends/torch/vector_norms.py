"""ATen's norms of vectors: of any order."""

# ruff: noqa: A002 - arguments have the names of ATen's schemas
from __future__ import annotations

import math
from typing import Any

from xdsl.ir import SSAValue

from irc.dialects.flow import tensor
from irc.frontends.torch.kinks import power, root
from irc.frontends.torch.lowering import Lowering, dims_of, is_float, lowers, ranked
from irc.frontends.torch.own_backward import is_differentiated
from irc.frontends.torch.reductions import Dims, total


@lowers("linalg_vector_norm", "norm")
def vector_norm(
    t: Lowering,
    self: SSAValue,
    ord: Any = 2,
    dim: Dims = None,
    keepdim: bool = False,
    **options: Any,
) -> SSAValue:
    """Return ``sum(|x| ** p) ** (1 / p)``; its limits for p of 0 (a count) and of +-infinity."""
    if not is_float(tensor(self).dtype):
        t.decline()
    order = 2.0 if ord is None else float(ord)
    x = t.b.cast(ranked(t, self), t.accumulating(t.dtype))
    dims = dims_of(dim, tensor(x).ndim)
    norm = t.b.reshape(_norm(t, x, order, dims), t.shape)
    return t.b.cast(norm, t.dtype)


def _norm(t: Lowering, x: SSAValue, order: float, dims: tuple[int, ...]) -> SSAValue:
    dtype = tensor(x).dtype
    size = t.b.pointwise("abs", x)
    if math.isinf(order):
        if is_differentiated():
            return _extreme(t, x, "max" if order > 0 else "min", dims)
        return t.b.reduce("max" if order > 0 else "min", size, dims, keep_dims=True)
    if order == 0:
        some = t.b.pointwise("ne", x, t.value(0, dtype))
        return total(t, t.b.cast(some, dtype), dims, True)
    if order == 1:
        return total(t, size, dims, True)
    if order == 2:
        return root(t, total(t, t.b.pointwise("mul", x, x), dims, True))
    if order < 1 and is_differentiated():
        return _of_low_order(t, x, order, dims)
    powers = (
        power(t, size, order)
        if 0 < order < 1
        else t.b.pointwise("pow", size, t.value(order, dtype))
    )
    return power(t, total(t, powers, dims, True), 1 / order)


def _of_low_order(t: Lowering, x: SSAValue, order: float, dims: tuple[int, ...]) -> SSAValue:
    """Return a norm of an order below 1 with eager's slopes, which are 0 at zeros."""
    zero, size = t.value(0, tensor(x).dtype), t.b.pointwise("abs", x)

    def power_of(base: SSAValue, exponent: float) -> SSAValue:
        return t.b.pointwise("pow", base, t.value(exponent, tensor(x).dtype))

    norm = power_of(total(t, power_of(size, order), dims, True), 1 / order)
    slope = t.b.pointwise("where", t.b.pointwise("eq", x, zero), zero, power_of(size, order - 1))
    slope = t.b.pointwise("mul", t.b.pointwise("sign", x), slope)
    slope = t.b.pointwise("mul", slope, power_of(norm, 1 - order))
    before = total(t, t.b.pointwise("mul", x, t.b.pointwise("detach", slope)), dims, True)
    return t.b.pointwise("written", before, norm)


def _extreme(t: Lowering, x: SSAValue, fn: str, dims: tuple[int, ...]) -> SSAValue:
    """Return the largest or smallest size; where one is NaN, it is that, with no gradient."""
    zero, nan = (t.value(number, tensor(x).dtype) for number in (0, math.nan))
    is_nan = t.b.pointwise("ne", x, x)
    size = t.b.pointwise("where", is_nan, zero, t.b.pointwise("abs", x))
    some = t.b.reduce("max", t.b.cast(is_nan, tensor(x).dtype), dims, keep_dims=True)
    norm = t.b.reduce(fn, size, dims, keep_dims=True)
    return t.b.pointwise("where", t.b.pointwise("gt", some, zero), nan, norm)
