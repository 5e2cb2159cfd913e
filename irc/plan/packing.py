"""How collectives use memory: which need packed copies, and of which shape.

A library moves contiguous chunks along the first dim. A collective along another dim (or one that
splits and joins different dims) goes through scratch buffers that the plan accounts for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

Shape: TypeAlias = tuple[int, ...]


def leads(shape: Sequence[int], dim: int) -> bool:
    """True where chunks along ``dim`` are contiguous in order: all dims before it have size 1.

    >>> leads((1, 4, 3), 1), leads((2, 4, 3), 1)
    (True, False)
    """
    return prod(shape[:dim]) == 1


def scratch_sizes(
    op: str, attrs: Mapping[str, Any], source: Shape, target: Shape, size: int
) -> tuple[Shape | None, Shape | None]:
    """Return the shapes of the packed send and receive buffers, None where not needed.

    Packed buffers have the group first: chunk r of a packed send goes to rank r.
    """
    if size == 1:
        return None, None
    match op:
        case "comm.all_gather":
            return None, None if leads(source, attrs["dim"]) else (size, *source)
        case "comm.reduce_scatter":
            return None if leads(source, attrs["dim"]) else (size, *target), None
        case "comm.all_to_all":
            chunk = chunk_shape(source, attrs["split_dim"], size)
            return (
                None if leads(source, attrs["split_dim"]) else (size, *chunk),
                None if leads(chunk, attrs["concat_dim"]) else (size, *chunk),
            )
        case "comm.dispatch_rows":
            # Marked rows stand close together; there may be as many as there are rows.
            return target, target
        case "comm.combine_rows":
            return source, source
        case _:
            return None, None


def chunk_shape(shape: Shape, dim: int, size: int) -> Shape:
    """Return the shape of one of ``size`` equal chunks along ``dim``.

    >>> chunk_shape((4, 6), 1, 3)
    (4, 2)
    """
    return (*shape[:dim], shape[dim] // size, *shape[dim + 1 :])
