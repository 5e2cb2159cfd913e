"""What one rank of a pipeline does, spelt out: receives, functions, sends, and in which registers.

A value that crosses functions or stages lies in one of the equal places (*slots*) of its register.
A slot is free when its last reader has run and, where the value is sent, the send has ended: a free
slot is the credit without which a producer waits, as in OneFlow's actors (arXiv:2110.15032, section
4.2). :mod:`irc.schedule.tape_writer` spells a schedule out as tapes.

A value may leave its slot between two functions that use it, for a place *outside* of the device's
memory: it is stored after the one and fetched before the other, both begun and waited for as sends
and receives are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from irc.schedule.actions import Action

SMALLER = ".smaller"
"""Last letters of the kind of a function, and of the registers, of smaller micro-batches."""


@dataclass(frozen=True)
class Function:
    """What a function of a stage reads and makes.

    Attributes:
        reads: names of registers.
        makes: names of registers.
    """

    reads: tuple[str, ...]
    makes: tuple[str, ...]


@dataclass(frozen=True)
class Route:
    """A value on its way from one stage to another.

    Attributes:
        name: of the value, by which the consumer's register goes too.
        producer: the stage that makes it, counted along a micro-batch's path.
        consumer: the stage that reads it.
        register: the producer's register.
        over: parts between the two that a micro-batch leaves out whose value goes so.
    """

    name: str
    producer: int
    consumer: int
    register: str
    over: tuple[int, ...] = ()


@dataclass(frozen=True)
class Wiring:
    """The functions of all stages and the routes between them.

    Attributes:
        functions: of each stage, counted along the path, by kind: F, B, I, W.
        routes: what is sent.
        aligned: names of routes whose value lies alike at both ends: where these are on one rank,
            the consumer reads the producer's register.
        smaller_from: the first micro-batch that is smaller than those before it, None where all are
            equal: its functions are those of kinds that end in ``.smaller``.
        moved: registers of each stage, counted along the path, whose values leave their slots
            while no function uses them for long; empty: none.
    """

    functions: tuple[Mapping[str, Function], ...]
    routes: tuple[Route, ...]
    aligned: frozenset[str] = frozenset()
    smaller_from: int | None = None
    moved: tuple[frozenset[str], ...] = ()

    def routes_of(self, skipped: Collection[int]) -> Iterator[Route]:
        """Yield the routes of a micro-batch that leaves out some parts."""
        return _ways(self.routes, skipped)

    @cached_property
    def _by_producer(self) -> Mapping[tuple[int, str], Sequence[Route]]:
        """The routes that leave each register of a stage."""
        routes: dict[tuple[int, str], list[Route]] = {}
        for route in self.routes:
            routes.setdefault((route.producer, route.register), []).append(route)
        return routes

    @cached_property
    def _by_consumer(self) -> Mapping[tuple[int, str], Sequence[Route]]:
        """The routes that each value comes to a stage by."""
        routes: dict[tuple[int, str], list[Route]] = {}
        for route in self.routes:
            routes.setdefault((route.consumer, route.name), []).append(route)
        return routes

    def routes_from(self, stage: int, register: str, skipped: Collection[int]) -> Iterator[Route]:
        """Yield the routes of a micro-batch that leave a register of a stage."""
        return _ways(self._by_producer.get((stage, register), ()), skipped)

    def routes_to(self, stage: int, name: str, skipped: Collection[int]) -> Iterator[Route]:
        """Yield the routes of a micro-batch by which a value comes to a stage."""
        return _ways(self._by_consumer.get((stage, name), ()), skipped)

    def kind(self, kind: str, micro_batch: int) -> str:
        """Return the kind of the function that does an action's kind for a micro-batch."""
        is_smaller = self.smaller_from is not None and micro_batch >= self.smaller_from
        return f"{kind}{SMALLER}" if is_smaller else kind

    def function(self, stage: int, kind: str, micro_batch: int) -> Function | None:
        """Return what an action of a stage runs; None where it has nothing to do."""
        return self.functions[stage].get(self.kind(kind, micro_batch))


def _ways(routes: Iterable[Route], skipped: Collection[int]) -> Iterator[Route]:
    """Yield the routes that a value goes by: around what is left out, and nothing else."""
    for route in routes:
        ends = route.producer in skipped or route.consumer in skipped
        if not ends and all(part in skipped for part in route.over):
            yield route


class Place(NamedTuple):
    """One slot of a register.

    Attributes:
        stage: of the schedule.
        register: its name.
        slot: which of its equal places.
    """

    stage: int
    register: str
    slot: int


What: TypeAlias = Literal[
    "post", "arrive", "run", "send", "sent", "store", "stored", "fetch", "fetched"
]
MOVES = ("store", "stored", "fetch", "fetched")
"""What moves a value between its slot and a place outside."""


class Event(NamedTuple):
    """One thing a rank does.

    Attributes:
        what: ``post`` begins to receive, ``arrive`` waits for it, ``run`` calls a function,
            ``send`` begins to send, ``sent`` waits until the slot may be written again; ``store``
            begins to move a value outside and ``fetch`` to bring it back, ``stored`` and
            ``fetched`` wait for that.
        action: of a run, the action; else one with the stage (of the schedule) whose value it is.
        route: of what is sent or received.
        place: of all but a run, the slot of the value on this rank.
        peer: the stage (of the schedule) at the other end.
        reads, makes: of a run, the slots, by register.
        outside: of a move, which of the register's equal places outside.
    """

    what: What
    action: Action
    route: Route | None = None
    place: Place | None = None
    peer: int = -1
    reads: Mapping[str, Place] = {}
    makes: Mapping[str, Place] = {}
    outside: int = -1


@dataclass(frozen=True)
class Tape:
    """What a rank does in one step, in order.

    Attributes:
        events: in order.
        slots: how many slots each register has, by stage of the schedule and name.
        outside: how many places outside of the device's memory, likewise.
    """

    events: tuple[Event, ...]
    slots: Mapping[tuple[int, str], int]
    outside: Mapping[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])


def play_tapes(tapes: Sequence[Tape]) -> list[tuple[int, Event]]:
    """Return what ranks wait for for ever, where a send ends once its receiver has begun."""
    at = [0] * len(tapes)
    begun: set[tuple[str, int, bool]] = set()
    moved = True
    while moved:
        moved = False
        for rank, tape in enumerate(tapes):
            while at[rank] < len(tape.events) and _can(tape.events[at[rank]], begun):
                event = tape.events[at[rank]]
                if event.route is not None and event.what in ("post", "send"):
                    begun.add(_key(event, event.what == "send"))
                at[rank] += 1
                moved = True
    return [
        (rank, tape.events[at[rank]])
        for rank, tape in enumerate(tapes)
        if at[rank] < len(tape.events)
    ]


def _can(event: Event, begun: set[tuple[str, int, bool]]) -> bool:
    match event.what:
        case "arrive":
            return _key(event, True) in begun
        case "sent":
            return _key(event, False) in begun
        case _:
            return True


def _key(event: Event, is_sent: bool) -> tuple[str, int, bool]:
    """Name an end of a message: which value, of which micro-batch."""
    assert event.route is not None
    return event.route.name, event.action.micro_batch, is_sent
