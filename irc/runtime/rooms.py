"""Memory for padded weights: what a rank holds of one is the front of what its program reads.

A program takes as many rows on each rank (:mod:`irc.sharding.padding`), and behind those that are
values lie zeros. Everyone but the program is shown the front alone: optimisers, checkpoints, users.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from irc.plan.schema import Buffer, row_major


def with_room(part: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return a copy of a part, as the front of memory of its own.

    Args:
        part: of no more rows than the memory, and alike in its other dims.
        shape: of the memory, whose rest is zeros.
    """
    room = part.new_zeros(tuple(shape))
    front = room[: len(part)]
    front.copy_(part)
    return front


def room_of(front: torch.Tensor, shape: Sequence[int]) -> torch.Tensor | None:
    """Return the memory of which a part is the front; None where it is that of no other memory.

    Args:
        front: as :func:`with_room` gives it, or a view of that.
        shape: of the memory.
    """
    strides, size = row_major(tuple(shape)), prod(shape) * front.element_size()
    fits = tuple(front.shape[1:]) == tuple(shape[1:]) and len(front) <= shape[0]
    alone = front.storage_offset() == 0 and front.untyped_storage().nbytes() == size
    if not (fits and alone and (front.is_contiguous() or front.stride() == strides)):
        return None
    return front.as_strided(tuple(shape), strides)


def is_short(part: torch.Tensor, buffer: Buffer) -> bool:
    """Return whether a part is that of a rank which has fewer rows of a padded weight than others.

    Args:
        part: of any memory.
        buffer: what the program reads.
    """
    size = buffer.shape[0]
    own = len(part) if part.ndim else size
    return own in (buffer.rows % size, 0) and own < size and part.shape[1:] == buffer.shape[1:]
