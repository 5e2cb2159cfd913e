"""Normalisation, computed in float32 and rounded once."""

from __future__ import annotations

from itertools import islice

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.values import ELEMENTS, HALF, Array


def _wide(x: Array) -> Array:
    return x.astype(np.float32) if x.dtype in HALF else x


def by_channel(value: Array, ndim: int) -> Array:
    """Shape a parameter of channels to broadcast over batch and places."""
    return value.reshape(1, -1, *[1] * (ndim - 2))


def _batch(call: Call) -> Array | tuple[Array, ...]:
    x, scale, bias, mean, variance = (_wide(v) for v in islice(call.inputs, 5))
    running, dtype = (mean, variance), call[0].dtype
    training = call.version >= 14 and call.attr("training_mode", 0)
    if training:
        axes = tuple(i for i in range(x.ndim) if i != 1)
        mean, variance = x.mean(axes), x.var(axes)
    root = np.sqrt(variance + np.float32(call.attr("epsilon", 1e-5)))
    normed = (x - by_channel(mean, x.ndim)) / by_channel(root, x.ndim)
    normed = (normed * by_channel(scale, x.ndim) + by_channel(bias, x.ndim)).astype(dtype)
    if not training:
        return normed
    keep = np.float32(call.attr("momentum", 0.9))
    moved = [
        old * keep + new * (1 - keep) for old, new in zip(running, (mean, variance), strict=True)
    ]
    return normed, *(m.astype(call[3].dtype) for m in moved)


def _instance(call: Call) -> Array:
    x = _wide(call[0])
    axes = tuple(range(2, x.ndim))
    normed = _standard(x, axes, call.attr("epsilon", 1e-5))
    normed = normed * by_channel(_wide(call[1]), x.ndim) + by_channel(_wide(call[2]), x.ndim)
    return normed.astype(call[0].dtype)


def _standard(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    mean = x.mean(axes, keepdims=True)
    variance = np.square(x - mean).mean(axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + np.asarray(epsilon, x.dtype))


def _group(call: Call) -> Array:
    x, count = _wide(call[0]), call.attr("num_groups")
    apart = x.reshape(x.shape[0], count, -1)
    normed = _standard(apart, (2,), call.attr("epsilon", 1e-5)).reshape(x.shape)
    scale, bias = _wide(call[1]), _wide(call[2])
    if call.version < 21 and scale.size == count:
        # Before opset 21 a scale is that of a group.
        scale, bias = (np.repeat(v, x.shape[1] // count) for v in (scale, bias))
    normed = normed * by_channel(scale, x.ndim) + by_channel(bias, x.ndim)
    return normed.astype(call[0].dtype)


def _layer(call: Call) -> tuple[Array, ...]:
    x, dtype = call[0], call[0].dtype
    stash = x.astype(ELEMENTS[call.attr("stash_type", 1)])
    first = call.attr("axis", -1) % x.ndim
    axes = tuple(range(first, x.ndim))
    mean = stash.mean(axes, keepdims=True)
    variance = np.square(stash - mean).mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(variance + np.asarray(call.attr("epsilon", 1e-5), stash.dtype))
    normed = ((stash - mean) * inverse).astype(dtype) * call[1]
    if call.has(2):
        normed = normed + call[2]
    return normed.astype(dtype), mean, inverse


def _root_mean_square(call: Call) -> Array:
    x = call[0]
    stash = x.astype(ELEMENTS[call.attr("stash_type", 1)])
    axes = tuple(range(call.attr("axis", -1) % x.ndim, x.ndim))
    square = np.square(stash).mean(axes, keepdims=True)
    root = np.sqrt(square + np.asarray(call.attr("epsilon", 1e-5), stash.dtype))
    return ((stash / root).astype(x.dtype) * call[1]).astype(call[1].dtype)


def _local_response(call: Call) -> Array:
    x, size = _wide(call[0]), call.attr("size")
    alpha, beta, bias = (
        call.attr(n, d) for n, d in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    # Further away than the last channel there is none, however large the size is.
    furthest = max(x.shape[1] - 1, 0)
    low, high = min((size - 1) // 2, furthest), min(size - 1 - (size - 1) // 2, furthest)
    squares = np.pad(np.square(x), [(0, 0), (low, high), *[(0, 0)] * (x.ndim - 2)])
    total = sum(squares[:, i : i + x.shape[1]] for i in range(low + 1 + high))
    return (x / (bias + alpha / size * total) ** beta).astype(call[0].dtype)


def _lp(call: Call) -> Array:
    x, axis, p = _wide(call[0]), call.attr("axis", -1), call.attr("p", 2)
    size = (
        np.abs(x).sum(axis, keepdims=True)
        if p == 1
        else np.sqrt(np.square(x).sum(axis, keepdims=True))
    )
    return np.where(size == 0, np.zeros((), x.dtype), x / size).astype(call[0].dtype)


def _mean_variance(call: Call) -> Array:
    x, axes = _wide(call[0]), tuple(call.attr("axes") or (0, 2, 3))
    mean = x.mean(axes, keepdims=True)
    deviation = np.sqrt(np.square(x).mean(axes, keepdims=True) - np.square(mean))
    return ((x - mean) / (deviation + np.float32(1e-9))).astype(call[0].dtype)


KERNELS: Kernels = {
    "BatchNormalization": _batch,
    "GroupNormalization": _group,
    "InstanceNormalization": _instance,
    "LRN": _local_response,
    "LayerNormalization": _layer,
    "LpNormalization": _lp,
    "MeanVarianceNormalization": _mean_variance,
    "RMSNormalization": _root_mean_square,
}
