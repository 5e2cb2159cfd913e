"""ATen's reductions, running sums, softmax, sorting."""

# ruff: noqa: A002 - arguments have the names of ATen's schemas
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from xdsl.ir import SSAValue

from irc.dialects.flow import tensor
from irc.dialects.scans import CumulativeOp
from irc.dialects.searches import ArgReduceOp, SortOp, TopKOp
from irc.dialects.size import Dim
from irc.dialects.types import is_float
from irc.frontends.torch.kinks import extreme_along, extreme_of_all, root
from irc.frontends.torch.lowering import (
    Lowering,
    count,
    dim_of,
    dims_of,
    enter,
    lowers,
    number,
    ranked,
)

Dims = int | Sequence[int] | None


def total(t: Lowering, x: SSAValue, dims: Sequence[int], keepdim: bool) -> SSAValue:
    """Add up dims."""
    return t.b.reduce("sum", x, dims, keep_dims=keepdim) if dims else x


def mean_of(t: Lowering, x: SSAValue, dims: Sequence[int], keepdim: bool) -> SSAValue:
    """Return the mean over dims, in the dtype of ``x``."""
    dtype = tensor(x).dtype
    return t.b.pointwise(
        "div", total(t, x, dims, keepdim), t.value(count(tensor(x).shape, dims), dtype)
    )


def centred(t: Lowering, x: SSAValue, dims: Sequence[int]) -> tuple[SSAValue, SSAValue, SSAValue]:
    """Return the mean and ``x - mean``, and the sum of its squares, with dims kept.

    Two passes: ``mean(x*x) - mean(x)**2`` cancels where the mean is large against the spread.
    """
    mean = mean_of(t, x, dims, True)
    off = t.b.pointwise("sub", x, mean)
    return mean, off, total(t, t.b.pointwise("mul", off, off), dims, True)


