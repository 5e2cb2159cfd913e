"""Convolutions: plain, transposed, deformable, causal with a state, and Col2Im."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.units import sigmoid
from irc.runtime.onnx_ops.values import HALF, Array, as_array, as_tensor


def padding(call: Call, sizes: Sequence[int], reach: Sequence[int],
            strides: Sequence[int]) -> tuple[list[int], list[int]]:  # fmt: skip
    """Return what is added before and after each spatial dim, by ``auto_pad`` or ``pads``."""
    n, mode = len(sizes), call.attr("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        low, high = list[int](), list[int]()
        for size, span, stride in zip(sizes, reach, strides, strict=True):
            total = max(0, (-(-size // stride) - 1) * stride + span - size)
            less, more = total // 2, total - total // 2
            low.append(less if mode == "SAME_UPPER" else more)
            high.append(more if mode == "SAME_UPPER" else less)
        return low, high
    pads = call.attr("pads") if mode == "NOTSET" else None
    pads = pads or [0] * (2 * n)
    return pads[:n], pads[n:]


def convolve(call: Call, x: Array, w: Array, bias: Array | None) -> Array:
    """Convolve with the attributes of a node, in the dtype of the operands."""
    import torch

    n = x.ndim - 2
    strides, dilations = call.attr("strides") or [1] * n, call.attr("dilations") or [1] * n
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    low, high = padding(call, x.shape[2:], reach, strides)
    padded = np.pad(x, [(0, 0), (0, 0), *zip(low, high, strict=True)])
    output = torch.ops.aten.convolution(
        as_tensor(padded), as_tensor(w), None if bias is None else as_tensor(bias), strides,
        [0] * n, dilations, False, [0] * n, call.attr("group", 1),
    )  # fmt: skip
    return as_array(output)


def _conv(call: Call) -> Array:
    wide = np.float32 if call[0].dtype in HALF else call[0].dtype
    x, w = call[0].astype(wide), call[1].astype(wide)
    bias = None if call[2] is None else call[2].astype(wide)
    return convolve(call, x, w, bias).astype(call[0].dtype)


def _conv_transpose(call: Call) -> Array:
    import torch

    x, w, bias = call[0], call[1], call[2]
    n, dtype = x.ndim - 2, x.dtype
    x, w = (v.astype(np.float32) if dtype in HALF else v for v in (x, w))
    strides, dilations = call.attr("strides") or [1] * n, call.attr("dilations") or [1] * n
    extra = call.attr("output_padding") or [0] * n
    full = as_array(torch.ops.aten.convolution(
        as_tensor(x), as_tensor(w), None, strides, [0] * n, dilations, True, [0] * n,
        call.attr("group", 1),
    ))  # fmt: skip
    full = np.pad(full, [(0, 0), (0, 0), *((0, e) for e in extra)])
    low, high = _cropped(call, x.shape[2:], full.shape[2:], strides)
    full = np.pad(
        full, [(0, 0), (0, 0), *((max(0, -a), max(0, -b)) for a, b in zip(low, high, strict=True))]
    )
    place = [
        slice(max(0, a), size - max(0, b))
        for a, b, size in zip(low, high, full.shape[2:], strict=True)
    ]
    output = full[(slice(None), slice(None), *place)]
    if bias is not None:
        output = output + bias.astype(output.dtype).reshape(-1, *[1] * n)
    return np.ascontiguousarray(output).astype(dtype)


def _cropped(
    call: Call, sizes: Sequence[int], full: Sequence[int], strides: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return what is cut before and after each spatial dim of the full result."""
    n, mode = len(sizes), call.attr("auto_pad", "NOTSET")
    shape = call.attr("output_shape")
    if shape is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        shape = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    if shape is None:
        pads = call.attr("pads") or [0] * (2 * n)
        return pads[:n], pads[n:]
    totals = [have - want for have, want in zip(full, shape[-n:], strict=True)]
    first = [t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in totals]
    return first, [t - f for t, f in zip(totals, first, strict=True)]


