"""Resize: every mode is, along each dim, a fixed weighting of a few source elements.

The importer builds flow ops from these weights; where scales or sizes come from an input, the
kernels here apply them to arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.values import Array, is_float

MODES = ("nearest", "linear", "cubic")
TRANSFORMS = (
    "asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners", "half_pixel_symmetric",
    "tf_half_pixel_for_nn", "tf_crop_and_resize",
)  # fmt: skip
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True)
class Axis:
    """How one dim is resized: sizes, scale, and the part of it for ``tf_crop_and_resize``."""

    size: int
    result: int
    scale: float
    start: float = 0.0
    end: float = 1.0


def coordinates(axis: Axis, transform: str, mode: str) -> Array:
    """Return where in the source each element of the result lies.

    To take the nearest one, in float32 as others compute it: 17 / 1.7 is then 10, not below it.
    """
    i = np.arange(axis.result, dtype=np.float32 if mode == "nearest" else np.float64)
    whole = axis.size * axis.scale
    match transform:
        case "asymmetric":
            return i / axis.scale
        case "half_pixel":
            return (i + 0.5) / axis.scale - 0.5
        case "pytorch_half_pixel":
            return (i + 0.5) / axis.scale - 0.5 if axis.result > 1 else i * 0
        case "align_corners":
            # The length as the scale gives it, before it is cut to a whole number.
            return i * ((axis.size - 1) / (whole - 1)) if axis.result > 1 else i * 0
        case "half_pixel_symmetric":
            adjusted = axis.size / 2 * (1 - axis.result / whole)
            return adjusted + (i + 0.5) / axis.scale - 0.5
        case "tf_half_pixel_for_nn":
            return (i + 0.5) / axis.scale
        case "tf_crop_and_resize":
            first = axis.start * (axis.size - 1)
            if axis.result == 1:
                return 0.5 * (axis.start + axis.end) * (axis.size - 1) + i * 0
            return first + i * (axis.end - axis.start) * (axis.size - 1) / (axis.result - 1)
        case _:
            raise ValueError(f"coordinates {transform!r}")


def nearest(places: Array, how: str) -> Array:
    """Round source coordinates to elements."""
    match how:
        case "round_prefer_floor":
            return np.ceil(places - 0.5)
        case "round_prefer_ceil":
            return np.floor(places + 0.5)
        case "floor":
            return np.floor(places)
        case "ceil":
            return np.ceil(places)
        case _:
            raise ValueError(f"nearest_mode {how!r}")


def kernel(distance: Array, mode: str, a: float) -> Array:
    """Return the weight of an element at a distance: a triangle, or Keys's cubic (1981)."""
    d = abs(distance)
    if mode == "linear":
        return np.maximum(0, 1 - d)
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def interpolation(
    places: Array, size: int, mode: str, a: float, exclude: bool
) -> tuple[Array, Array]:
    """Return the elements [taps, result] and weights that give each element of the result."""
    reach = 1 if mode == "linear" else 2
    base = np.floor(places)
    taps = base + np.arange(1 - reach, reach + 1).reshape(-1, 1)
    weights = kernel(taps - places, mode, a)
    if exclude:
        weights = np.where((taps < 0) | (taps >= size), 0, weights)
        weights = weights / weights.sum(0)
    return taps.clip(0, size - 1).astype(np.int64), weights


def antialiased(
    axis: Axis, places: Array, mode: str, a: float, shrink: float, exclude: bool
) -> Array:
    """Return the matrix [result, size] of a kernel that is stretched by ``1 / shrink``."""
    reach = int(np.ceil((1 if mode == "linear" else 2) / shrink))
    taps = np.floor(places) + np.arange(-reach, reach + 2).reshape(-1, 1)
    weights = kernel((taps - places) * shrink, mode, a)
    if exclude:
        weights = np.where((taps < 0) | (taps >= axis.size), 0, weights)
    weights = weights / weights.sum(0)
    matrix = np.zeros((axis.result, axis.size))
    rows = np.broadcast_to(np.arange(axis.result), taps.shape)
    np.add.at(matrix, (rows, taps.clip(0, axis.size - 1).astype(np.int64)), weights)
    return matrix


