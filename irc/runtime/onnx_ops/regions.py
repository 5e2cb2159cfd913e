"""Regions of images: choosing boxes, reading through them, sampling on grids."""

from __future__ import annotations

from itertools import product

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.values import Array, as_array, as_tensor


def _corners(boxes: Array, centred: bool) -> Array:
    """Return boxes as (low y, low x, high y, high x)."""
    if centred:
        x, y, width, height = boxes.T
        return np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], -1)
    return np.concatenate(
        [np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], -1
    )


def _overlap(box: Array, others: Array) -> Array:
    """Return intersection over union of a box with others."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    common = np.prod(np.maximum(high - low, 0), -1)
    areas = np.prod(others[:, 2:] - others[:, :2], -1)
    union = np.prod(box[2:] - box[:2]) + areas - common
    return np.where(union > 0, common / np.where(union > 0, union, 1), 0)


def _suppress(call: Call) -> Array:
    """Greedy non-maximum suppression for each batch and class."""
    boxes, scores = call[0], call[1]
    most, limit, least = call.number(2, 0), call.number(3, 0.0), call.number(4, -np.inf)
    selected: list[tuple[int, int, int]] = []
    for b, c in product(range(scores.shape[0]), range(scores.shape[1])):
        corners = _corners(boxes[b].astype(np.float64), bool(call.attr("center_point_box", 0)))
        values = scores[b, c]
        order = np.argsort(-values, kind="stable")
        left = order[values[order] > least] if call.has(4) else order
        taken = 0
        while left.size and taken < most:
            best, left = left[0], left[1:]
            selected.append((b, c, int(best)))
            left = left[_overlap(corners[best], corners[left]) <= limit]
            taken += 1
    return np.array(selected, np.int64).reshape(-1, 3)


def _roi_align(call: Call) -> Array:
    x, rois, batch = call[0], call[1], call[2]
    height, width = call.attr("output_height", 1), call.attr("output_width", 1)
    scale, samples = call.attr("spatial_scale", 1.0), call.attr("sampling_ratio", 0)
    default = "half_pixel" if call.version >= 16 else "output_half_pixel"
    half = call.attr("coordinate_transformation_mode", default) == "half_pixel"
    pooled = np.empty((len(rois), x.shape[1], height, width), x.dtype)
    for r, (left, top, right, bottom) in enumerate(rois * scale - (0.5 if half else 0)):
        spans = [bottom - top, right - left]
        if not half:
            spans = [max(span, 1.0) for span in spans]
        counts = [
            samples or int(np.ceil(s / n)) for s, n in zip(spans, (height, width), strict=True)
        ]
        rows = _places(top, spans[0], height, counts[0])
        columns = _places(left, spans[1], width, counts[1])
        values = _read(x[int(batch[r])], rows, columns, call.attr("mode", "avg") == "max")
        values = values.reshape(x.shape[1], height, counts[0], width, counts[1])
        reduce = np.max if call.attr("mode", "avg") == "max" else np.mean
        pooled[r] = reduce(values, (2, 4))
    return pooled


def _places(start: float, span: float, bins: int, samples: int) -> Array:
    step = span / bins
    inner = (np.arange(samples) + 0.5) / samples
    return (start + step * (np.arange(bins)[:, None] + inner)).reshape(-1)


def _read(x: Array, rows: Array, columns: Array, largest: bool) -> Array:
    """Read an image at rows and columns: interpolated, or the largest weighted neighbour."""
    parts: list[Array] = []
    lines = [_neighbours(rows, x.shape[1]), _neighbours(columns, x.shape[2])]
    for (i, wi), (j, wj) in product(*lines):
        parts.append(x[:, i[:, None], j] * (wi[:, None] * wj))
    return np.max(parts, 0) if largest else np.sum(parts, 0)


def _neighbours(places: Array, size: int) -> list[tuple[Array, Array]]:
    inside = (places >= -1) & (places <= size)
    at = np.clip(places, 0, size - 1)
    low = np.floor(at).astype(np.int64)
    high, part = np.minimum(low + 1, size - 1), at - low
    return [(low, np.where(inside, 1 - part, 0)), (high, np.where(inside, part, 0))]


def _max_roi_pool(call: Call) -> Array:
    x, rois, (height, width) = call[0], call[1], call.attr("pooled_shape")
    scale = call.attr("spatial_scale", 1.0)
    pooled = np.zeros((len(rois), x.shape[1], height, width), x.dtype)
    for r, (batch, *corners) in enumerate(rois):
        left, top, right, bottom = (int(np.floor(c * scale + 0.5)) for c in corners)
        tall, wide = max(bottom - top + 1, 1), max(right - left + 1, 1)
        for i, j in product(range(height), range(width)):
            rows = _bin(i, height, tall, top, x.shape[2])
            columns = _bin(j, width, wide, left, x.shape[3])
            if rows[0] < rows[1] and columns[0] < columns[1]:
                part = x[int(batch), :, rows[0] : rows[1], columns[0] : columns[1]]
                pooled[r, :, i, j] = part.max((1, 2))
    return pooled


def _bin(i: int, count: int, span: int, start: int, size: int) -> tuple[int, int]:
    low, high = start + i * span // count, start + -(-(i + 1) * span // count)
    return min(max(low, 0), size), min(max(high, 0), size)


def _affine_grid(call: Call) -> Array:
    theta, size = call[0], call.ints(1)
    lines: list[Array] = []
    for count in size[2:]:
        if call.attr("align_corners", 0):
            lines.append(np.linspace(-1, 1, count))
        else:
            lines.append((2 * np.arange(count) + 1) / count - 1)
    grid = np.meshgrid(*lines, indexing="ij")[::-1]
    points = np.stack([*grid, np.ones_like(grid[0])], -1)
    return np.einsum("nij,...j->n...i", theta.astype(np.float64), points).astype(theta.dtype)


def _grid_sample(call: Call) -> Array:
    import torch

    x, grid = as_tensor(call[0]), as_tensor(call[1])
    mode = call.attr("mode", "linear")
    known = {"linear": "bilinear", "bilinear": "bilinear", "cubic": "bicubic", "bicubic": "bicubic"}
    wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    sampled = torch.nn.functional.grid_sample(
        x.to(wide), grid.to(wide), mode=str(known.get(mode, mode)),
        padding_mode=call.attr("padding_mode", "zeros"),
        align_corners=bool(call.attr("align_corners", 0)),
    )  # fmt: skip
    return as_array(sampled.to(x.dtype))


KERNELS: Kernels = {
    "AffineGrid": _affine_grid,
    "GridSample": _grid_sample,
    "MaxRoiPool": _max_roi_pool,
    "NonMaxSuppression": _suppress,
    "RoiAlign": _roi_align,
}
