"""Where the gradients of a training loop on a mesh go when a backward pass has computed them.

A backward plan gives the gradient of a parameter as the sum that each rank has of its own part of
the batch. What autograd asks for decides what is done with it: a gradient that is added to
``.grad`` is summed over the ranks, together with what earlier passes left; under ``no_sync()`` it
stays a sum to be made (a *pending* gradient), so that several batches cost one collective (Li et
al., PyTorch Distributed, arXiv:2006.15704, section 3.2.4); what ``torch.autograd.grad`` returns is
summed at once and leaves ``.grad`` alone; and what nobody asked for is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

import torch
from torch import nn

from irc.dialects.placement import Partial, Placement
from irc.plan.weights import local_slices
from irc.programs.halves import is_reduction
from irc.runtime import held
from irc.runtime.ranks import Ranks
from irc.runtime.reduction import Reduction


class Destination(Enum):
    """What autograd does with a gradient in the backward pass that runs."""

    LEFT_OUT = auto()
    """Nothing asked for it."""
    ADDED = auto()
    """It is added to ``.grad``."""
    RETURNED = auto()
    """``torch.autograd.grad`` returns it."""


def destination(node: Any) -> Destination:
    """Return where the gradient of a leaf goes.

    Args:
        node: autograd's, that takes the gradient; None for what requires none. It is asked while a
            backward pass runs.
    """
    if node is None:
        return Destination.LEFT_OUT
    try:
        will_run = torch._C._will_engine_execute_node(node)  # pyright: ignore[reportPrivateUsage]
    except RuntimeError:  # torch refuses to say it of a leaf that torch.autograd.grad returns
        return Destination.RETURNED
    return Destination.ADDED if will_run else Destination.LEFT_OUT


class Pending:
    """Which plain parameters have a ``.grad`` that is a sum still to be made.

    A parameter in parts has a DTensor for a gradient, which says so itself. The gradient of a plain
    one is then partial over all axes of the mesh, whatever each pass computed: a pass that has all
    of it on every rank leaves it on the first rank alone.
    """

    def __init__(self, ranks: Ranks, mesh: Any) -> None:
        self._parameters: set[nn.Parameter] = set()
        self._mesh, self._rank = mesh, ranks.rank
        self._everywhere = Placement.in_mesh_order(tuple((a, Partial()) for a in mesh.names))
        whole = Placement.replicated(mesh.names)
        self._sum = Reduction(mesh, ranks.communicator, [(self._everywhere, whole)])

    def take(
        self, parameter: nn.Parameter, part: torch.Tensor, computed: Placement
    ) -> torch.Tensor:
        """Return a sum to be made with what is pending of a parameter, which has nothing after.

        Where the two are not sums of the same parts, what is pending is summed by itself and stays:
        every rank calls this for the same parameters.
        """
        gradient = parameter.grad
        is_pending = parameter in self._parameters
        self._parameters.discard(parameter)
        if not is_pending or gradient is None:
            return part
        if computed != self._everywhere:
            parameter.grad = self._sum([gradient])[0]
            return part
        parameter.grad = None
        return part + gradient

    def leave(
        self, parameter: nn.Parameter, part: torch.Tensor, computed: Placement
    ) -> torch.Tensor:
        """Return this rank's part of a sum that stays to be made, and make ``.grad`` one too."""
        gradient = parameter.grad
        if parameter not in self._parameters and gradient is not None and self._rank:
            gradient.zero_()
        self._parameters.add(parameter)
        place, partial = self._mesh.coordinates(self._rank), computed.partial_axes()
        has_it = all(axis in partial or place[axis] == 0 for axis in self._mesh.names)
        return part if has_it else torch.zeros_like(part)


class Accumulation:
    """Delivers the gradients of one kind of call.

    Args:
        ranks: the processes.
        mesh: over them.
        pending: of all kinds of calls of the module.
        parameters: whose gradients come first.
        computed: how the backward plan computes each gradient, those of inputs behind.
        placed: how each is to lie.
    """

    def __init__(
        self,
        ranks: Ranks,
        mesh: Any,
        pending: Pending,
        parameters: Sequence[nn.Parameter],
        computed: Sequence[Placement],
        placed: Sequence[Placement],
    ) -> None:
        # What is no sum of ranks' parts is where it is to lie already.
        assert all(
            is_reduction(a, b) if a.partial_axes() else a == b
            for a, b in zip(computed, placed, strict=True)
        )
        assert not any(p.partial_axes() for p in computed[len(parameters) :])
        self._mesh, self._rank, self._pending = mesh, ranks.rank, pending
        self._parameters, self._computed, self._placed = parameters, computed, placed
        self._reduction = Reduction(
            mesh, ranks.communicator, list(zip(computed, placed, strict=True))
        )

    def __call__(
        self, parts: Sequence[torch.Tensor], nodes: Sequence[Any], *, is_synced: bool
    ) -> list[torch.Tensor | None]:
        """Return what autograd is given of each gradient; every rank calls it.

        Args:
            parts: what this rank computed of each.
            nodes: of autograd, that take them; None where nothing is to be delivered.
            is_synced: whether gradients are summed over the ranks now.
        """
        ways = [destination(node) for node in nodes]
        count = len(self._parameters)
        added = [way is Destination.ADDED for way in ways[:count]]
        lying, gradients = self._placed, list(parts)
        if any(added):
            gradients[:count] = [
                (self._taken if is_synced else self._left)(place, part) if adds else part
                for place, (part, adds) in enumerate(zip(parts[:count], added, strict=True))
            ]
        if any(added) and not is_synced:
            lying = self._computed
        elif any(way is not Destination.LEFT_OUT for way in ways[:count]):
            gradients = self._reduction(gradients)
        return [
            None if way is Destination.LEFT_OUT else self._held(place, part, lying[place])
            for place, (part, way) in enumerate(zip(gradients, ways, strict=True))
        ]

    def _taken(self, place: int, part: torch.Tensor) -> torch.Tensor:
        """Return a sum to be made with what earlier passes left of it."""
        parameter: Any = self._parameters[place]
        computed = self._computed[place]
        if not held.is_held(parameter):
            return self._pending.take(parameter, part, computed)
        gradient = parameter.grad
        if gradient is None or not any(p.is_partial() for p in gradient.placements):
            return part
        if gradient.placements == held.torch_placements(computed, self._mesh):
            parameter.grad = None
            return _added(part, held.part_of(gradient))
        parameter.grad = gradient.redistribute(placements=parameter.placements)
        return part

    def _left(self, place: int, part: torch.Tensor) -> torch.Tensor:
        """Return a sum that stays to be made."""
        parameter = self._parameters[place]
        if held.is_held(parameter):
            return part
        return self._pending.leave(parameter, part, self._computed[place])

    def _held(self, place: int, part: torch.Tensor, placement: Placement) -> torch.Tensor:
        """Return a gradient as what its parameter is: plain, or a DTensor."""
        if place >= len(self._parameters) or not held.is_held(self._parameters[place]):
            return part
        parameter: Any = self._parameters[place]
        if (
            part.shape == held.part_of(parameter).shape
            and held.torch_placements(placement, self._mesh) == parameter.placements
        ):
            return held.lying_as(parameter, part)
        shape = tuple(parameter.shape)
        if shape:
            rows = local_slices(placement, self._mesh, self._rank, shape)[0]
            part = part[: rows.stop - rows.start]  # without padding
        return held.dtensor(part, placement, self._mesh, shape)


def _added(part: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Return a gradient and what there was of it, which has no padding."""
    if part.shape == before.shape:
        return part + before
    part = part.clone()
    part[: len(before)] += before
    return part