def _resize(call: Call) -> Array:
    x, outside = call[0], None
    old = call.op == "Upsample" or call.version < 11
    transform = call.attr("coordinate_transformation_mode", "half_pixel")
    transform = "asymmetric" if old else transform
    for dim, axis in _axes(call).items():
        places = coordinates(axis, transform, call.attr("mode", "nearest"))
        if axis.size == axis.result and np.array_equal(places, np.arange(axis.size)):
            continue
        x = _along(call, x, dim, axis, places)
        if transform == "tf_crop_and_resize":
            wrong = (places < 0) | (places > axis.size - 1)
            mask = wrong.reshape([-1 if i == dim else 1 for i in range(x.ndim)])
            outside = mask if outside is None else outside | mask
    if outside is not None:
        x = np.where(outside, np.asarray(call.attr("extrapolation_value", 0.0), x.dtype), x)
    return x


def _axes(call: Call) -> Mapping[int, Axis]:
    x = call[0]
    axes = [a % x.ndim for a in call.attr("axes") or range(x.ndim)]
    sizes, scales = _targets(call)
    policy = call.attr("keep_aspect_ratio_policy", "stretch")
    if sizes is not None and policy != "stretch":
        ratios = [s / x.shape[a] for s, a in zip(sizes, axes, strict=True)]
        ratio = min(ratios) if policy == "not_larger" else max(ratios)
        sizes, scales = [int(ratio * x.shape[a] + 0.5) for a in axes], [ratio] * len(axes)
    cropped = call.attr("coordinate_transformation_mode") == "tf_crop_and_resize"
    region: Sequence[float] = call[1].reshape(-1).tolist() if cropped and call.has(1) else ()
    by_dim: dict[int, Axis] = {}
    for i, dim in enumerate(axes):
        size = x.shape[dim]
        start, end = (region[i], region[i + len(axes)]) if region else (0.0, 1.0)
        if sizes is not None:
            scale, result = (scales[i] if scales else sizes[i] / size), int(sizes[i])
        else:
            assert scales is not None
            scale = scales[i]
            result = int(np.floor(np.float32(size * (end - start)) * np.float32(scale)))
        by_dim[dim] = Axis(size, result, scale, start, end)
    return by_dim


def _targets(call: Call) -> tuple[list[int] | None, list[float] | None]:
    if call.attr("scales"):
        return None, [float(s) for s in call.attr("scales")]
    where = 1 if call.version < 11 or call.op == "Upsample" else 2
    if where == 2 and call.has(3) and call[3].size:
        return call.ints(3), None
    return None, [float(s) for s in call[where].reshape(-1).tolist()]


def _along(call: Call, x: Array, dim: int, axis: Axis, places: Array) -> Array:
    mode = call.attr("mode", "nearest")
    if mode == "nearest":
        old = call.op == "Upsample" or call.version < 11
        how = "floor" if old else call.attr("nearest_mode", "round_prefer_floor")
        index = nearest(places, how).clip(0, axis.size - 1).astype(np.int64)
        return np.take(x, index, dim)
    a, exclude = float(call.attr("cubic_coeff_a", -0.75)), bool(call.attr("exclude_outside", 0))
    shrink = min(axis.scale, 1.0) if call.attr("antialias", 0) else 1.0
    if shrink < 1.0:
        matrix = antialiased(axis, places, mode, a, shrink, exclude)
    else:
        taps, weights = interpolation(places, axis.size, mode, a, exclude)
        matrix = np.zeros((axis.result, axis.size))
        np.add.at(matrix, (np.broadcast_to(np.arange(axis.result), taps.shape), taps), weights)
    resized = np.moveaxis(np.tensordot(matrix, x.astype(np.float64), (1, dim)), 0, dim)
    return resized.astype(x.dtype) if is_float(x.dtype) else np.rint(resized).astype(x.dtype)


KERNELS: Kernels = {"Resize": _resize, "Upsample": _resize}
