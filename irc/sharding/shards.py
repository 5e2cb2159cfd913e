"""Index sets: which part of a logical tensor each rank holds, and arrays cut and joined by it.

The split rule is ceil-chunk, as torch.distributed does it: rank r of p holds
``[r * ceil(n / p), (r + 1) * ceil(n / p))``, cut at n, so last shards may be short or empty. Axes
that split one dim apply one after the other, each to what the ones before it left.

Arrays are numpy's or torch's; both are used through their common operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product as cartesian
from math import prod
from typing import Any, TypeAlias

import numpy as np

from irc.dialects.placement import Broadcast, Mesh, Partial, Placement, Reduction, Split

Array: TypeAlias = Any
"""A numpy array or a torch tensor."""

Slices: TypeAlias = tuple[slice, ...]


def chunk(length: int, parts: int, index: int) -> tuple[int, int]:
    """Return start and length of the ``index``-th of ``parts`` ceil-sized chunks.

    >>> [chunk(6, 4, i) for i in range(4)]
    [(0, 2), (2, 2), (4, 2), (6, 0)]
    """
    size = -(-length // parts)
    start = min(index * size, length)
    return start, min(size, length - start)


def chunk_lengths(length: int, parts: Sequence[int]) -> list[int]:
    """Return the lengths after nested splits by ``parts``, all ranks row-major.

    >>> chunk_lengths(5, [2, 2])
    [2, 1, 1, 1]
    """
    lengths = [length]
    for count in parts:
        lengths = [chunk(n, count, i)[1] for n in lengths for i in range(count)]
    return lengths


def dim_range(
    length: int, dim: int, placement: Placement, mesh: Mesh, coordinates: Mapping[str, int]
) -> tuple[int, int]:
    """Return start and length of the part of a dim at mesh coordinates."""
    start = 0
    for axis in placement.split_axes(dim):
        offset, length = chunk(length, mesh.size(axis), coordinates[axis])
        start += offset
    return start, length


def slices(shape: Sequence[int], placement: Placement, mesh: Mesh, rank: int) -> Slices:
    """Return the part of a logical tensor that a rank holds.

    >>> from irc.dialects.placement import B
    >>> mesh = Mesh.parse("data=2,tensor=2")
    >>> slices((5, 3), Placement.of(data=Split(0), tensor=B), mesh, 2)
    (slice(3, 5, None), slice(0, 3, None))
    """
    coordinates = mesh.coordinates(rank)
    ranges = (dim_range(n, i, placement, mesh, coordinates) for i, n in enumerate(shape))
    return tuple(slice(start, start + length) for start, length in ranges)


def local_shape(
    shape: Sequence[int],
    placement: Placement,
    mesh: Mesh,
    coordinates: Mapping[str, int] | None = None,
) -> tuple[int, ...]:
    """Return the shape of a rank's shard; without coordinates, that of all ranks.

    Raises:
        ValueError: without coordinates, where ranks' shards differ in shape.
    """
    if coordinates is not None:
        return tuple(dim_range(n, i, placement, mesh, coordinates)[1] for i, n in enumerate(shape))
    for dim, size in enumerate(shape):
        axes = placement.split_axes(dim)
        parts = [mesh.size(axis) for axis in axes]
        # Listing the lengths of thousands of ranks takes as long.
        if size % prod(parts) and len(set(chunk_lengths(size, parts))) > 1:
            raise ValueError(
                f"dim {dim} of size {size} does not split evenly over "
                f"{' and '.join(axes)} of {mesh}"
            )
    return local_shape(shape, placement, mesh, mesh.coordinates(0))


def shard(array: Array, placement: Placement, mesh: Mesh) -> list[Array]:
    """Cut a whole array into what each rank holds, by rank.

    A partial sum is held by the first rank of its axes, the others hold zeros (exact, also for
    integers); of a partial maximum or minimum every rank holds the value itself.
    """
    parts: list[Array] = []
    for rank in range(mesh.num_ranks):
        part = array[slices(array.shape, placement, mesh, rank)]
        coordinates = mesh.coordinates(rank)
        adds = [axis for axis, p in placement.axes if p == Partial("sum") and coordinates[axis]]
        parts.append(_zeros(part, part.shape) if adds else part)
    return parts


def combine(
    parts: Sequence[Array],
    placement: Placement,
    mesh: Mesh,
    shape: Sequence[int],
    replica: Mapping[str, int] | None = None,
) -> Array:
    """Join what the ranks hold into the logical array.

    Args:
        parts: each rank's array.
        placement: how the mesh holds the value.
        mesh: the mesh.
        shape: the logical shape.
        replica: which rank to believe on axes that hold copies (the first, if not given).

    Raises:
        ValueError: where a part has not the shape of its shard, or kinds of partial mix.
    """
    kinds: set[Reduction] = {p.reduction for p in placement if isinstance(p, Partial)}
    if len(kinds) > 1:
        raise ValueError(f"{placement} mixes partial values: their order would matter")
    whole = _zeros(parts[0], tuple(shape))
    for place in _places(placement, mesh, Split):
        held: Array = None
        for terms in _places(placement, mesh, Partial):
            copies = {axis: (replica or {}).get(axis, 0) for axis in _axes(placement, Broadcast)}
            rank = mesh.rank({**copies, **place, **terms})
            where = slices(shape, placement, mesh, rank)
            expected = tuple(s.stop - s.start for s in where)
            if tuple(parts[rank].shape) != expected:
                raise ValueError(
                    f"rank {rank} holds {tuple(parts[rank].shape)}, its shard of {tuple(shape)} "
                    f"as {placement} is {expected}"
                )
            held = parts[rank] if held is None else _reduce(kinds, held, parts[rank])
            whole[where] = held
    return whole


def _axes(placement: Placement, kind: type) -> list[str]:
    return [axis for axis, placed in placement.axes if isinstance(placed, kind)]


def _places(placement: Placement, mesh: Mesh, kind: type) -> list[dict[str, int]]:
    """Return every position on the axes placed as ``kind``."""
    axes = _axes(placement, kind)
    sizes = (range(mesh.size(axis)) for axis in axes)
    return [dict(zip(axes, place, strict=True)) for place in cartesian(*sizes)]


def _reduce(kinds: set[Reduction], a: Array, b: Array) -> Array:
    (kind,) = kinds
    if kind == "sum":
        return a + b
    if hasattr(a, "maximum"):
        return a.maximum(b) if kind == "max" else a.minimum(b)
    return np.maximum(a, b) if kind == "max" else np.minimum(a, b)


def _zeros(like: Array, shape: Sequence[int]) -> Array:
    """Return zeros of another array's kind and dtype."""
    make = getattr(like, "new_zeros", None)
    return np.zeros(shape, dtype=like.dtype) if make is None else make(tuple(shape))
