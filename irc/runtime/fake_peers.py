"""Other ranks that are not there: one rank of a plan runs alone, and what comes is of its own.

Collectives have the shapes, packing and scratch of real ones. A rank receives its own data in the
place of others', so that values stay in the range in which the rank's own are. Values from other
stages are drawn once. With ``links`` all of that takes as long as the plan says it takes on the
links of its cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from irc.dialects.placement import Mesh
from irc.plan.parts import PartsPlan
from irc.plan.schema import Start
from irc.runtime.collectives import Communicator, Finish, NoPeers, Operands, pack, unpack
from irc.runtime.links import Links
from irc.schedule.tapes import Event

Answer: TypeAlias = Callable[[int, int, Mapping[str, Any], Operands], None]
"""Given the size of an axis, the position on it, attributes and operands: does a collective."""

ACTIVATION_STD = 0.5
"""Standard deviation of what comes from other stages."""


@dataclass(frozen=True)
class FakeCommunicator:
    """Starts collectives of one rank that meet nobody.

    Attributes:
        mesh: whose axes they are over.
        rank: on it.
    """

    mesh: Mesh
    rank: int

    def start(self, action: Start, operands: Operands) -> Finish:
        """Do what the collective does, every other rank having this one's data."""
        axis = action.attrs["axis"]
        size = self.mesh.size(axis)
        if size == 1:
            return NoPeers().start(action, operands)
        here = self.mesh.coordinates(self.rank)[axis]
        ANSWERS[action.op](size, here, action.attrs, operands)
        return _nothing


def _nothing() -> None: ...


def _all_reduce(size: int, here: int, attrs: Mapping[str, Any], operands: Operands) -> None:
    if operands.target.data_ptr() != operands.source.data_ptr():
        operands.target.copy_(operands.source)


def _all_gather(size: int, here: int, attrs: Mapping[str, Any], operands: Operands) -> None:
    landing = operands.target if operands.receive is None else operands.receive
    landing.view(size, -1).copy_(operands.source.reshape(1, -1).expand(size, -1))
    if operands.receive is not None:
        unpack(operands.target, operands.receive, attrs["dim"])


def _reduce_scatter(size: int, here: int, attrs: Mapping[str, Any], operands: Operands) -> None:
    source = _packed(operands, attrs["dim"], size)
    operands.target.view(-1).copy_(source.reshape(size, -1)[here])


def _all_to_all(size: int, here: int, attrs: Mapping[str, Any], operands: Operands) -> None:
    source = _packed(operands, attrs["split_dim"], size)
    landing = operands.target if operands.receive is None else operands.receive
    landing.view(-1).copy_(source.reshape(-1))
    if operands.receive is not None:
        unpack(operands.target, operands.receive, attrs["concat_dim"])


def _permute(size: int, here: int, attrs: Mapping[str, Any], operands: Operands) -> None:
    if here in [int(target) for target in attrs["targets"]]:
        operands.target.copy_(operands.source)
    else:
        operands.target.zero_()


def _dispatch_rows(size: int, here: int, attrs: Mapping[str, Any], operands: Operands) -> None:
    marks, coming, target = operands.marks, operands.coming, operands.target
    assert marks is not None
    assert coming is not None
    rows = marks.shape[1]
    landing = _sent_rows(operands.source.reshape(rows, -1), marks.nonzero()[:, 1], operands)
    flat = target.view(size * rows, -1)
    flat.zero_()
    flat[coming.reshape(-1).nonzero().reshape(-1)] = landing


def _combine_rows(size: int, here: int, attrs: Mapping[str, Any], operands: Operands) -> None:
    marks, coming, target = operands.marks, operands.coming, operands.target
    assert marks is not None
    assert coming is not None
    rows = marks.shape[1]
    source = operands.source.reshape(size * rows, -1)
    landing = _sent_rows(source, marks.reshape(-1).nonzero()[:, 0], operands)
    flat = target.view(rows, -1)
    flat.zero_()
    for places, part in zip(coming, _by_source(landing, coming), strict=True):
        flat.index_add_(0, places.nonzero()[:, 0], part)


