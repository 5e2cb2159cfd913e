"""Predicting a step of a pipeline: its schedule on classes of ranks, in time and memory.

A rank of a schedule computes on one stream and sends on a stream to each rank that it talks to, in
the order in which the values are made. What crosses functions lies in registers with slots: F takes
one for what it saves, and one for its result until that is sent; a transfer takes one where it
arrives until what reads it has ended. A step ends with the sum of each stage's gradients over all
columns, which begins when the last of them is there, and the update.

With free transfers and one column the times are those of :func:`irc.schedule.timeline.play`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from irc.errors import IrcError
from irc.schedule.actions import Schedule
from irc.schedule.timeline import Timeline as Played
from irc.schedule.timeline import Times, play
from irc.simulate.actions import DeadlockError, SimAction, Timeline
from irc.simulate.columns import Column, folded
from irc.simulate.costs import Costs
from irc.simulate.engine import simulate
from irc.simulate.ranks import Register, StepBuilder
from irc.simulate.update import stream_of

Places: TypeAlias = tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]


@dataclass(frozen=True)
class Simulation:
    """A step that was simulated.

    Attributes:
        schedule: what ran.
        costs: what its actions took.
        columns: the classes of columns; each was simulated once.
        actions: what the engine ran.
        timeline: when each of them started and ended, and what was alive and taken.
        places: by class and rank, for each action of the schedule its positions among them (that
            of an overlap may have several, that of what nobody runs none).
        registers: what lies between functions, by name.
    """

    schedule: Schedule
    costs: Costs
    columns: tuple[Column, ...]
    actions: tuple[SimAction, ...]
    timeline: Timeline
    places: Places
    registers: Mapping[str, Register]

    @property
    def seconds(self) -> float:
        """When the last action of the step ends."""
        return self.timeline.seconds

    def busy(self, rank: int, column: int = 0) -> float:
        """Return for how long a rank computes, its update too."""
        return self._busy.get(stream_of(rank, column, self.columns), 0.0)

    @cached_property
    def _busy(self) -> Mapping[str, float]:
        return self.timeline.busy(self.actions)

    def bubble(self, rank: int, column: int = 0) -> float:
        """Return the share of the step in which a rank idles."""
        return 1.0 - self.busy(rank, column) / self.seconds if self.seconds else 0.0

    def peak_bytes(self, rank: int, column: int = 0) -> float:
        """Return the most that a rank has in use at a time, its weights too."""
        pool = stream_of(rank, column, self.columns)
        return self._weights(rank) + self.timeline.peak.get(pool, 0.0)

    def reserved_bytes(self, rank: int, column: int = 0) -> float:
        """Return what a rank sets aside: all slots, the largest arena of a function, the weights.

        A register without a number of slots has as many as were taken at a time.
        """
        pool = stream_of(rank, column, self.columns)
        own = {name: each for name, each in self.registers.items() if each.pool == pool}
        slots = sum(
            each.num_bytes
            * (self.timeline.slots.get(name, 0) if each.slots is None else each.slots)
            for name, each in own.items()
        )
        arenas = (
            sum(self.costs.stage(part.stage).arena(part.kind) for part in action.flat)
            for action in self.schedule.ranks[rank]
        )
        return self._weights(rank) + slots + max(arenas, default=0.0)

    def slots(self, register: str) -> int:
        """Return the most slots of a register that were taken at a time."""
        return self.timeline.slots.get(register, 0)

    def played(self, column: int = 0) -> Played:
        """Return the schedule's own actions of a class as a timeline that can be drawn."""
        spans = tuple(tuple(self._spans(own)) for own in self.places[column])
        return Played(self.schedule, self.costs.times(self.schedule.num_stages), spans)

    def _spans(self, places: Iterable[tuple[int, ...]]) -> Iterator[tuple[float, float]]:
        end = 0.0
        for place in places:
            begin = self.timeline.starts[place[0]] if place else end
            end = self.timeline.ends[place[-1]] if place else end
            yield begin, end

    def _weights(self, rank: int) -> float:
        stages = {stage for stage, own in self.schedule.rank_of.items() if own == rank}
        return sum(self.costs.stage(stage).weight_bytes for stage in stages)


def simulate_schedule(
    schedule: Schedule, costs: Costs, columns: Sequence[Column] = (Column(),)
) -> Simulation:
    """Simulate a step.

    A class of columns costs O(actions log ranks), however many ranks are in it.

    Args:
        schedule: one that :func:`irc.schedule.check.check` passes.
        costs: of its stages and transfers.
        columns: those that are alike are taken together.

    Raises:
        IrcError: ``schedule-slots`` where ranks wait for each other's slots, with both named;
            ``schedule-deadlock`` where they would with any number of slots.

    >>> from irc.schedule.named import generate
    >>> costs = Costs.of(Times(), 4)
    >>> simulate_schedule(generate("1f1b", ranks=4, micro_batches=8), costs).seconds
    33.0
    """
    step = StepBuilder(schedule, costs, folded(columns))
    slots = {name: r.slots for name, r in step.registers.items() if r.slots is not None}
    actions = tuple(step.actions)
    try:
        timeline = simulate(actions, slots=slots)
    except DeadlockError as error:
        play(schedule, Times())
        raise _slots_lacking(error, actions, slots) from None
    return Simulation(schedule, costs, step.columns, actions, timeline, step.places, step.registers)


def _slots_lacking(
    error: DeadlockError, actions: Sequence[SimAction], slots: Mapping[str, int]
) -> IrcError:
    """Return the error that names the ranks, the registers, and how many slots they need."""
    names = dict.fromkeys(each.register for each in error.cycle if each.register is not None)
    free = simulate(actions).slots
    needs = [
        f"{name} has {slots[name]} and needs {_fewest(name, actions, slots, free)}"
        for name in names
    ]
    streams = dict.fromkeys(each.action.stream for each in error.cycle)
    return IrcError(
        "schedule-slots",
        f"{' and '.join(streams)} wait for each other"
        if len(streams) > 1
        else f"{next(iter(streams))} waits for a slot that it would free itself later",
        because=list(map(str, error.cycle)),
        help=f"{'; '.join(needs)} slots",
    )


def _fewest(
    name: str, actions: Sequence[SimAction], slots: Mapping[str, int], free: Mapping[str, int]
) -> int:
    """Return the fewest slots of a register that work while no other register is short of any."""
    low, high = slots[name], free[name]
    while high - low > 1:
        middle = (low + high) // 2
        try:
            simulate(actions, slots={name: middle})
        except DeadlockError:
            low = middle
        else:
            high = middle
    return high
