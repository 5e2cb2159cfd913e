"""Pooling over windows and over whole images, and its inverse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernel, Kernels
from irc.runtime.onnx_ops.convolution import padding
from irc.runtime.onnx_ops.values import HALF, Array, is_float


class Windows:
    """The windows of a node over a tensor: ``of(x, fill)`` is (n, c, places..., elements)."""

    def __init__(self, call: Call) -> None:
        x, self.kernel = call[0], list(call.attr("kernel_shape"))
        n = len(self.kernel)
        self.strides = call.attr("strides") or [1] * n
        self.dilations = call.attr("dilations") or [1] * n
        self.reach = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]
        self.low, self.high = padding(call, x.shape[2:], self.reach, self.strides)
        self.counts = [self._count(call, i, size) for i, size in enumerate(x.shape[2:])]

    def _count(self, call: Call, i: int, size: int) -> int:
        span = size + self.low[i] + self.high[i] - self.reach[i]
        if not call.attr("ceil_mode", 0):
            return span // self.strides[i] + 1
        count = -(-span // self.strides[i]) + 1
        # A window that would begin in the padding behind the input is none.
        return count - ((count - 1) * self.strides[i] >= size + self.low[i])

    def of(self, x: Array, fill: Any) -> Array:
        """Return the elements of each window, the padding filled."""
        n = len(self.kernel)
        more = [
            max(0, (c - 1) * s + r - size - lo)
            for c, s, r, size, lo in zip(
                self.counts, self.strides, self.reach, x.shape[2:], self.low, strict=True
            )
        ]
        padded = np.pad(
            x, [(0, 0), (0, 0), *zip(self.low, more, strict=True)],
            constant_values=np.asarray(fill, x.dtype),
        )  # fmt: skip
        views = np.lib.stride_tricks.sliding_window_view(padded, self.reach, tuple(range(2, 2 + n)))
        # Views all the way: of what dilation skips, nothing is copied.
        starts = tuple(slice(0, c * s, s) for c, s in zip(self.counts, self.strides, strict=True))
        inner = tuple(slice(None, None, d) for d in self.dilations)
        views = views[(slice(None), slice(None), *starts, *inner)]
        return views.reshape(*views.shape[: 2 + n], -1)

    def inside(self, x: Array, padded: bool) -> Array:
        """Return 1 for elements that an average counts: of the input, or of its padding too."""
        ones = np.ones((1, 1, *x.shape[2:]), np.float32)
        if padded:
            ones = np.pad(ones, [(0, 0), (0, 0), *zip(self.low, self.high, strict=True)],
                          constant_values=1)  # fmt: skip
            bare, self.low = self.low, [0] * len(self.low)
            counts, self.low = self.of(ones, 0), bare
            return counts
        return self.of(ones, 0)


def _max(call: Call) -> tuple[Array, ...]:
    x, windows = call[0], Windows(call)
    lowest = -np.inf if is_float(x.dtype) else np.iinfo(x.dtype).min
    flat = windows.of(x, lowest)
    best = np.argmax(flat, -1)[..., None]
    maxima = np.take_along_axis(flat, best, -1)[..., 0]
    if call.outputs < 2:
        return (maxima,)
    sizes: tuple[int, ...] = x.shape
    places: Array = np.arange(int(x.size)).reshape(sizes)
    if call.attr("storage_order", 0):
        n = x.ndim - 2
        volume = int(np.prod(sizes[2:]))
        image = np.arange(volume).reshape(sizes[:1:-1]).transpose(*reversed(range(n)))
        places = np.arange(sizes[0] * sizes[1]).reshape(*sizes[:2], *[1] * n) * volume + image
    where = np.take_along_axis(windows.of(places, 0), best, -1)[..., 0]
    return maxima, where.astype(np.int64)


def _average(call: Call) -> Array:
    x, windows = call[0], Windows(call)
    wide = x.astype(np.float32) if x.dtype in HALF else x
    total = windows.of(wide, 0).sum(-1)
    count = windows.inside(x, bool(call.attr("count_include_pad", 0))).sum(-1)
    return (total / count).astype(x.dtype)


def _lp(call: Call) -> Array:
    x, p = call[0], call.attr("p", 2)
    wide = x.astype(np.float32) if x.dtype in HALF else x
    powers = Windows(call).of(np.abs(wide) ** p, 0)
    return (powers.sum(-1) ** (1 / p)).astype(x.dtype)


def _whole(fn: Callable[[Array, tuple[int, ...]], Array]) -> Kernel:
    def kernel(call: Call) -> Array:
        x = call[0]
        wide = x.astype(np.float32) if x.dtype in HALF else x
        return fn(wide, tuple(range(2, x.ndim))).astype(x.dtype)

    return kernel


def _global_lp(call: Call) -> Array:
    x, p = call[0], call.attr("p", 2)
    powers = np.abs(x.astype(np.float64)) ** p
    return (powers.sum(tuple(range(2, x.ndim)), keepdims=True) ** (1 / p)).astype(x.dtype)


def _unpool(call: Call) -> Array:
    x, places = call[0], call[1]
    n = x.ndim - 2
    kernel, strides = call.attr("kernel_shape"), call.attr("strides") or [1] * n
    pads = call.attr("pads") or [0] * (2 * n)
    inferred = [
        (size - 1) * strides[i] - pads[i] - pads[n + i] + kernel[i]
        for i, size in enumerate(x.shape[2:])
    ]
    inner = (*x.shape[:2], *inferred)
    unpooled = np.zeros(int(np.prod(inner)), x.dtype)
    unpooled[places.reshape(-1)] = x.reshape(-1)
    unpooled = unpooled.reshape(inner)
    if call.has(2):
        shape = tuple(call.ints(2))
        unpooled = np.pad(
            unpooled, [(0, want - have) for want, have in zip(shape, inner, strict=True)]
        )
    return unpooled


KERNELS: Kernels = {
    "AveragePool": _average,
    "GlobalAveragePool": _whole(lambda x, axes: x.mean(axes, keepdims=True)),
    "GlobalLpPool": _global_lp,
    "GlobalMaxPool": _whole(lambda x, axes: x.max(axes, keepdims=True)),
    "LpPool": _lp,
    "MaxPool": _max,
    "MaxUnpool": _unpool,
}
