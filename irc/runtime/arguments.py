"""What a call is given and gives back: the checks of inputs, the memory of outputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import torch

from irc.errors import IrcError
from irc.plan.schema import Plan, placement_of
from irc.plan.weights import local_slices
from irc.runtime.addresses import check_elements
from irc.runtime.dtypes import dtypes
from irc.runtime.frame import view_of


def whole_shape(plan: Plan, index: int) -> tuple[int, ...]:
    """Return the shape of an argument before it is padded and split over the mesh."""
    buffer, mesh = plan.buffers[index], plan.device_mesh
    shape, placement = list(buffer.shape), placement_of(buffer)
    for dim in range(len(shape)):
        for axis in placement.split_axes(dim):
            shape[dim] *= mesh.size(axis)
    return (buffer.rows, *shape[1:]) if buffer.rows else tuple(shape)


def input_part(plan: Plan, index: int, rank: int, whole: torch.Tensor) -> torch.Tensor:
    """Return the part of a whole input that a rank reads."""
    placement = placement_of(plan.buffers[index])
    return whole[local_slices(placement, plan.device_mesh, rank, tuple(whole.shape))]


def held_parts(plan: Plan, wholes: Sequence[torch.Tensor], rank: int) -> list[torch.Tensor]:
    """Return whole inputs as a rank gives them: of what ranks hold, a copy of its own part."""
    return [
        input_part(plan, index, rank, whole).clone(memory_format=torch.contiguous_format)
        if plan.buffers[index].role == "cache"
        else whole
        for index, whole in zip(plan.inputs, wholes, strict=True)
    ]


HELD_ROLES = ("cache", "saved", "boundary")
"""Roles of inputs that ranks hold in parts."""


class Input:
    """Checks one input and gives the part of it that this rank reads, contiguous."""

    def __init__(self, plan: Plan, index: int, rank: int, device: str = "cpu") -> None:
        buffer = plan.buffers[index]
        self.device = device
        # What ranks hold between calls is given as they hold it, and written in place.
        self.is_held = buffer.role in HELD_ROLES
        self.shape = torch.Size(buffer.shape if self.is_held else whole_shape(plan, index))
        self.dtype = dtypes()[buffer.dtype]
        self.base = plan.bases.index(index) + 1
        self.name = buffer.name
        self.title = f"input '{buffer.name}'"
        split = buffer.placement and not self.is_held
        self._part = partial(input_part, plan, index, rank) if split else None

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        here = tensor.is_cpu is (self.device == "cpu")
        if tensor.shape != self.shape or tensor.dtype is not self.dtype or not here:
            raise IrcError(
                "input-mismatch",
                f"{self.title} is {list(tensor.shape)} {tensor.dtype} on {tensor.device}; "
                f"the plan takes {list(self.shape)} {self.dtype} on {self.device}",
                help="compile again for this shape and dtype",
            )
        check_elements(tensor, self.title)
        if self._part is not None:
            tensor = self._part(tensor)
        if self.is_held and not _is_plain(tensor):
            raise IrcError(
                "input-mismatch",
                f"{self.title} is written in place and its memory has gaps, or another sign",
                help="give a contiguous tensor",
            )
        # What is lazily negated or conjugated, and its memory is not what it says.
        return tensor if _is_plain(tensor) else tensor.resolve_conj().resolve_neg().contiguous()


def _is_plain(tensor: torch.Tensor) -> bool:
    """True where a tensor's memory is its elements, one after the other."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


class Outputs:
    """Says what memory the outputs need (base, shape, dtype), and shows the outputs in it."""

    def __init__(self, plan: Plan) -> None:
        self.roots = [i for i, b in enumerate(plan.buffers) if b.storage == "output"]
        owned = [(i, plan.buffers[i]) for i in self.roots]
        self.bases = [plan.bases.index(i) + 1 for i in self.roots]
        self.fresh = [(plan.bases.index(i) + 1, b.shape, dtypes()[b.dtype]) for i, b in owned]
        position = {root: k for k, root in enumerate(self.roots)}
        self._shown = [(position[plan.root(i)], plan.buffers[i]) for i in plan.outputs]
        self.are_plain = [k for k, _ in self._shown] == list(range(len(self.roots))) and all(
            buffer.storage == "output" for _, buffer in self._shown
        )

    def forms(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]] | None:
        """Return shape and strides of each output, where each is all of its memory, in order.

        Memory that has these from the start is the output, and need not be shown as one.
        """
        if [k for k, _ in self._shown] != list(range(len(self.roots))):
            return None
        forms: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        for k, buffer in self._shown:
            is_view, strides = buffer.storage == "alias", buffer.dense_strides
            if is_view and (buffer.offset or not _is_dense(buffer.shape, strides)):
                return None
            if prod(buffer.shape) != prod(self.fresh[k][1]):
                return None
            forms.append((tuple(buffer.shape), tuple(strides)))
        return forms

    def show(self, fresh: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        if self.are_plain:
            return tuple(fresh)
        return tuple(view_of(fresh[k], buffer) for k, buffer in self._shown)


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """True where elements lie without gaps, each at its own place, in whatever order of dims."""
    step = 1
    for stride, size in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n != 1):
        if stride != step:
            return False
        step *= size
    return True
