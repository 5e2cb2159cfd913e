"""Reading and writing at computed places."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.values import Array

_indices: Any = np.indices
_where: Any = np.where
"""numpy types them by their operands, and not at all where those are of any type."""

COMBINE: Mapping[str, Callable[[Any, Any, Any], None]] = {
    "add": lambda at, where, new: np.add.at(at, where, new),
    "mul": lambda at, where, new: np.multiply.at(at, where, new),
    "max": lambda at, where, new: np.maximum.at(at, where, new),
    "min": lambda at, where, new: np.minimum.at(at, where, new),
}
"""How ScatterElements and ScatterND combine a new value with what is there."""


def _write(at: Array, where: object, new: Array, how: str) -> Array:
    if how == "none":
        at[where] = new  # type: ignore[index]  # whatever numpy takes as an index
    else:
        COMBINE[how](at, where, new)
    return at


def along(indices: Array, axis: int, size: int) -> tuple[Array, ...]:
    """Return the places of ``take_along_axis`` as an index for each dim."""
    grid: list[Array] = list(_indices(indices.shape, sparse=True))
    grid[axis] = np.where(indices < 0, indices + size, indices)
    return tuple(grid)


def _gather_elements(call: Call) -> Array:
    x, axis = call[0], call.attr("axis", 0) % max(call[0].ndim, 1)
    return x[along(call[1], axis, x.shape[axis])]


def _scatter_elements(call: Call) -> Array:
    x, axis = call[0].copy(), call.attr("axis", 0) % max(call[0].ndim, 1)
    where = along(call[1], axis, x.shape[axis])
    return _write(x, where, call[2], call.attr("reduction", "none"))


def _scatter_nd(call: Call) -> Array:
    where = tuple(np.moveaxis(call[1], -1, 0))
    return _write(call[0].copy(), where, call[2], call.attr("reduction", "none"))


def _gather_nd(call: Call) -> Array:
    x, indices, batch = call[0], call[1], call.attr("batch_dims", 0)
    shape = indices.shape[:batch]
    flat = x.reshape(-1, *x.shape[batch:])
    places = indices.reshape(-1, *indices.shape[batch:])
    gathered = [a[tuple(np.moveaxis(i, -1, 0))] for a, i in zip(flat, places, strict=True)]
    if not gathered:
        rest = x.shape[batch + indices.shape[-1] :]
        return np.zeros((*shape, *indices.shape[batch:-1], *rest), x.dtype)
    return np.stack(gathered).reshape(*shape, *gathered[0].shape)


def _compress(call: Call) -> Array:
    axis, keep = call.attr("axis"), call[1].astype(np.bool_)
    return np.compress(keep, call[0], axis)


def _non_zero(call: Call) -> Array:
    x = call[0] if call[0].ndim else call[0].reshape(1)
    return np.array(np.nonzero(x), np.int64).reshape(max(call[0].ndim, 1), -1)


def _one_hot(call: Call) -> Array:
    depth: int
    indices, depth, (off, on) = call[0].astype(np.int64), int(call.number(1)), call[2]
    axis = call.attr("axis", -1)
    axis = axis + indices.ndim + 1 if axis < 0 else axis
    places = np.expand_dims(_where(indices < 0, indices + depth, indices), axis)
    line = np.arange(depth).reshape([-1 if i == axis else 1 for i in range(indices.ndim + 1)])
    return _where(places == line, on, off).astype(call[2].dtype)


def _unique(call: Call) -> tuple[Array, ...]:
    x, axis = call[0], call.attr("axis")
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not call.attr("sorted", 1):
        order = np.argsort(first, kind="stable")
        back = np.argsort(order, kind="stable")
        values = np.take(values, order, 0 if axis is None else axis)
        first, counts, inverse = first[order], counts[order], back[inverse]
    return values, *(each.astype(np.int64) for each in (first, inverse, counts))


def _reverse_sequence(call: Call) -> Array:
    x, time, batch = call[0], call.attr("time_axis", 0), call.attr("batch_axis", 1)
    moved = np.moveaxis(x, (batch, time), (0, 1)).copy()
    for row, count in zip(moved, call.ints(1), strict=True):
        row[:count] = row[:count][::-1].copy()
    return np.moveaxis(moved, (0, 1), (batch, time))


def _trilu(call: Call) -> Array:
    k = int(call.number(1, 0))
    rows, columns = _indices(call[0].shape[-2:], sparse=True)
    kept = columns - rows >= k if call.attr("upper", 1) else columns - rows <= k
    return np.where(kept, call[0], np.zeros((), call[0].dtype))


def _array_feature_extractor(call: Call) -> Array:
    return np.take(np.atleast_2d(call[0]), call[1].reshape(-1), -1)


def _tensor_scatter(call: Call) -> Array:
    """TensorScatter: rows of new keys or values into a cache, from a place of each batch on."""
    cache, update = call[0].copy(), call[1]
    axis = call.attr("axis", -2) % cache.ndim
    starts = call.some_ints(2) or [0] * cache.shape[0]
    count: int
    size, count = cache.shape[axis], update.shape[axis]
    for outer in product(*(range(n) for n in cache.shape[:axis])):
        places = starts[outer[0]] + np.arange(count)
        if call.attr("mode", "linear") == "circular":
            places %= size
        cache[(*outer, places)] = update[outer]
    return cache


KERNELS: Kernels = {
    "Compress": _compress,
    "Gather": lambda call: np.take(call[0], call[1], call.attr("axis", 0)),
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "NonZero": _non_zero,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
    "Trilu": _trilu,
    "Unique": _unique,
    "ai.onnx.ml::ArrayFeatureExtractor": _array_feature_extractor,
}
