"""The ranks of a plan in one process as they meet: messages, collectives and sums of threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

from irc.errors import IrcError
from irc.interpret.collectives import COLLECTIVES
from irc.plan.parts import PartsPlan
from irc.plan.schema import Start
from irc.runtime.collectives import Finish, Operands
from irc.schedule.tapes import Event

WAIT_S = 120.0


class Sight(NamedTuple):
    """What was seen of a value on its way.

    Attributes:
        how: ``made`` by a function, ``sent`` to another stage, ``got`` from one, ``read`` by a
            function as it found it in its slot, or ``added`` to a sum.
        rank: where.
        stage: of the schedule.
        name: of the register, of what is sent, or of the sum.
        micro_batch: whose.
        kind: of the function that reads or adds it.
    """

    how: Literal["made", "sent", "got", "read", "added"]
    rank: int
    stage: int
    name: str
    micro_batch: int
    kind: str = ""


Values: TypeAlias = dict[Sight, torch.Tensor]


@dataclass
class Exchange:
    """Where the threads of a run meet."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    ends: dict[Any, torch.Tensor] = field(default_factory=dict[Any, torch.Tensor])
    done: set[Any] = field(default_factory=set[Any])
    meetings: dict[Any, dict[int, Any]] = field(default_factory=dict[Any, dict[int, Any]])
    failed: BaseException | None = None

    def wait(self, until: Callable[[], bool], what: str) -> None:
        """Wait with the lock held, until something is so.

        Raises:
            IrcError: ``schedule-deadlock`` where nothing happens any more.
        """
        done = self.changed.wait_for(lambda: self.failed is not None or until(), WAIT_S)
        if self.failed is not None:
            raise Ended from self.failed
        if not done:
            raise IrcError("schedule-deadlock", f"a rank waits for ever for {what}")

    def bring(self, key: Any, end: torch.Tensor, *, is_source: bool) -> None:
        """Bring one end of a message; the value is copied once both are there."""
        with self.changed:
            other = self.ends.pop(key, None)
            if other is None:
                self.ends[key] = end
                return
            target, source = (other, end) if is_source else (end, other)
            target.copy_(source)
            self.done |= {(key, True), (key, False)}
            self.changed.notify_all()

    def finish(self, key: Any, *, is_source: bool) -> None:
        """Wait until a message has been copied; each end asks once."""
        with self.changed:
            self.wait(lambda: (key, is_source) in self.done, f"{key}")
            self.done.discard((key, is_source))

    def meet(self, key: Any, index: int, size: int, value: Any) -> list[Any]:
        """Return what all members of a group bring, in order."""
        with self.changed:
            here = self.meetings.setdefault(key, {})
            here[index] = value
            self.changed.notify_all()
            self.wait(lambda: len(here) == size, f"{key}")
            return [here[i] for i in range(size)]


class Ended(Exception):  # noqa: N818 - another thread has the error
    """Another rank failed."""


class ThreadPeers:
    """The other ranks of a run in one process.

    Args:
        plan: the plan.
        rank: of this thread.
        exchange: where they meet.
        seen: where values are noted that arrive.
    """

    def __init__(self, plan: PartsPlan, rank: int, exchange: Exchange, seen: Values) -> None:
        self._plan, self._rank, self._exchange, self._seen = plan, rank, exchange, seen
        self._place = next(p for p, ranks in enumerate(plan.ranks) if rank in ranks)
        self._local = plan.ranks[self._place].index(rank)
        self._counts: dict[Any, int] = {}

    @property
    def communicator(self) -> ThreadPeers | None:
        """Starts collectives inside of the part."""
        return self if self._plan.part_mesh.num_ranks > 1 else None

    def start(self, action: Start, operands: Operands) -> Finish:
        """Do a collective at once; there is nothing to wait for then."""
        axis = action.attrs["axis"]
        group = next(g for g in self._plan.part_mesh.groups(axis) if self._local in g)
        own = group.index(self._local)
        marks = (operands.marks, operands.coming)
        brought = [operands.source.clone(), *(each.clone() for each in marks if each is not None)]
        every = self._meet((self._place, axis, group[0]), own, len(group), brought)
        held = [list(each) for each in zip(*every, strict=True)]
        results = COLLECTIVES[action.op](action.attrs, *held)
        operands.target.copy_(results[own].reshape(operands.target.shape))
        return lambda: None

    def gather(self, own: torch.Tensor, axes: Sequence[str]) -> list[torch.Tensor]:
        """Return what the ranks of a part have along some axes, this rank's among them."""
        gathered = [own]
        for axis in reversed(axes):
            group = next(g for g in self._plan.part_mesh.groups(axis) if self._local in g)
            place = group.index(self._local)
            every = self._meet((self._place, axis, group[0]), place, len(group), gathered)
            gathered = [part for parts in every for part in parts]
        return gathered

    def _meet(self, group: Any, index: int, size: int, value: Any) -> list[Any]:
        # All members meet in one order, so that a number tells one meeting from the next.
        number = self._counts[group] = self._counts.get(group, 0) + 1
        return self._exchange.meet((group, number), index, size, value)

    def transfer(self, event: Event, register: torch.Tensor) -> Callable[[], object]:
        """Return what does an event."""
        route = event.route
        assert route is not None
        here, there = event.action.stage, event.peer
        number, name = event.action.micro_batch, route.name
        is_sender = event.what in ("send", "sent")
        ends = (here, there) if is_sender else (there, here)
        channel = self._plan.channel(name, *ends)
        remote = channel.sends(self._rank) if is_sender else channel.receives(self._rank)
        copy = channel.copy(self._rank)
        messages = [*remote, *([] if copy is None else [copy])]
        ends_of = {
            (name, number, m.source, m.target): m.source_part if is_sender else m.target_part
            for m in messages
        }

        def begin() -> None:
            for key, where in ends_of.items():
                self._exchange.bring(key, register[where], is_source=is_sender)

        def finish() -> None:
            for key in ends_of:
                self._exchange.finish(key, is_source=is_sender)
            if event.what == "arrive":
                self._seen[Sight("got", self._rank, here, name, number)] = register.clone()

        return begin if event.what in ("send", "post") else finish

    def add(self, tensor: torch.Tensor, places: tuple[int, ...]) -> None:
        """Add up, each rank by itself, in one order."""
        index = places.index(self._place)
        every = self._meet(("sum", places, self._local), index, len(places), tensor.clone())
        tensor.copy_(torch.stack(every).sum(0))

    def loss(self, own: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        counts = self._place in self._plan.loss_places and not self._local
        share = own.clone() if counts else torch.zeros_like(own)
        every = self._meet(("loss",), self._rank, self._plan.mesh.num_ranks, share)
        return torch.stack(every).sum(0)
