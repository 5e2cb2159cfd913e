"""An event engine: actions on in-order streams, with dependencies, shared cores and memory.

An action starts when the action before it on its stream and all that it depends on have ended. Work
on a shared resource slows down when there is more of it than there are cores: each of n running
actions proceeds at rate min(1, cores / n) (processor sharing). Memory is a timeline of what actions
allocate when they start and free when they end.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from irc.errors import InternalError


@dataclass(frozen=True)
class SimAction:
    """One thing that takes time.

    Attributes:
        name: what it is, for traces.
        stream: in-order queue that it belongs to, such as ``rank 0 compute``.
        seconds: how long it takes when it has its resource to itself.
        after: positions (in the sequence of all actions) of those that must have ended.
        resource: shared cores that it runs on, if any.
        allocates, frees: bytes by pool, at its start and at its end.
    """

    name: str
    stream: str
    seconds: float
    after: tuple[int, ...] = ()
    resource: str | None = None
    allocates: tuple[tuple[str, float], ...] = ()
    frees: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Timeline:
    """What happened.

    Attributes:
        starts, ends: seconds, by position of the action.
        peak: most bytes alive at a time, by pool.
    """

    starts: tuple[float, ...]
    ends: tuple[float, ...]
    peak: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """When the last action ended."""
        return max(self.ends, default=0.0)


def simulate(actions: Sequence[SimAction], cores: Mapping[str, float] | None = None) -> Timeline:
    """Run actions and return when each started and ended.

    Without shared resources this is the longest path through streams and dependencies; one event
    costs O(log n), and with a resource also the number of actions that run on it then.

    Args:
        actions: streams run theirs in this order.
        cores: size of each shared resource.

    Raises:
        InternalError: the streams wait for each other for ever.

    >>> a = SimAction("a", "s", 1.0)
    >>> b = SimAction("b", "t", 1.0)
    >>> c = SimAction("c", "t", 1.0, after=(0,))
    >>> simulate([a, b, c]).seconds
    2.0
    """
    return _Engine(actions, cores or {}).run()


class _Engine:
    def __init__(self, actions: Sequence[SimAction], cores: Mapping[str, float]) -> None:
        self.actions = actions
        self.cores = cores
        self.now = 0.0
        self.starts = [inf] * len(actions)
        self.ends = [inf] * len(actions)
        self.queues: dict[str, deque[int]] = {}
        self.missing = [len(set(action.after)) for action in actions]
        self.readers: list[list[int]] = [[] for _ in actions]
        for i, action in enumerate(actions):
            self.queues.setdefault(action.stream, deque()).append(i)
            for before in set(action.after):
                self.readers[before].append(i)
        self.busy: set[str] = set()
        self.fixed: list[tuple[float, int]] = []
        self.shared: dict[str, dict[int, float]] = {}
        self.alive: dict[str, float] = {}
        self.peak: dict[str, float] = {}

    def run(self) -> Timeline:
        for stream in self.queues:
            self._try(stream)
        while self.fixed or any(self.shared.values()):
            self._advance()
        if stuck := [i for i, end in enumerate(self.ends) if end == inf]:
            names = ", ".join(self.actions[i].name for i in stuck[:3])
            raise InternalError(f"{len(stuck)} actions wait for each other: {names}")
        return Timeline(tuple(self.starts), tuple(self.ends), self.peak)

    def _try(self, stream: str) -> None:
        queue = self.queues[stream]
        if stream in self.busy or not queue or self.missing[queue[0]]:
            return
        index = queue.popleft()
        action = self.actions[index]
        self.busy.add(stream)
        self.starts[index] = self.now
        for pool, size in action.allocates:
            self.alive[pool] = self.alive.get(pool, 0.0) + size
            self.peak[pool] = max(self.peak.get(pool, 0.0), self.alive[pool])
        if action.resource is None:
            heapq.heappush(self.fixed, (self.now + action.seconds, index))
        else:
            self.shared.setdefault(action.resource, {})[index] = action.seconds

    def _rate(self, resource: str) -> float:
        return min(1.0, self.cores.get(resource, inf) / len(self.shared[resource]))

    def _advance(self) -> None:
        """Go to the next end, and do what follows from it."""
        at = self.fixed[0][0] if self.fixed else inf
        for resource, running in self.shared.items():
            if running:
                at = min(at, self.now + min(running.values()) / self._rate(resource))
        done: list[int] = []
        for resource, running in self.shared.items():
            if not running:
                continue
            shortest, rate = min(running.values()), self._rate(resource)
            # Rounding must not leave a sliver of work: what ends now ends by comparison of times.
            ended = self.now + shortest / rate <= at
            work = shortest if ended else (at - self.now) * rate
            for index in list(running):
                running[index] -= work
                if running[index] <= 0.0:
                    del running[index]
                    done.append(index)
        while self.fixed and self.fixed[0][0] <= at:
            done.append(heapq.heappop(self.fixed)[1])
        self.now = at
        for index in sorted(done):
            self._end(index)
        for stream in dict.fromkeys(
            self.actions[i].stream for index in sorted(done) for i in (index, *self.readers[index])
        ):
            self._try(stream)

    def _end(self, index: int) -> None:
        action = self.actions[index]
        self.ends[index] = self.now
        self.busy.discard(action.stream)
        for pool, size in action.frees:
            self.alive[pool] = self.alive.get(pool, 0.0) - size
        for reader in self.readers[index]:
            self.missing[reader] -= 1
