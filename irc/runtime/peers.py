"""The other ranks of a plan of several programs, as one rank knows them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeAlias
from weakref import ref

import torch
import torch.distributed as dist

from irc.plan.parts import PartsPlan
from irc.runtime.collectives import Communicator, TorchCommunicator
from irc.runtime.links import Links
from irc.runtime.network_threads import defer_network_threads
from irc.runtime.transfers import Transfers
from irc.schedule.tapes import Event
from irc.training.accumulators import ACCUMULATED

_library: Any = dist
"""torch's collectives, whose types are unknown in part."""

Group: TypeAlias = Callable[[], Any]
Places: TypeAlias = tuple[int, ...]
"""Places of the pipe axis."""


class Peers(Protocol):
    """What a rank asks of the others.

    Attributes:
        communicator: starts collectives inside of its part; None where that is one rank.
    """

    @property
    def communicator(self) -> Communicator | None: ...

    def transfer(self, event: Event, register: torch.Tensor) -> Callable[[], object]:
        """Return what does an event of a tape that is no run."""
        ...

    def add(self, tensor: torch.Tensor, places: Places) -> None:
        """Add a tensor up over the ranks at some places that have the same slice, in place."""
        ...

    def gather(self, own: torch.Tensor, axes: Sequence[str]) -> list[torch.Tensor]:
        """Return what the ranks of a part have along some axes, this rank's among them."""
        ...

    def loss(self, own: torch.Tensor) -> torch.Tensor:
        """Return the loss, given this rank's sum of micro-batches' losses."""
        ...


class TorchPeers:
    """Processes that torch.distributed joins; every one of them makes this at the same time.

    Args:
        plan: the plan.
        rank: of this process.
        in_order: messages have no tags, as of :class:`irc.runtime.transfers.Transfers`.
        links: that messages take; by default those that are there.
    """

    def __init__(
        self,
        plan: PartsPlan,
        rank: int,
        *,
        in_order: bool = False,
        links: Links | None = None,
    ) -> None:
        self._plan, self._is_alone = plan, plan.mesh.num_ranks == 1
        self._place = next(p for p, ranks in enumerate(plan.ranks) if rank in ranks)
        self._ranks = plan.ranks[self._place]
        self._local = self._ranks.index(rank)
        self._links = links
        self._transfers = Transfers(plan, rank, in_order=in_order, links=links)
        self._groups: dict[Places, Group] = {}
        self._communicator: Communicator | None = None
        if not self._is_alone:
            self._communicator = TorchCommunicator.of_parts(plan.part_mesh, plan.ranks, rank)
            self._groups = _groups(plan, rank, self._local)

    @property
    def communicator(self) -> Communicator | None:
        """Starts collectives inside of the part."""
        if self._links is None or self._communicator is None:
            return self._communicator
        own, processes = self._communicator, self._ranks
        return self._links.collectives(own, self._plan.part_mesh, self._local, processes)

    def transfer(self, event: Event, register: torch.Tensor) -> Callable[[], object]:
        """Return what sends, receives or waits."""
        return self._transfers.step(event, register)

    def add(self, tensor: torch.Tensor, places: Places) -> None:
        """Add up with an all-reduce."""
        if (group := self._groups.get(places)) is not None:
            _library.all_reduce(tensor, group=group())

    def gather(self, own: torch.Tensor, axes: Sequence[str]) -> list[torch.Tensor]:
        """Gather along one axis after the other, the last one first."""
        gathered = own.contiguous().reshape(1, -1).view(torch.uint8)  # gloo knows few dtypes
        communicator: Any = self._communicator
        for axis in reversed(axes):
            group, size = communicator.groups[axis]
            if size > 1:
                rows = [torch.empty_like(gathered) for _ in range(size)]
                _library.all_gather(rows, gathered, group=group())
                gathered = torch.cat(rows)
        return [row.view(own.dtype).view(own.shape) for row in gathered]

    def loss(self, own: torch.Tensor) -> torch.Tensor:
        """Return the loss; ranks that do not compute it receive it."""
        places = self._plan.loss_places
        if len(places) > 1:
            if self._place not in places or self._local:
                own.zero_()
            _library.all_reduce(own)
        elif not self._is_alone:
            dist.broadcast(own, self._plan.ranks[places[0]][0])  # pyright: ignore[reportGeneralTypeIssues]
        return own


def summed_places(plan: PartsPlan) -> dict[str, Places]:
    """Return the places that hold each accumulator, by its name."""
    sums = sorted(name for name in plan.holders if name.startswith(ACCUMULATED))
    return {name: plan.places_of(name) for name in sums}


def shared_sums(plan: PartsPlan, local: Collection[str]) -> list[tuple[str, Places]]:
    """Return the accumulators of a rank that others have too, and the places that hold them."""
    summed = summed_places(plan).items()
    return [(name, places) for name, places in summed if len(places) > 1 and name in local]


def _groups(plan: PartsPlan, rank: int, local: int) -> dict[Places, Group]:
    """Make the groups in which ranks of several parts add up; return those of this rank."""
    every = tuple(range(len(plan.ranks)))
    own: dict[Places, Group] = {}
    for places in dict.fromkeys([every, *summed_places(plan).values()]):
        for index in range(plan.part_mesh.num_ranks) if len(places) > 1 else ():
            ranks = [plan.ranks[place][index] for place in places]
            group = _library.new_group(ranks)
            if rank in ranks and index == local:
                # torch lets go of its groups when the processes part: we hold none.
                own[places] = ref(group)
    defer_network_threads()
    return own
