"""ATen's normalisations and losses, in primitives; half types compute in float32."""

# ruff: noqa: A002 - arguments have the names of ATen's schemas
from __future__ import annotations

from collections.abc import Sequence

import torch
from xdsl.ir import SSAValue

from irc.dialects.flow import tensor
from irc.dialects.size import Dim
from irc.frontends.torch.lowering import Lowering, count, lowers, number
from irc.frontends.torch.reductions import centred, mean_of, total
from irc.runtime.dtypes import dtypes

Maybe = SSAValue | None


def scale_and_shift(t: Lowering, x: SSAValue, weight: Maybe, bias: Maybe) -> SSAValue:
    """Return ``x * weight + bias``, each if given, in the dtype of ``x``."""
    dtype = tensor(x).dtype
    _require_one_width(t, x, weight, bias)
    if weight is not None:
        x = t.b.pointwise("mul", x, t.b.cast(weight, dtype))
    return x if bias is None else t.b.pointwise("add", x, t.b.cast(bias, dtype))


def _require_one_width(t: Lowering, *operands: Maybe) -> None:
    """Leave float64 among others to torch, which refuses it; half types take float32's weights."""
    dtypes = {tensor(x).dtype for x in operands if x is not None}
    if "f64" in dtypes and len(dtypes) > 1:
        t.decline()


def _require_fitting(t: Lowering, *held: Maybe) -> None:
    """Leave weights and statistics to torch that it refuses: of several dtypes, of another than x.

    Half types take float32's.
    """
    dtypes = {tensor(x).dtype for x in held if x is not None}
    fits = {t.dtype} if t.accumulating(t.dtype) == t.dtype else {t.dtype, "f32"}
    if not t.autocast and (len(dtypes) > 1 or not dtypes <= fits):
        t.decline()