def _by_source(landing: Any, coming: Any) -> Sequence[torch.Tensor]:
    """Split rows that came by the ranks that they came from."""
    return landing.split(coming.sum(1).tolist())


def _sent_rows(source: torch.Tensor, places: torch.Tensor, operands: Operands) -> torch.Tensor:
    """Pack the rows that are sent, and return as many as come, of these over and over."""
    marks, coming, send, receive = operands.marks, operands.coming, operands.send, operands.receive
    assert marks is not None
    assert coming is not None
    assert send is not None
    assert receive is not None
    packed = send.view(marks.numel(), -1)[: len(places)]
    torch.index_select(source, 0, places, out=packed)
    landing = receive.view(marks.numel(), -1)[: int(coming.sum())]
    if not len(packed):
        return landing.zero_()
    for first in range(0, len(landing), len(packed)):
        part = landing[first : first + len(packed)]
        part.copy_(packed[: len(part)])
    return landing


ANSWERS: Mapping[str, Answer] = {
    "comm.all_reduce": _all_reduce,
    "comm.all_gather": _all_gather,
    "comm.reduce_scatter": _reduce_scatter,
    "comm.all_to_all": _all_to_all,
    "comm.permute": _permute,
    "comm.dispatch_rows": _dispatch_rows,
    "comm.combine_rows": _combine_rows,
}
"""What each collective does where every rank has the same."""


def _packed(operands: Operands, dim: int, size: int) -> torch.Tensor:
    if operands.send is None:
        return operands.source
    pack(operands.send, operands.source, dim, size)
    return operands.send


class FakePeers:
    """The other ranks of a plan of several programs, none of which is there.

    Args:
        plan: the plan.
        rank: of the one that runs.
        links: that messages take; by default they take no time.
    """

    def __init__(self, plan: PartsPlan, rank: int, links: Links | None = None) -> None:
        self._plan, self._rank, self._links = plan, rank, links
        place = next(p for p, ranks in enumerate(plan.ranks) if rank in ranks)
        self._local = plan.ranks[place].index(rank)
        self._drawn: set[int] = set()
        self._begun: dict[object, Finish] = {}

    @property
    def communicator(self) -> Communicator | None:
        """Starts collectives inside of the part; None where that is one rank."""
        if self._plan.part_mesh.num_ranks == 1:
            return None
        alone = FakeCommunicator(self._plan.part_mesh, self._local)
        if self._links is None:
            return alone
        return self._links.collectives(alone, self._plan.part_mesh, self._local)

    def transfer(self, event: Event, register: torch.Tensor) -> Callable[[], object]:
        """Return what takes as long as an event of a tape that is no run."""
        route = event.route
        assert route is not None
        is_inward = event.what in ("post", "arrive")
        if is_inward:
            self._draw(register)
        key = is_inward, route.name, event.action.micro_batch
        if event.what in ("arrive", "sent"):
            return lambda: self._begun.pop(key, _nothing)()
        here, there = event.action.stage, event.peer
        ends = (there, here) if is_inward else (here, there)
        channel = self._plan.channel(route.name, *ends)
        moves = channel.receives(self._rank) if is_inward else channel.sends(self._rank)
        if self._links is None or not moves:
            return _nothing
        carry = self._links.message(channel, self._rank)

        def begin() -> None:
            self._begun[key] = carry(lambda: _nothing)

        return begin

    def _draw(self, register: torch.Tensor) -> None:
        """Give a slot values once, as another stage would: zeros have no scale."""
        if register.data_ptr() not in self._drawn and register.is_floating_point():
            self._drawn.add(register.data_ptr())
            register.normal_(std=ACTIVATION_STD)

    def add(self, tensor: torch.Tensor, places: tuple[int, ...]) -> None:
        """Leave a tensor as it is, which others would be added to."""

    def gather(self, own: torch.Tensor, axes: Sequence[str]) -> list[torch.Tensor]:
        """Return this rank's own in the place of each."""
        count = 1
        for axis in axes:
            count *= self._plan.part_mesh.size(axis)
        return [own] * count

    def loss(self, own: torch.Tensor) -> torch.Tensor:
        """Return this rank's own loss; of other stages than the last that is zero."""
        return own