def _col2im(call: Call) -> Array:
    x, image, block = call[0], call.ints(1), call.ints(2)
    n = len(image)
    strides, dilations = call.attr("strides") or [1] * n, call.attr("dilations") or [1] * n
    pads = call.attr("pads") or [0] * (2 * n)
    counts = [
        (size + pads[i] + pads[n + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
        for i, size in enumerate(image)
    ]
    batch, channels = x.shape[0], x.shape[1] // int(np.prod(block))
    parts = x.reshape(batch, channels, *block, *counts)
    sizes = [size + pads[i] + pads[n + i] for i, size in enumerate(image)]
    full = np.zeros((batch, channels, *sizes), x.dtype)
    for place in product(*(range(b) for b in block)):
        where = tuple(
            slice(p * d, p * d + s * (c - 1) + 1, s)
            for p, d, s, c in zip(place, dilations, strides, counts, strict=True)
        )
        full[(slice(None), slice(None), *where)] += parts[(slice(None), slice(None), *place)]
    kept = tuple(slice(pads[i], pads[i] + size) for i, size in enumerate(image))
    return full[(slice(None), slice(None), *kept)]


def _causal(call: Call) -> tuple[Array, Array]:
    """CausalConvWithState: depthwise, over the state and then the new positions."""
    x, w, bias, state = (call[i] for i in range(4))
    dtype, k = x.dtype, w.shape[-1]
    if state is None:
        state = np.zeros((*x.shape[:2], k - 1), dtype)
    joined = np.concatenate([state.astype(dtype), x], -1)
    wide = joined.astype(np.float32) if dtype in HALF else joined
    length = x.shape[-1]
    taps = [w[None, :, 0, i, None].astype(wide.dtype) for i in range(k)]
    output = np.sum([wide[..., i : i + length] * tap for i, tap in enumerate(taps)], 0)
    if bias is not None:
        output = output + bias.astype(wide.dtype)[:, None]
    if call.attr("activation", "none") in ("silu", "swish"):
        output = output * sigmoid(output)
    last = joined[..., joined.shape[-1] - (k - 1) :]
    return np.asarray(output).astype(dtype), np.ascontiguousarray(last)


def _deform_conv(call: Call) -> Array:
    x, w, offset, bias, mask = (call[i] for i in range(5))
    kernel = call.attr("kernel_shape") or list(w.shape[2:])
    strides, dilations = call.attr("strides") or [1, 1], call.attr("dilations") or [1, 1]
    top, left, *_ = call.attr("pads") or [0, 0, 0, 0]
    groups, parts = call.attr("group", 1), call.attr("offset_group", 1)
    batch, channels = x.shape[:2]
    rows, columns = offset.shape[2:]
    offset = offset.reshape(batch, parts, *kernel, 2, rows, columns)
    grid = np.indices((rows, columns))
    columned = np.empty((batch, channels, *kernel, rows, columns), x.dtype)
    each = channels // parts
    for b, p, i, j in product(range(batch), range(parts), range(kernel[0]), range(kernel[1])):
        y = grid[0] * strides[0] - top + i * dilations[0] + offset[b, p, i, j, 0]
        z = grid[1] * strides[1] - left + j * dilations[1] + offset[b, p, i, j, 1]
        values = bilinear(x[b, p * each : (p + 1) * each], y, z)
        if mask is not None:
            values = values * mask.reshape(batch, parts, *kernel, rows, columns)[b, p, i, j]
        columned[b, p * each : (p + 1) * each, i, j] = values
    flat = columned.reshape(
        batch, groups, channels // groups * kernel[0] * kernel[1], rows * columns
    )
    kernels = w.reshape(groups, w.shape[0] // groups, -1)
    output = np.einsum("gok,bgkn->bgon", kernels, flat).reshape(batch, w.shape[0], rows, columns)
    return output if bias is None else output + bias[:, None, None]


def bilinear(x: Array, rows: Array, columns: Array) -> Array:
    """Read a (channels, height, width) image between its pixels; outside it is zero."""
    top, left = np.floor(rows).astype(np.int64), np.floor(columns).astype(np.int64)
    pixels = np.zeros((x.shape[0], *rows.shape), x.dtype)
    for di, dj in product((0, 1), (0, 1)):
        i, j = top + di, left + dj
        weight = (1 - np.abs(rows - i)) * (1 - np.abs(columns - j))
        inside = (i >= 0) & (i < x.shape[1]) & (j >= 0) & (j < x.shape[2])
        values = x[:, np.clip(i, 0, x.shape[1] - 1), np.clip(j, 0, x.shape[2] - 1)]
        pixels += (values * np.where(inside, weight, 0)).astype(x.dtype)
    return pixels


KERNELS: Kernels = {
    "CausalConvWithState": _causal,
    "Col2Im": _col2im,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "DeformConv": _deform_conv,
}
