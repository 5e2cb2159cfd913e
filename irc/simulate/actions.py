"""What the event engine runs and what it tells: actions, a timeline, or who waits for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from irc.errors import InternalError


@dataclass(frozen=True)
class SimAction:
    """One thing that takes time.

    Attributes:
        name: what it is, for traces.
        stream: in-order queue that it belongs to, such as ``rank 0 compute``.
        seconds: how long it takes when it has its resource to itself.
        after: positions (in the sequence of all actions) of those that must have ended.
        resource: what it shares with others that run at the same time, if anything.
        allocates, frees: bytes by pool, at its start and at its end.
        takes, gives: slots by register, at its start and at its end.
        weight: how many things alike it stands for, each of which wants a core.
        lag: seconds from its end until what waits for it knows; its stream is free meanwhile.
        kind: what of the resource it uses.
        beside: of what has two ends, as a transfer: the resource of the other, and what it uses
            there.
    """

    name: str
    stream: str
    seconds: float
    after: tuple[int, ...] = ()
    resource: str | None = None
    allocates: tuple[tuple[str, float], ...] = ()
    frees: tuple[tuple[str, float], ...] = ()
    takes: tuple[tuple[str, int], ...] = ()
    gives: tuple[tuple[str, int], ...] = ()
    weight: float = 1
    lag: float = 0.0
    kind: str = "compute"
    beside: tuple[str, str] | None = None

    @property
    def shares(self) -> tuple[tuple[str, str], ...]:
        """What it shares with others, and as what."""
        own = () if self.resource is None else ((self.resource, self.kind),)
        return own if self.beside is None else (*own, self.beside)


class Resource(Protocol):
    """What actions share: how fast each gets on beside the others."""

    def rates(self, running: Mapping[str, float]) -> Mapping[str, float]:
        """Return the rate of each kind that runs, relative to alone.

        Args:
            running: the weight of all actions of each kind.
        """
        ...


@dataclass(frozen=True)
class Cores:
    """Cores, as many: each of n that want one proceeds at min(1, cores / n) (processor sharing)."""

    count: float

    def rates(self, running: Mapping[str, float]) -> Mapping[str, float]:
        """Return one rate for all kinds."""
        return dict.fromkeys(running, min(1.0, self.count / sum(running.values())))


@dataclass(frozen=True)
class Timeline:
    """What happened.

    Attributes:
        starts, ends: seconds, by position of the action.
        peak: most bytes alive at a time, by pool.
        slots: most slots taken at a time, by register.
    """

    starts: tuple[float, ...]
    ends: tuple[float, ...]
    peak: Mapping[str, float]
    slots: Mapping[str, int]

    @property
    def seconds(self) -> float:
        """When the last action ended."""
        return max(self.ends, default=0.0)

    def busy(self, actions: Sequence[SimAction]) -> dict[str, float]:
        """Return the seconds in which each stream has something to do; ``actions`` are its own."""
        busy: dict[str, float] = {}
        for action, start, end in zip(actions, self.starts, self.ends, strict=True):
            busy[action.stream] = busy.get(action.stream, 0.0) + end - start
        return busy


class Waiting(NamedTuple):
    """The first action of a stream that cannot start.

    Attributes:
        action: it.
        behind: what would have to end first; None where nothing would help.
        register: whose slot it lacks, None where it waits for a result.
    """

    action: SimAction
    behind: SimAction | None
    register: str | None

    def __str__(self) -> str:
        what, by = self.action, self.behind
        text = f"{what.name} on {what.stream} waits for "
        if self.register is not None:
            text += f"a slot of {self.register}, which "
            return text + ("nothing frees" if by is None else f"{by.name} on {by.stream} frees")
        return text + ("nothing" if by is None else f"{by.name} on {by.stream}")


class DeadlockError(InternalError):
    """Streams that wait for each other, or one for something that never comes.

    Attributes:
        cycle: each waits for something on the stream of the next, the last on that of the first.
        stuck: how many actions never ran.
    """

    def __init__(self, cycle: tuple[Waiting, ...], stuck: int) -> None:
        super().__init__(cycle, stuck)
        self.cycle, self.stuck = cycle, stuck

    def __str__(self) -> str:
        return f"{self.stuck} actions wait for each other: {'; '.join(map(str, self.cycle))}"
