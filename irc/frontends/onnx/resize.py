"""Resize in flow: every mode is, along each dim, a fixed weighting of a few source elements.

Nearest takes one element, linear two, cubic four: as many `take`s with constant indices, weighted
and added. Antialiasing weighs all elements: a contraction with a constant matrix. So a resized
tensor shards like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np
from xdsl.ir import SSAValue

from irc.dialects.flow import ContractOp, tensor
from irc.dialects.indexing import TakeOp
from irc.dialects.size import Dim, Size, decided, divide
from irc.dialects.types import is_float
from irc.errors import IrcError
from irc.frontends.onnx.elementwise import Converter, scalar
from irc.frontends.onnx.external import NUMPY, Array
from irc.frontends.onnx.node import NeedsSize, Node, Unsupported, check_axis, static
from irc.runtime.onnx_ops.resize import (
    MODES,
    ROUNDINGS,
    TRANSFORMS,
    Axis,
    antialiased,
    coordinates,
    interpolation,
    nearest,
)

MAX_FACTOR = 8
"""So many factors are tried, where the result's size is another name."""

PROBE = 13
"""A dim of this many elements shows whether a rounding repeats them."""


def convert_resize(node: Node) -> SSAValue:
    """Resize each dim whose scale is not 1 in turn."""
    mode = node.attr("mode", "nearest")
    how = node.attr("nearest_mode", "round_prefer_floor")
    transform = node.attr("coordinate_transformation_mode", "half_pixel")
    if node.kind == "Upsample" or node.version < 11:
        transform = "asymmetric"
    for word, known in ((mode, MODES), (transform, TRANSFORMS), (how, ROUNDINGS)):
        if word not in known:
            raise Unsupported(f"mode {word!r}")
    x, outside = node[0], None
    for dim, axis in resized_axes(node).items():
        if isinstance(axis, int):
            x = repeated(node, x, dim, axis)
            continue
        places = coordinates(axis, transform, mode)
        if axis.size == axis.result and np.array_equal(places, np.arange(axis.size)):
            continue
        x = resize_dim(node, x, dim, axis, places, mode)
        if transform == "tf_crop_and_resize":
            wrong = (places < 0) | (places > axis.size - 1)
            shape = [axis.result if i == dim else 1 for i in range(tensor(x).ndim)]
            mask = node.owner.constant(wrong.reshape(shape))
            outside = mask if outside is None else node.b.pointwise("logical_or", outside, mask)
    if outside is not None:
        value = scalar(node, node.attr("extrapolation_value", 0.0), x)
        x = node.b.pointwise("where", outside, value, x)
    return x


def repeated(node: Node, x: SSAValue, dim: int, times: int) -> SSAValue:
    """Give each element of a dim several times, one after the other."""
    shape: list[Dim] = [*tensor(x).shape]
    size = shape[dim]
    apart = node.b.reshape(x, [*shape[: dim + 1], 1, *shape[dim + 1 :]])
    wide = node.b.broadcast(apart, [*shape[: dim + 1], times, *shape[dim + 1 :]])
    return node.b.reshape(wide, [*shape[:dim], size * times, *shape[dim + 1 :]])


def whole_factor(node: Node, size: Size, target: Dim | None, scale: float) -> int | None:
    """Return how often each element of a dim of any size comes, or None where that depends on it.

    Nearest, by a whole factor, takes each element as often, for the usual roundings.
    """
    if target is not None:
        exact = divide(target, size)
        choices = (exact,) if isinstance(exact, int) else range(1, MAX_FACTOR + 1)
        factor = next((k for k in choices if decided("==", target - size * k)), None)
    else:
        factor = int(scale) if scale == int(scale) and scale >= 1 else None
    if factor is None or factor == 1 or node.attr("mode", "nearest") != "nearest":
        return factor if factor == 1 else None
    transform = node.attr("coordinate_transformation_mode", "half_pixel")
    how = node.attr("nearest_mode", "round_prefer_floor")
    if node.kind == "Upsample" or node.version < 11:
        transform, how = "asymmetric", "floor"
    if transform == "tf_crop_and_resize":
        return None
    places = coordinates(Axis(PROBE, PROBE * factor, float(factor), 0.0, 1.0), transform, "nearest")
    taken = nearest(places, how).clip(0, PROBE - 1)
    return factor if np.array_equal(taken, np.repeat(np.arange(PROBE), factor)) else None