def normalised(
    t: Lowering, x: SSAValue, dims: Sequence[int], eps: float
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """Return ``(x - mean) * rstd``, mean and rstd; the statistics keep their dims."""
    mean, off, squares = centred(t, x, dims)
    rstd = inverse_root(
        t,
        t.b.pointwise("div", squares, t.value(count(tensor(x).shape, dims), tensor(x).dtype)),
        eps,
    )
    return t.b.pointwise("mul", off, rstd), mean, rstd


def inverse_root(t: Lowering, variance: SSAValue, eps: float) -> SSAValue:
    """Return ``1 / sqrt(variance + eps)``."""
    return t.b.pointwise(
        "rsqrt", t.b.pointwise("add", variance, t.value(eps, tensor(variance).dtype))
    )


@lowers("native_layer_norm")
def native_layer_norm(
    t: Lowering,
    input: SSAValue,
    normalized_shape: Sequence[Dim],
    weight: Maybe,
    bias: Maybe,
    eps: float,
) -> list[SSAValue]:
    """Normalise the last dims."""
    _require_fitting(t, weight, bias)
    ndim = tensor(input).ndim
    x = t.b.cast(input, t.accumulating(t.dtype))
    y, mean, rstd = normalised(t, x, range(ndim - len(normalized_shape), ndim), eps)
    return [t.b.cast(scale_and_shift(t, y, weight, bias), t.dtype), mean, rstd]


@lowers("layer_norm")
def layer_norm(
    t: Lowering,
    input: SSAValue,
    normalized_shape: Sequence[Dim],
    weight: Maybe = None,
    bias: Maybe = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> SSAValue:
    """Normalise the last dims."""
    return native_layer_norm(t, input, normalized_shape, weight, bias, eps)[0]


@lowers("rms_norm")
def rms_norm(
    t: Lowering,
    input: SSAValue,
    normalized_shape: Sequence[Dim],
    weight: Maybe = None,
    eps: float | None = None,
) -> SSAValue:
    """Divide the last dims by the root of their mean square."""
    ndim, dtype = tensor(input).ndim, t.accumulating(t.dtype)
    eps = (
        torch.finfo(dtypes()[t.dtype if eps is None and t.dtype == dtype else dtype]).eps
        if eps is None
        else eps
    )
    x = t.b.cast(input, dtype)
    squares = mean_of(
        t, t.b.pointwise("mul", x, x), range(ndim - len(normalized_shape), ndim), True
    )
    y = t.b.pointwise("mul", x, inverse_root(t, squares, eps))
    return t.b.cast(scale_and_shift(t, y, weight, None), t.dtype)


def _grouped(
    t: Lowering, x: SSAValue, groups: int, weight: Maybe, bias: Maybe, eps: float
) -> tuple[SSAValue, SSAValue, SSAValue]:
    _require_fitting(t, weight, bias)
    batch, channels, *rest = shape = tensor(x).shape
    split = (batch, groups, number(channels) // groups, *rest)
    wide = t.b.cast(t.b.reshape(x, split), t.accumulating(t.dtype))
    y, mean, rstd = normalised(t, wide, range(2, len(split)), eps)
    weight, bias = (per_channel(t, w, len(shape)) for w in (weight, bias))
    y = scale_and_shift(t, t.b.reshape(y, shape), weight, bias)
    return t.b.cast(y, t.dtype), mean, rstd


def per_channel(t: Lowering, x: Maybe, ndim: int) -> Maybe:
    """Shape a vector over channels so that it broadcasts along dim 1."""
    return None if x is None else t.b.reshape(x, (1, tensor(x).shape[0], *(1,) * (ndim - 2)))


@lowers("group_norm")
def group_norm(
    t: Lowering,
    input: SSAValue,
    num_groups: int,
    weight: Maybe = None,
    bias: Maybe = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> SSAValue:
    """Normalise groups of channels."""
    return _grouped(t, input, num_groups, weight, bias, eps)[0]


@lowers("native_group_norm")
def native_group_norm(
    t: Lowering,
    input: SSAValue,
    weight: Maybe,
    bias: Maybe,
    N: Dim,
    C: Dim,
    HxW: Dim,
    group: int,
    eps: float,
) -> list[SSAValue]:
    """Normalise groups of channels, and give the statistics."""
    y, *statistics = _grouped(t, input, group, weight, bias, eps)
    return [
        y,
        *(t.b.reshape(s, kind.shape) for s, kind in zip(statistics, t.results[1:], strict=True)),
    ]


@lowers("instance_norm")
def instance_norm(
    t: Lowering,
    input: SSAValue,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> SSAValue:
    """Normalise each channel of each example."""
    if not use_input_stats:
        return _batch_norm(t, input, weight, bias, running_mean, running_var, eps)
    return _grouped(t, input, number(tensor(input).shape[1]), weight, bias, eps)[0]


def _batch_norm(
    t: Lowering, x: SSAValue, weight: Maybe, bias: Maybe, mean: Maybe, var: Maybe, eps: float
) -> SSAValue:
    dtype, ndim = t.accumulating(t.dtype), tensor(x).ndim
    if mean is None or var is None:
        t.decline()
    _require_fitting(t, weight, bias, mean, var)
    rstd = inverse_root(t, t.b.cast(var, dtype), eps)
    # One scale and one shift per channel: two operations per element instead of four.
    scale = rstd if weight is None else t.b.pointwise("mul", t.b.cast(weight, dtype), rstd)
    drift = t.b.pointwise("mul", t.b.cast(mean, dtype), scale)
    shift = (
        t.b.pointwise("neg", drift)
        if bias is None
        else t.b.pointwise("sub", t.b.cast(bias, dtype), drift)
    )
    scale, shift = per_channel(t, scale, ndim), per_channel(t, shift, ndim)
    return t.b.cast(scale_and_shift(t, t.b.cast(x, dtype), scale, shift), t.dtype)


@lowers("batch_norm")
def batch_norm(
    t: Lowering,
    input: SSAValue,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> SSAValue:
    """Normalise channels by running statistics, or by those of this batch where there are none."""
    if training:
        return _batch_statistics(t, input, weight, bias, eps)[0]
    return _batch_norm(t, input, weight, bias, running_mean, running_var, eps)


@lowers("_native_batch_norm_legit_no_training")
def batch_norm_inference(
    t: Lowering,
    input: SSAValue,
    weight: Maybe,
    bias: Maybe,
    running_mean: SSAValue,
    running_var: SSAValue,
    momentum: float,
    eps: float,
) -> list[SSAValue]:
    """Normalise channels by running statistics; the saved statistics are empty."""
    y = _batch_norm(t, input, weight, bias, running_mean, running_var, eps)
    return [y, *(t.b.constant([0], kind.shape, kind.dtype) for kind in t.results[1:])]


def _batch_statistics(
    t: Lowering, x: SSAValue, weight: Maybe, bias: Maybe, eps: float
) -> tuple[SSAValue, SSAValue, SSAValue]:
    _require_fitting(t, weight, bias)
    ndim = tensor(x).ndim
    dims = [dim for dim in range(ndim) if dim != 1]
    y, mean, rstd = normalised(t, t.b.cast(x, t.accumulating(t.dtype)), dims, eps)
    y = scale_and_shift(t, y, per_channel(t, weight, ndim), per_channel(t, bias, ndim))
    return t.b.cast(y, t.dtype), mean, rstd


@lowers("_native_batch_norm_legit.no_stats")
def batch_norm_alone(
    t: Lowering,
    input: SSAValue,
    weight: Maybe,
    bias: Maybe,
    training: bool,
    momentum: float,
    eps: float,
) -> list[SSAValue]:
    """Normalise channels by this batch, and give its statistics, which a gradient may read."""
    y, *statistics = _batch_statistics(t, input, weight, bias, eps)
    return [
        y,
        *(t.b.reshape(s, kind.shape) for s, kind in zip(statistics, t.results[1:], strict=True)),
    ]


@lowers("_native_batch_norm_legit_functional")
def batch_norm_training(
    t: Lowering,
    input: SSAValue,
    weight: Maybe,
    bias: Maybe,
    running_mean: SSAValue,
    running_var: SSAValue,
    training: bool,
    momentum: float,
    eps: float,
) -> list[SSAValue]:
    """Normalise channels by this batch, and move the running statistics towards it."""
    if not training:
        y = _batch_norm(t, input, weight, bias, running_mean, running_var, eps)
        empty = [t.b.constant([0], kind.shape, kind.dtype) for kind in t.results[1:3]]
        return [y, *empty, running_mean, running_var]
    _require_fitting(t, weight, bias, running_mean, running_var)
    kind = tensor(input)
    dims = [dim for dim in range(kind.ndim) if dim != 1]
    size = number(count(kind.shape, dims))
    wide = t.b.cast(input, t.accumulating(t.dtype))
    mean, off, squares = centred(t, wide, dims)
    rstd = inverse_root(t, t.b.pointwise("div", squares, t.value(size, tensor(wide).dtype)), eps)
    y = t.b.pointwise("mul", off, rstd)
    y = scale_and_shift(t, y, per_channel(t, weight, kind.ndim), per_channel(t, bias, kind.ndim))
    # Running variance is unbiased, the normalising one is not (torch.nn.BatchNorm2d).
    unbiased = t.b.pointwise("div", squares, t.value(max(size - 1, 1), tensor(wide).dtype))
    saved = [t.b.reshape(s, k.shape) for s, k in zip((mean, rstd), t.results[1:3], strict=True)]
    moved = [
        _moved(t, old, new, momentum)
        for old, new in ((running_mean, mean), (running_var, unbiased))
    ]
    return [t.b.cast(y, t.dtype), *saved, *moved]


def _moved(t: Lowering, old: SSAValue, new: SSAValue, momentum: float) -> SSAValue:
    dtype = tensor(old).dtype
    new = t.b.cast(t.b.reshape(new, tensor(old).shape), dtype)
    kept = t.b.pointwise("mul", old, t.value(1 - momentum, dtype))
    return t.b.pointwise("add", kept, t.b.pointwise("mul", new, t.value(momentum, dtype)))


def reduced(t: Lowering, loss: SSAValue, reduction: int) -> SSAValue:
    """Reduce a loss: 0 is none, 1 mean, 2 sum."""
    dims = range(tensor(loss).ndim)
    if reduction == 0 or not dims:
        return t.b.cast(loss, t.dtype)
    return t.b.cast(
        mean_of(t, loss, dims, False) if reduction == 1 else total(t, loss, dims, False), t.dtype
    )


@lowers("mse_loss")
def mse_loss(t: Lowering, self: SSAValue, target: SSAValue, reduction: int = 1) -> SSAValue:
    """Return the squared difference."""
    off = t.pointwise("sub", self, target, dtype=t.accumulating(t.dtype))
    return reduced(t, t.b.pointwise("mul", off, off), reduction)


@lowers("l1_loss")
def l1_loss(t: Lowering, self: SSAValue, target: SSAValue, reduction: int = 1) -> SSAValue:
    """Return the absolute difference."""
    off = t.pointwise("sub", self, target, dtype=t.accumulating(t.dtype))
    return reduced(t, t.b.pointwise("abs", off), reduction)
