"""The memory of one call: an arena, a base table, and tensors that show the plan's buffers.

Frames are leased: two threads that call one executor at the same time get different ones. (Foreign
calls release Python's lock; two threads on one arena are wrong most of the time.)
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from irc.dialects.types import ITEM_BYTES
from irc.plan.schema import ALIGNMENT, Buffer, Kernels, Plan, touched
from irc.runtime.dtypes import dtypes
from irc.runtime.pages import zero_bytes, zero_tensors

WORD = 8
"""Bytes of a base."""

View: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]
"""Shape, strides, and how many elements it begins after its owner."""

Bound: TypeAlias = tuple[int, int, View | None]
"""A buffer, whose memory it is in, and how; None: all of it."""


@dataclass
class Frame:
    """Memory of one call.

    Attributes:
        arena: at least the plan's arena, aligned.
        table: base pointers, the arena first.
        tensors: for each buffer that torch touches, the tensor that shows it; those in the arena
            and in weights stay, those in inputs and outputs are bound for each call.
    """

    arena: torch.Tensor
    table: ctypes.Array[ctypes.c_int64]
    tensors: list[torch.Tensor | None]
    bound: list[Bound] = field(default_factory=list[Bound])

    @property
    def address(self) -> int:
        """The address of the base table."""
        return ctypes.addressof(self.table)

    def bind(self, owners: Mapping[int, torch.Tensor] | Sequence[torch.Tensor | None]) -> None:
        """Show inputs and outputs of this call, and views of them, to torch."""
        for index, root, view in self.bound:
            owner = owners[root]
            assert owner is not None
            if view is not None:
                shape, strides, offset = view
                owner = owner.as_strided(shape, strides, owner.storage_offset() + offset)
            self.tensors[index] = owner


def view_of(owner: torch.Tensor, buffer: Buffer) -> torch.Tensor:
    """Return an alias of a tensor, or the tensor itself."""
    if (view := _alias(buffer)) is None:
        return owner
    shape, strides, offset = view
    return owner.as_strided(shape, strides, owner.storage_offset() + offset)


def _alias(buffer: Buffer) -> View | None:
    if buffer.storage != "alias":
        return None
    return buffer.shape, buffer.dense_strides, buffer.offset // ITEM_BYTES[buffer.dtype]


def arena_view(arena: torch.Tensor, buffer: Buffer, offset: int) -> torch.Tensor:
    """Return the tensor at an offset of the arena."""
    dtype = dtypes()[buffer.dtype]
    # An empty tensor may lie at the very end, where nothing can be sliced off and viewed.
    if buffer.size_bytes == 0:
        return torch.empty(buffer.shape, dtype=dtype)
    part = arena[offset : offset + buffer.size_bytes].view(dtype)
    return part.as_strided(buffer.shape, buffer.dense_strides, part.storage_offset())


def new_arena(num_bytes: int) -> torch.Tensor:
    """Allocate an arena whose first byte is aligned."""
    raw = zero_bytes(num_bytes + ALIGNMENT)
    return raw[-raw.data_ptr() % ALIGNMENT :][:num_bytes]


def table_with(
    table: ctypes.Array[ctypes.c_int64], addresses: Mapping[int, int]
) -> tuple[ctypes.Array[ctypes.c_int64], int]:
    """Return all bases but the arena as they are in a table, some replaced, and their bytes."""
    size = len(table) - 1
    words = (ctypes.c_int64 * size)(*table[1:])
    for base, address in addresses.items():
        words[base - 1] = address
    return words, WORD * size


def new_prepared(plan: Plan) -> dict[int, torch.Tensor]:
    """Allocate what a plan prepares, all zeros: packing leaves the padding as it finds it."""
    chosen = [i for i, buffer in enumerate(plan.buffers) if buffer.storage == "prepared"]
    kinds = [(plan.buffers[i].shape, dtypes()[plan.buffers[i].dtype]) for i in chosen]
    return dict(zip(chosen, zero_tensors(kinds), strict=True))


def new_frame(
    plan: Plan,
    weights: Mapping[int, torch.Tensor],
    *,
    show_all: bool = False,
    arena: torch.Tensor | None = None,
) -> Frame:
    """Allocate a frame.

    Args:
        plan: what runs in it.
        weights: this rank's by buffer, and what is prepared of them.
        show_all: make tensors of all buffers, not only of those that torch touches.
        arena: memory that plans which run one after the other share, aligned; by default new.
    """
    arena = new_arena(plan.arena_bytes) if arena is None else arena[: plan.arena_bytes]
    table = (ctypes.c_int64 * (1 + len(plan.bases)))()
    table[0] = arena.data_ptr()
    for base, index in enumerate(plan.bases, 1):
        if index in weights:
            table[base] = weights[index].data_ptr()
    frame = Frame(arena, table, [None] * len(plan.buffers))
    for index in range(len(plan.buffers)) if show_all else sorted(_shown(plan)):
        buffer, root = plan.buffers[index], plan.root(index)
        owner = plan.buffers[root]
        if owner.storage == "arena":
            frame.tensors[index] = arena_view(arena, buffer, plan.addresses[index][1])
        elif owner.storage in ("weight", "prepared"):
            if root not in weights:  # it was let go: only what was prepared of it is read
                continue
            frame.tensors[index] = view_of(weights[root], buffer)
        else:
            frame.bound.append((index, root, _alias(buffer)))
    return frame


def _shown(plan: Plan) -> set[int]:
    """Return the buffers that some action touches through torch."""
    return {
        index
        for action in (*plan.prepared, *plan.actions)
        if not isinstance(action, Kernels)
        for index in touched(action, plan.actions)
    }
