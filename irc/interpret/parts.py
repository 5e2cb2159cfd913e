"""A plan of several programs in one process: each rank a thread, with real registers and slots.

So a laptop runs what a cluster is to run, with small sizes, and `irc check` sees each value on its
way. Ranks do what their tapes say, in any order that the waits allow; nothing is shared but what
they send.
"""

# pyright: basic
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from irc.errors import IrcError
from irc.interpret.collectives import COLLECTIVES
from irc.plan.parts import PartsPlan
from irc.plan.schema import Start
from irc.plan.weights import local_slices
from irc.runtime.collectives import Finish, Operands
from irc.runtime.pipeline import PipelineExecutor
from irc.runtime.spread_parts import SpreadParts
from irc.schedule.tapes import Event

MOST_RANKS = 64
WAIT_S = 120.0

Values: TypeAlias = dict[tuple[str, int, str, int], torch.Tensor]
"""What ranks made (``sent``) and got (``got``): by that, rank, name and micro-batch."""


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
            raise _Ended from self.failed
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


class _Ended(Exception):  # noqa: N818 - another thread has the error
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
        brought = [operands.source.clone()]
        brought += [] if operands.marks is None else [operands.marks.clone()]
        every = self._meet((self._place, axis, group[0]), own, len(group), brought)
        held = [list(each) for each in zip(*every, strict=True)]
        results = COLLECTIVES[action.op](action.attrs, *held)
        operands.target.copy_(results[own].reshape(operands.target.shape))
        return lambda: None

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
        found = channel.sends(self._rank) if is_sender else channel.receives(self._rank)
        copy = channel.copy(self._rank)
        messages = [*found, *([] if copy is None else [copy])]
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
                self._seen["got", self._rank, f"{here}:{name}", number] = register.clone()

        return begin if event.what in ("send", "post") else finish

    def add(self, tensor: torch.Tensor, places: tuple[int, ...]) -> None:
        """Add up, each rank by itself, in one order."""
        index = places.index(self._place)
        every = self._meet(("sum", places, self._local), index, len(places), tensor.clone())
        tensor.copy_(torch.stack(every).sum(0))

    def loss(self, own: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        counts = self._place in self._plan.loss_places and not self._local
        given = own.clone() if counts else torch.zeros_like(own)
        every = self._meet(("loss",), self._rank, self._plan.mesh.num_ranks, given)
        return torch.stack(every).sum(0)


class TracedExecutor(PipelineExecutor):
    """Runs a rank, and notes what its functions make.

    Args:
        seen: where to.
    """

    def __init__(self, *args: Any, seen: Values, **options: Any) -> None:
        self._seen = seen
        super().__init__(*args, **options)

    def _step(self, event: Event) -> Callable[[], object]:
        run = super()._step(event)
        if event.what != "run":
            return run
        number, rank = event.action.micro_batch, self.rank

        def noted() -> None:
            run()
            for name, place in event.makes.items():
                key = "sent", rank, f"{place.stage}:{name}", number
                self._seen[key] = self._registers[place].clone()

        return noted


@dataclass
class Run:
    """A step that all ranks of a plan have made in this process.

    Attributes:
        losses: of each step.
        parts: what each rank holds afterwards.
        seen: what went through registers in the last step.
    """

    losses: list[torch.Tensor]
    parts: list[SpreadParts]
    seen: Values

    def whole(self, name: str) -> torch.Tensor:
        """Return a tensor put together from the ranks that hold it; sums of parts added up."""
        from irc.dialects.placement import Partial

        first = next(p for p in self.parts if name in p.local)
        placement, shape = first.placement_and_shape(name)
        holders = [self.parts[rank] for rank in first.ranks[name]]
        made = torch.zeros(shape, dtype=first.local[name].dtype)
        partial = [axis for axis, placed in placement.axes if isinstance(placed, Partial)]
        for local, part in enumerate(holders):
            where = local_slices(placement, part.mesh, local, shape)
            if partial:
                place = part.mesh.coordinates(local)
                split = {axis for d in range(len(shape)) for axis in placement.split_axes(d)}
                if any(i for axis, i in place.items() if axis not in split and axis not in partial):
                    continue
                made[where] += part.local[name]
            else:
                made[where] = part.local[name]
        return made


def run_here(
    plan: PartsPlan,
    wholes: Mapping[str, torch.Tensor],
    batches: Sequence[Sequence[torch.Tensor]],
    *,
    lr: float,
    seed: int = 0,
    peers: type[ThreadPeers] = ThreadPeers,
) -> Run:
    """Make some steps of a plan, all ranks in this process.

    Args:
        plan: for at most 64 ranks.
        wholes: weights by name; they stay as they are.
        batches: of each step, its inputs in the order of the plan.
        lr: the learning rate.
        seed: of the first step.
        peers: how ranks talk to each other.

    Raises:
        IrcError: ``world-size`` for more ranks; ``schedule-deadlock``; what a rank raises.
    """
    world = plan.mesh.num_ranks
    if world > MOST_RANKS:
        raise IrcError(
            "world-size",
            f"{world} ranks, and one process runs at most {MOST_RANKS}",
            help="compile the plan for a smaller mesh, with the same stages",
        )
    exchange = Exchange()
    parts: list[SpreadParts] = [SpreadParts(plan, rank) for rank in range(world)]
    losses: list[list[torch.Tensor]] = [[] for _ in range(world)]
    seen: Values = {}

    def rank_thread(rank: int) -> None:
        own = {name: tensor.detach().clone() for name, tensor in wholes.items()}
        parts[rank].adopt_stages(plan, own)
        talk = peers(plan, rank, exchange, seen)
        run = TracedExecutor(plan, parts[rank], rank, talk, seen=seen)
        for number, batch in enumerate(batches):
            losses[rank].append(run(batch, lr, seed + number))

    with _one_thread_each():
        _all(world, rank_thread, exchange)
    return Run(losses[0], parts, seen)


def _all(world: int, run: Callable[[int], None], exchange: Exchange) -> None:
    def guarded(rank: int) -> None:
        try:
            run(rank)
        except _Ended:
            pass
        except BaseException as error:
            with exchange.changed:
                exchange.failed = exchange.failed or error
                exchange.changed.notify_all()

    threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if exchange.failed is not None:
        raise exchange.failed


@contextmanager
def _one_thread_each() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
