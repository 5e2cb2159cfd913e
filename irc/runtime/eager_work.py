"""How an optimiser that runs eagerly sees a parameter: on which part, and how values get there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from irc.dialects.placement import Mesh, Placement
from irc.plan.weights import local_slices
from irc.runtime.dtypes import dtype_name
from irc.runtime.moving import move
from irc.runtime.parts import Parts
from irc.runtime.torch_optimizer import state_name
from irc.sharding.between import Channel, Side
from irc.training.optimizers import GRADIENT


@dataclass(frozen=True)
class Work:
    """How an optimiser sees a parameter; no channel where that is how ranks hold it."""

    placement: Placement
    shape: tuple[int, ...]
    fetch: Channel | None
    gradient: Channel | None
    give: Channel | None


def work_on(parts: Parts, name: str, *, elementwise: bool) -> Work:
    """Return how an optimiser is to see a parameter that this rank holds.

    Args:
        parts: of this rank, with its gradients.
        name: of the parameter.
        elementwise: whether parts of it are enough.
    """
    placed = parts.placements()
    own, gradient = placed[name], placed[state_name(GRADIENT, name)]
    shape, mesh, ranks = parts.shape(name), parts.mesh, parts.mesh_ranks
    part, slope = parts.local[name], parts.local[state_name(GRADIENT, name)]
    chosen = placement_of_work(parts, name, elementwise=elementwise)

    def channel(before: Placement, after: Placement, dtype: torch.dtype) -> Channel | None:
        if before == after or mesh.num_ranks == 1:
            return None
        sides = Side(before, mesh, ranks), Side(after, mesh, ranks)
        return Channel(shape, dtype_name(dtype), *sides)

    return Work(
        chosen,
        shape,
        channel(own, chosen, part.dtype),
        channel(gradient, chosen, slope.dtype),
        channel(chosen, own, part.dtype),
    )


def placement_of_work(parts: Parts, name: str, *, elementwise: bool) -> Placement:
    """Return how a parameter and its states lie for an optimiser, the same on every rank.

    Args:
        parts: say how the parameter and its gradient lie, whoever holds them.
        name: of the parameter.
        elementwise: whether parts of it are enough; then the smaller of the two counts.
    """
    if not elementwise:
        return Placement.replicated(parts.mesh.names)
    placed, shape = parts.placements(), parts.shape(name)
    both = placed[name], placed[state_name(GRADIENT, name)]
    return min(both, key=lambda p: _size(p, parts.mesh, shape))


def through(channel: Channel | None, rank: int, own: torch.Tensor) -> torch.Tensor:
    """Return what a rank of the run needs of a value, of which it holds a part."""
    if channel is None:
        return own
    moved = move(channel, rank, own)
    assert moved is not None  # all ranks of the mesh are on both sides
    return moved


def is_same(parameter: torch.Tensor, part: torch.Tensor) -> bool:
    """Return whether a parameter is a part's memory already."""
    is_there = not parameter.is_meta and parameter.data_ptr() == part.data_ptr()
    return is_there and parameter.shape == part.shape


def become(parameter: torch.Tensor, value: torch.Tensor) -> None:
    """Give a parameter other data, of any shape; it stays the same object."""
    if parameter.is_meta:
        new = nn.Parameter(value, parameter.requires_grad)
        torch.utils.swap_tensors(parameter, new)  # pyright: ignore[reportUnknownMemberType]
    else:
        parameter.data = value


def blank(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return a tensor of one element's memory, that says it has no values."""
    return torch.full((), math.nan, dtype=like.dtype).expand(tuple(shape))


def _size(placement: Placement, mesh: Mesh, shape: tuple[int, ...]) -> int:
    """Return how many elements the first rank has, the same on every rank."""
    return math.prod(s.stop - s.start for s in local_slices(placement, mesh, 0, shape))