def resized_axes(node: Node) -> Mapping[int, Axis | int]:
    """Read scales or sizes, for all dims or for those in ``axes``.

    Returns:
        By dim what is computed; for a dim whose size has a name, how often each element comes.
    """
    ndim = node.ndim()
    axes = [check_axis(a, ndim) for a in node.attr("axes") or range(ndim)]
    sizes, scales = _targets(node)
    _check_targets(node, len(axes), sizes, scales)
    resized: dict[int, Axis | int] = {}
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    if sizes is not None and policy != "stretch":
        ratios = [
            s / d for s, d in zip(sizes, static([node.shape()[a] for a in axes]), strict=True)
        ]
        ratio = min(ratios) if policy == "not_larger" else max(ratios)
        scales = [ratio] * len(axes)
        sizes = [int(ratio * d + 0.5) for d in static([node.shape()[a] for a in axes])]
    roi = node.numbers(1).reshape(-1).tolist() if _has_region(node) else []
    for i, dim in enumerate(axes):
        size = node.shape()[dim]
        if isinstance(size, Size):
            target, scale = sizes[i] if sizes else None, scales[i] if scales else 0.0
            times = whole_factor(node, size, target, scale)
            if times is None:
                raise NeedsSize(size.names())
            if times > 1:
                resized[dim] = times
            continue
        region = (roi[i], roi[i + len(axes)]) if roi else (0.0, 1.0)
        if sizes is not None:
            target = sizes[i]
            (result,) = static([target])
            scale = scales[i] if scales else result / size
        else:
            assert scales is not None
            scale = scales[i]
            # In single precision, as onnxruntime does: 0.7 of 10 elements are 7.
            part = np.float32(size * (region[1] - region[0]))
            result = int(np.floor(part * np.float32(scale)))
        if size == 0 and result:
            raise IrcError("onnx-invalid", f"dim {dim} is empty, and would be resized to {result}")
        node.owner.check_table(result * (size if node.attr("antialias", 0) else 1))
        resized[dim] = Axis(size, result, scale, *region)
    return resized


def _check_targets(
    node: Node, count: int, sizes: Sequence[Dim] | None, scales: Sequence[float] | None
) -> None:
    targets = sizes if sizes is not None else scales or ()
    if len(targets) != count:
        raise IrcError("onnx-invalid", f"{len(targets)} sizes or scales for {count} dims")
    if any(isinstance(size, int) and size < 0 for size in sizes or ()):
        raise IrcError("onnx-invalid", f"a size of {sizes} is negative")
    if not all(0 < scale < inf for scale in scales or ()):
        raise IrcError("onnx-invalid", f"scales {scales} are not positive")
    if _has_region(node) and node.numbers(1).size != 2 * count:
        raise IrcError("onnx-invalid", f"a region of {node.numbers(1).size} numbers")


def _has_region(node: Node) -> bool:
    return node.attr("coordinate_transformation_mode") == "tf_crop_and_resize" and node.has(1)


def _targets(node: Node) -> tuple[list | None, list | None]:
    if node.kind == "Upsample" and node.attr("scales"):
        return None, [float(s) for s in node.attr("scales")]
    where = 1 if node.version < 11 or node.kind == "Upsample" else 2
    if node.has(3) and where == 2 and node.operand(3).shape != (0,):
        return node.dims(3), None
    return None, [float(s) for s in node.numbers(where).reshape(-1).tolist()]


def resize_dim(node: Node, x: SSAValue, dim: int, axis: Axis, places: Array, mode: str) -> SSAValue:
    """Resize one dim."""
    if mode == "nearest":
        index = nearest(places, node.attr("nearest_mode", "round_prefer_floor"))
        if node.kind == "Upsample" or node.version < 11:
            index = np.floor(places)
        index = index.clip(0, axis.size - 1).astype(np.int64)
        return node.b.op(TakeOp, [x, node.owner.constant(index)], dim=dim)
    if not is_float(tensor(x).dtype):
        raise Unsupported(f"mode {mode!r} of {tensor(x).dtype}")
    exclude = bool(node.attr("exclude_outside", 0))
    a = float(node.attr("cubic_coeff_a", -0.75))
    shrink = min(axis.scale, 1.0) if node.attr("antialias", 0) else 1.0
    if shrink < 1.0:
        matrix = antialiased(axis, places, mode, a, shrink, exclude)
        return multiply(node, x, dim, matrix)
    taps, weights = interpolation(places, axis.size, mode, a, exclude)
    return add_taps(node, x, dim, taps, weights)


def multiply(node: Node, x: SSAValue, dim: int, matrix: Array) -> SSAValue:
    """Contract a dim with a constant matrix [result, size]."""
    letters = "abcdefgh"[: tensor(x).ndim]
    weights = node.owner.constant(matrix.astype(NUMPY[tensor(x).dtype]))
    spec = f"{letters},z{letters[dim]}->{letters.replace(letters[dim], 'z')}"
    return node.b.op(ContractOp, [x, weights], spec=spec)


def add_taps(node: Node, x: SSAValue, dim: int, taps: Array, weights: Array) -> SSAValue:
    """Add up taken elements, each weighted."""
    b, total = node.b, None
    kind = tensor(x)
    shape = [taps.shape[1] if i == dim else 1 for i in range(kind.ndim)]
    for index, weight in zip(taps, weights, strict=True):
        if not weight.any():
            continue
        part = b.op(TakeOp, [x, node.owner.constant(index)], dim=dim)
        factor = node.owner.constant(weight.astype(NUMPY[kind.dtype]).reshape(shape))
        part = b.pointwise("mul", part, factor)
        total = part if total is None else b.pointwise("add", total, part)
    assert total is not None
    return total


CONVERTERS: Mapping[str, Converter] = {"Resize": convert_resize, "Upsample": convert_resize}
