"""Moving elements without changing them: reshape, transpose, slice, pad, split, join."""

from __future__ import annotations

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.values import Array


def _reshape(call: Call) -> Array:
    x = call[0]
    wanted = list(call.attr("shape") or []) if call.version < 5 else call.ints(1)
    if not call.attr("allowzero", 0):
        wanted = [x.shape[i] if size == 0 else size for i, size in enumerate(wanted)]
    return x.reshape(wanted)


def _flatten(call: Call) -> Array:
    x, axis = call[0], call.attr("axis", 1)
    shape: tuple[int, ...] = x.shape
    rows = int(np.prod(shape[: axis if axis >= 0 else x.ndim + axis]))
    return x.reshape(rows, x.size // rows if rows else int(np.prod(shape[axis:])))


def _squeeze(call: Call) -> Array:
    return np.squeeze(call[0], call.axes(1))


def _unsqueeze(call: Call) -> Array:
    return np.expand_dims(call[0], call.axes(1) or ())


def _slice(call: Call) -> Array:
    x = call[0]
    if call.version < 10:
        starts, ends = call.attr("starts"), call.attr("ends")
        axes, steps = call.attr("axes"), None
    else:
        starts, ends = call.ints(1), call.ints(2)
        axes, steps = call.some_ints(3), call.some_ints(4)
    axes = range(len(starts)) if axes is None else axes
    place = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(starts), strict=True):
        place[axis] = bounds(start, end, step, x.shape[axis])
    return x[tuple(place)]


def bounds(start: int, end: int, step: int, size: int) -> slice:
    """Return a Python slice with ONNX's clamping: an end before the first element is open.

    >>> list(range(5))[bounds(-1, -100, -1, 5)]
    [4, 3, 2, 1, 0]
    """
    start = start + size if start < 0 else start
    end = end + size if end < 0 else end
    if step > 0:
        return slice(min(max(start, 0), size), min(max(end, 0), size), step)
    first, last = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    return slice(first, None if last < 0 else last, step)


def _pad(call: Call) -> Array:
    x, mode = call[0], call.attr("mode", "constant")
    if call.version < 11:
        pads, value, axes = call.attr("pads"), np.asarray(call.attr("value", 0.0), x.dtype), None
    else:
        pads, value, axes = call.ints(1), call[2], call.some_ints(3)
    axes = list(range(x.ndim)) if axes is None else [axis % x.ndim for axis in axes]
    amounts = [(0, 0)] * x.ndim
    for i, axis in enumerate(axes):
        amounts[axis] = (pads[i], pads[i + len(axes)])
    # Negative amounts crop.
    x = x[tuple(slice(max(0, -lo), x.shape[i] - max(0, -hi)) for i, (lo, hi) in enumerate(amounts))]
    more = [(max(0, lo), max(0, hi)) for lo, hi in amounts]
    if mode == "constant":
        fill = np.zeros((), x.dtype) if value is None else value.reshape(())
        return np.pad(x, more, constant_values=fill)
    if mode not in ("edge", "reflect", "wrap"):
        raise ValueError(f"mode {mode!r} of Pad")
    return np.pad(x, more, mode=mode)


def _transpose(call: Call) -> Array:
    return np.transpose(call[0], call.attr("perm"))


def _split(call: Call) -> tuple[Array, ...]:
    x, axis = call[0], call.attr("axis", 0)
    parts = call.attr("split") or call.some_ints(1)
    if parts is None:
        count = call.attr("num_outputs") or call.outputs
        each = -(-x.shape[axis] // count)
        parts = [each] * (count - 1) + [x.shape[axis] - each * (count - 1)]
    return tuple(np.split(x, np.cumsum(parts)[:-1].tolist(), axis))


def _expand(call: Call) -> Array:
    shape = np.broadcast_shapes(call[0].shape, tuple(call.ints(1)))
    return np.broadcast_to(call[0], shape)


def _shape(call: Call) -> Array:
    shape = call[0].shape
    return np.array(shape[call.attr("start", 0) : call.attr("end")], np.int64)


def _depth_to_space(call: Call) -> Array:
    x, size = call[0], call.attr("blocksize")
    n, c, h, w = x.shape
    if call.attr("mode", "DCR") == "DCR":
        apart = x.reshape(n, size, size, c // size**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        apart = x.reshape(n, c // size**2, size, size, h, w).transpose(0, 1, 4, 2, 5, 3)
    return apart.reshape(n, c // size**2, h * size, w * size)


def _space_to_depth(call: Call) -> Array:
    x, size = call[0], call.attr("blocksize")
    n, c, h, w = x.shape
    apart = x.reshape(n, c, h // size, size, w // size, size)
    order = (0, 3, 5, 1, 2, 4) if call.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return apart.transpose(order).reshape(n, c * size**2, h // size, w // size)


def _center_crop_pad(call: Call) -> Array:
    x, shape = call[0], call.ints(1)
    axes = [a % x.ndim for a in call.attr("axes") or range(x.ndim)]
    for axis, size in zip(axes, shape, strict=True):
        more = size - x.shape[axis]
        if more < 0:
            start = -more // 2
            x = np.take(x, range(start, start + size), axis)
        elif more:
            amounts = [(0, 0)] * x.ndim
            amounts[axis] = (more // 2, more - more // 2)
            x = np.pad(x, amounts)
    return x


def _tile(call: Call) -> Array:
    return np.tile(call[0], call.ints(1))


KERNELS: Kernels = {
    "CenterCropPad": _center_crop_pad,
    "Concat": lambda call: np.concatenate(call.inputs, call.attr("axis", 1)),
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Identity": lambda call: call[0],
    "Pad": _pad,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": lambda call: np.array(call[0].size, np.int64),
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