@lowers("sum", numbers="complex")
def sum_(
    t: Lowering, self: SSAValue, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> SSAValue:
    """Add up; integers as int64."""
    return total(t, t.b.cast(self, t.dtype), dims_of(dim, tensor(self).ndim), keepdim)


@lowers("mean", numbers="complex")
def mean(
    t: Lowering, self: SSAValue, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> SSAValue:
    """Add up and divide; half types in float32."""
    wide = t.b.cast(self, t.accumulating(t.dtype))
    return t.b.cast(mean_of(t, wide, dims_of(dim, tensor(self).ndim), keepdim), t.dtype)


def _extreme(fn: str) -> Any:
    def row(t: Lowering, self: SSAValue, dim: Dims = None, keepdim: bool = False) -> SSAValue:
        dims = dims_of(dim, tensor(self).ndim)
        if not dims:
            return self
        if any(tensor(self).shape[dim] == 0 for dim in dims):
            t.decline()  # torch knows no extreme of nothing
        if tensor(self).dtype == "i1":
            return t.b.reduce("any" if fn == "max" else "all", self, dims, keep_dims=keepdim)
        return t.b.reduce(fn, self, dims, keep_dims=keepdim)

    return row


def _extreme_along(fn: str) -> Any:
    def row(t: Lowering, self: SSAValue, dim: int, keepdim: bool = False) -> list[SSAValue | None]:
        ndim = tensor(self).ndim
        if tensor(self).dtype == "i1":
            t.decline()
        if not ndim:
            return [self, t.b.constant([0], (), "i64")]
        dim = dim_of(dim, ndim)
        return extreme_along(t, self, fn, dim, keepdim)

    return row


def _arg_extreme(fn: str) -> Any:
    def row(t: Lowering, self: SSAValue, dim: int | None = None, keepdim: bool = False) -> SSAValue:
        kind = tensor(self)
        if kind.dtype == "i1":
            t.decline()  # torch refuses it
        if not kind.ndim:
            return t.full(0)
        if dim is None:
            self, dim = t.b.reshape(self, (count(kind.shape, range(kind.ndim)),)), 0
        dim = dim_of(dim, kind.ndim)
        indices = t.b.op(ArgReduceOp, [self], fn=fn, dim=dim, keep_dims=keepdim)
        return t.b.reshape(indices, t.shape)

    return row


def _logical_reduction(fn: str) -> Any:
    def row(t: Lowering, self: SSAValue, dim: Dims = None, keepdim: bool = False) -> SSAValue:
        dims = dims_of(dim, tensor(self).ndim)
        mask = t.value(self, "i1")
        return t.b.cast(t.b.reduce(fn, mask, dims, keep_dims=keepdim) if dims else mask, t.dtype)

    return row


def _extreme_of_all(fn: str) -> Any:
    plain = _extreme(fn)

    def row(t: Lowering, self: SSAValue) -> SSAValue:
        kind = tensor(self)
        if not kind.ndim or kind.dtype == "i1" or 0 in kind.shape:
            return plain(t, self)
        return extreme_of_all(t, self, fn, range(kind.ndim))

    return row


enter({
    "amax": _extreme("max"), "amin": _extreme("min"),
    "max.default": _extreme_of_all("max"), "min.default": _extreme_of_all("min"),
    "max.dim": _extreme_along("max"), "min.dim": _extreme_along("min"),
    "argmax": _arg_extreme("max"), "argmin": _arg_extreme("min"), "any": _logical_reduction("any"),
    "all": _logical_reduction("all"),
})  # fmt: skip


@lowers("prod", numbers="complex")
def prod(
    t: Lowering, self: SSAValue, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> SSAValue:
    """Multiply."""
    dims = dims_of(dim, tensor(self).ndim)
    x = t.b.cast(self, t.dtype)
    return t.b.reduce("prod", x, dims, keep_dims=keepdim) if dims else x


def _variance(
    t: Lowering, x: SSAValue, dim: Dims, correction: float, keepdim: bool
) -> tuple[SSAValue, SSAValue]:
    dims = dims_of(dim, tensor(x).ndim)
    size = number(count(tensor(x).shape, dims))
    if not dims or not is_float(t.dtype):
        t.decline()
    wide = t.b.cast(x, t.accumulating(t.dtype))
    mean, _, squares = centred(t, wide, dims)
    # Far from zero the mean is rounded by more than values differ. What is left of it adds up: its
    # square, as often as there are values, is no spread (Chan, Golub and LeVeque, 1983, 1.7). It is
    # written as another difference, so that each is fused with its own sum, and stored by none.
    left = total(t, t.b.pointwise("add", wide, t.b.pointwise("neg", mean)), dims, True)
    none = t.b.pointwise("div", t.b.pointwise("mul", left, left), t.value(size, tensor(left).dtype))
    squares = t.b.pointwise("sub", squares, none)
    # Of too few values torch divides by zero too: NaN, or infinity.
    freedom = t.value(max(size - correction, 0), tensor(squares).dtype)
    spread = t.b.pointwise("div", squares, freedom)
    return tuple(  # type: ignore[return-value]  # two of them
        t.b.cast(value if keepdim else t.b.reshape(value, t.shape), t.dtype)
        for value in (spread, mean)
    )


def _correction(args: Sequence[Any], options: dict[str, Any]) -> tuple[Dims, float, bool]:
    """Return (dim, correction, keepdim) of the overloads of var and std."""
    if "correction" in options:
        correction = options["correction"]
        return (
            (args[0] if args else options.get("dim")),
            1.0 if correction is None else correction,
            options.get("keepdim", False),
        )
    if args and isinstance(args[0], bool):
        return None, float(args[0]), False
    settings: tuple[Any, ...] = (*args, *(None, True, False)[len(args) :])
    dim, unbiased, keepdim = settings
    return dim, float(unbiased), options.get("keepdim", keepdim)


@lowers("var")
def var(t: Lowering, self: SSAValue, *args: Any, **options: Any) -> SSAValue:
    """Return the mean of the squared distances from the mean."""
    return _variance(t, self, *_correction(args, options))[0]


@lowers("std")
def std(t: Lowering, self: SSAValue, *args: Any, **options: Any) -> SSAValue:
    """Return the root of the variance."""
    return root(t, _variance(t, self, *_correction(args, options))[0])


@lowers("var_mean")
def var_mean(t: Lowering, self: SSAValue, *args: Any, **options: Any) -> list[SSAValue]:
    """Return variance and mean."""
    return list(_variance(t, self, *_correction(args, options)))


def shifted(t: Lowering, x: SSAValue, dim: int) -> tuple[SSAValue, SSAValue]:
    """Return ``x - max(x)`` and its exponential, which cannot overflow."""
    off = t.b.pointwise("sub", x, t.b.reduce("max", x, [dim], keep_dims=True))
    return off, t.b.pointwise("exp", off)


@lowers("softmax", "_softmax")
def softmax(t: Lowering, self: SSAValue, dim: int, dtype: Any = None, **options: Any) -> SSAValue:
    """Return ``exp(x - max) / sum``, in float32 for half types."""
    if not is_float(t.dtype):
        t.decline()  # torch refuses it
    x = t.b.cast(ranked(t, self), t.accumulating(t.dtype))
    dim = dim_of(dim, tensor(x).ndim)
    _, powers = shifted(t, x, dim)
    probabilities = t.b.pointwise("div", powers, total(t, powers, [dim], True))
    return t.b.cast(t.b.reshape(probabilities, t.shape), t.dtype)


@lowers("_safe_softmax")
def safe_softmax(t: Lowering, self: SSAValue, dim: int, dtype: Any = None) -> SSAValue:
    """Return softmax, and zeros for a row of nothing but -inf, where softmax is NaN."""
    probabilities = softmax(t, self, dim)
    masked = t.b.pointwise("eq", self, t.value(-math.inf, tensor(self).dtype))
    row = t.b.reduce("all", masked, [dim_of(dim, len(t.shape))], keep_dims=True)
    return t.b.pointwise("where", row, t.value(0, t.dtype), probabilities)


def log_softmax_of(t: Lowering, x: SSAValue, dim: int) -> SSAValue:
    """Return ``x - max - log(sum(exp(x - max)))``."""
    off, powers = shifted(t, x, dim)
    return t.b.pointwise("sub", off, t.b.pointwise("log", total(t, powers, [dim], True)))


@lowers("log_softmax", "_log_softmax")
def log_softmax(
    t: Lowering, self: SSAValue, dim: int, dtype: Any = None, **options: Any
) -> SSAValue:
    """Return the logarithm of softmax."""
    if not is_float(t.dtype):
        t.decline()  # torch refuses it
    x = t.b.cast(ranked(t, self), t.accumulating(t.dtype))
    logarithms = log_softmax_of(t, x, dim_of(dim, tensor(x).ndim))
    return t.b.cast(t.b.reshape(logarithms, t.shape), t.dtype)


@lowers("logsumexp")
def logsumexp(t: Lowering, self: SSAValue, dim: Dims, keepdim: bool = False) -> SSAValue:
    """Return ``log(sum(exp(x)))``, shifted by the largest."""
    x = t.b.cast(ranked(t, self), t.accumulating(t.dtype))
    dims = dims_of(dim, tensor(x).ndim)
    top = t.b.reduce("max", x, dims, keep_dims=True)
    # An infinite maximum would give inf - inf.
    finite = t.b.pointwise("ne", t.b.pointwise("abs", top), t.value(math.inf, tensor(top).dtype))
    top = t.b.pointwise("where", finite, top, t.value(0, tensor(top).dtype))
    powers = t.b.pointwise("exp", t.b.pointwise("sub", x, top))
    logarithms = t.b.pointwise("add", t.b.pointwise("log", total(t, powers, dims, True)), top)
    return t.b.cast(t.b.reshape(logarithms, t.shape), t.dtype)


def _running(fn: str) -> Any:
    def row(t: Lowering, self: SSAValue, dim: int, *, dtype: Any = None) -> SSAValue:
        x = t.b.cast(self, t.dtype)
        if not t.shape:
            return x
        dim = dim_of(dim, len(t.shape))
        return t.b.op(CumulativeOp, [x], fn=fn, dim=dim, exclusive=False, reverse=False)

    return row


enter({"cumsum": _running("sum"), "cumprod": _running("prod")}, numbers="complex")


def _sorted(t: Lowering, self: SSAValue, dim: int, descending: bool) -> list[SSAValue]:
    if not tensor(self).ndim:
        t.decline()
    return t.b.ops(SortOp, [self], dim=dim_of(dim, tensor(self).ndim), descending=descending)


@lowers("sort.default")
def sort(t: Lowering, self: SSAValue, dim: int = -1, descending: bool = False) -> list[SSAValue]:
    """Sort, stably."""
    return _sorted(t, self, dim, descending)


@lowers("sort.stable")
def sort_stable(
    t: Lowering, self: SSAValue, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> list[SSAValue]:
    """Sort, stably."""
    return _sorted(t, self, dim, descending)


@lowers("argsort.default")
def argsort(t: Lowering, self: SSAValue, dim: int = -1, descending: bool = False) -> SSAValue:
    """Return the order that sorts."""
    return _sorted(t, self, dim, descending)[1]


@lowers("topk")
def topk(
    t: Lowering, self: SSAValue, k: Dim, dim: int = -1, largest: bool = True, sorted: bool = True
) -> list[SSAValue]:
    """Return the k largest or smallest, in order."""
    if not tensor(self).ndim:
        t.decline()
    return t.b.ops(TopKOp, [self], k=number(k), dim=dim_of(dim, tensor(self).ndim), largest=largest)
