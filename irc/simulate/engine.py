"""An event engine: actions on in-order streams, with dependencies, credits, resources, memory.

An action starts when the action before it on its stream and all that it depends on have ended, and
there are the credits that it takes. A credit is a free slot of a register: taken by the start of
what writes it, given back by the end of what reads it last (OneFlow's rule, arXiv:2110.15032); who
waits longest gets it first. Work on a shared resource slows down when there is more of it than
there are cores: each of n running actions proceeds at rate min(1, cores / n) (processor sharing).
Memory is a timeline of what actions allocate when they start and free when they end.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf

from irc.simulate.actions import DeadlockError, Resource, SimAction, Timeline, Waiting


def simulate(
    actions: Sequence[SimAction],
    resources: Mapping[str, Resource] | None = None,
    slots: Mapping[str, int] | None = None,
    as_ready: Collection[str] = (),
) -> Timeline:
    """Run actions and return when each started and ended.

    Without shared resources this is the longest path through streams and dependencies; one event
    costs O(log n), and with a resource also the number of actions that run on it then.

    Args:
        actions: streams run theirs in this order.
        resources: by name; on one that is not named, actions run as if alone.
        slots: of each register; one that is not named has as many as are asked for.
        as_ready: streams that run theirs not in this order but as they get ready.

    Raises:
        DeadlockError: the streams wait for each other for ever.

    >>> a = SimAction("a", "s", 1.0)
    >>> b = SimAction("b", "t", 1.0)
    >>> c = SimAction("c", "t", 1.0, after=(0,))
    >>> simulate([a, b, c]).seconds
    2.0
    """
    return _Engine(actions, resources or {}, slots or {}, frozenset(as_ready)).run()


class _Engine:
    def __init__(
        self,
        actions: Sequence[SimAction],
        resources: Mapping[str, Resource],
        slots: Mapping[str, int],
        as_ready: frozenset[str],
    ) -> None:
        self.actions = actions
        self.as_ready = as_ready
        self.resources = resources
        self.slots = slots
        self.now = 0.0
        self.starts = [inf] * len(actions)
        self.ends = [inf] * len(actions)
        self.queues: dict[str, deque[int]] = {}
        self.missing = [len(set(action.after)) for action in actions]
        self.readers: list[list[int]] = [[] for _ in actions]
        for i, action in enumerate(actions):
            queue = self.queues.setdefault(action.stream, deque())
            if not self.missing[i] or action.stream not in as_ready:
                queue.append(i)
            for before in set(action.after):
                self.readers[before].append(i)
        self.busy: set[str] = set()
        # Ends of actions by position, and by its complement when those that wait are told.
        self.fixed: list[tuple[float, int]] = []
        # Seconds of work that are left of what runs on each resource.
        self.shared: dict[str, dict[int, float]] = {name: {} for name in resources}
        self.alive: dict[str, float] = {}
        self.peak: dict[str, float] = {}
        self.taken: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.waiting: dict[str, list[str]] = {}
        self.woken: list[str] = []

    def run(self) -> Timeline:
        for stream in self.queues:
            self._try(stream)
        while self.fixed or any(self.shared.values()):
            self._advance()
        if stuck := self.ends.count(inf):
            raise DeadlockError(self._cycle(), stuck)
        return Timeline(tuple(self.starts), tuple(self.ends), self.peak, self.most)

    def _try(self, stream: str) -> None:
        queue = self.queues[stream]
        if stream in self.busy or not queue or self.missing[queue[0]]:
            return
        index = queue[0]
        action = self.actions[index]
        if action.takes and not self._take(stream, action):
            return
        queue.popleft()
        self.busy.add(stream)
        self.starts[index] = self.now
        for pool, size in action.allocates:
            self.alive[pool] = self.alive.get(pool, 0.0) + size
            self.peak[pool] = max(self.peak.get(pool, 0.0), self.alive[pool])
        if action.resource is None or action.resource not in self.resources:
            heapq.heappush(self.fixed, (self.now + action.seconds, index))
        else:
            self.shared[action.resource][index] = action.seconds

    def _take(self, stream: str, action: SimAction) -> bool:
        """Take all the slots that an action wants, or have its stream woken when there may be."""
        lacking = self._lacking(action)
        if lacking is not None:
            queue = self.waiting.setdefault(lacking, [])
            if stream not in queue:
                queue.append(stream)
            return False
        for register, count in action.takes:
            taken = self.taken.get(register, 0) + count
            self.taken[register] = taken
            self.most[register] = max(self.most.get(register, 0), taken)
        return True

    def _lacking(self, action: SimAction) -> str | None:
        for register, count in action.takes:
            if self.taken.get(register, 0) + count > self.slots.get(register, inf):
                return register
        return None

    def _ends(self, resource: str) -> dict[int, tuple[float, float]]:
        """Return the rate of each action that runs on a resource, and when it ends at that."""
        running = self.shared[resource]
        weights: dict[str, float] = {}
        for index in running:
            action = self.actions[index]
            weights[action.kind] = weights.get(action.kind, 0.0) + action.weight
        rates = self.resources[resource].rates(weights)
        own = ((index, rates[self.actions[index].kind]) for index in running)
        return {index: (rate, self.now + running[index] / rate) for index, rate in own}

    def _advance(self) -> None:
        """Go to the next end, and do what follows from it."""
        sharing = {name: self._ends(name) for name, running in self.shared.items() if running}
        at = self.fixed[0][0] if self.fixed else inf
        at = min([at, *(end for ends in sharing.values() for _, end in ends.values())])
        done: list[int] = []
        for name, ends in sharing.items():
            running = self.shared[name]
            for index, (rate, end) in ends.items():
                left = running[index] - (at - self.now) * rate
                # Rounding must not leave a sliver of work: what ends now does so by comparison.
                if end <= at or left <= 0.0:
                    del running[index]
                    done.append(index)
                else:
                    running[index] = left
        while self.fixed and self.fixed[0][0] <= at:
            done.append(heapq.heappop(self.fixed)[1])
        self.now = at
        ready: list[str] = []
        for index in sorted(done):
            if index >= 0:
                ready.append(self._end(index))
            if index < 0 or not self.actions[index].lag:
                ready += self._release(index if index >= 0 else ~index)
        woken, self.woken = self.woken, []
        for stream in dict.fromkeys((*woken, *ready)):
            self._try(stream)

    def _end(self, index: int) -> str:
        """Free what an action holds, and return its stream."""
        action = self.actions[index]
        self.ends[index] = self.now
        self.busy.discard(action.stream)
        for pool, size in action.frees:
            self.alive[pool] = self.alive.get(pool, 0.0) - size
        for register, count in action.gives:
            self.taken[register] = self.taken.get(register, 0) - count
            self.woken += self.waiting.pop(register, ())
        if action.lag:
            heapq.heappush(self.fixed, (self.now + action.lag, ~index))
        return action.stream

    def _release(self, index: int) -> Iterator[str]:
        """Tell those that wait for an action that it has ended, and yield their streams."""
        for reader in self.readers[index]:
            self.missing[reader] -= 1
            stream = self.actions[reader].stream
            if not self.missing[reader] and stream in self.as_ready:
                self.queues[stream].append(reader)
            yield stream

    def _cycle(self) -> tuple[Waiting, ...]:
        """Return the actions that wait for each other, from the first that is stuck."""
        index = self._head(self.ends.index(inf))
        seen: list[int] = []
        while index not in seen:
            seen.append(index)
            behind, _ = self._behind(index)
            if behind is None:
                return (self._waiting(index),)
            index = self._head(behind)
        return tuple(map(self._waiting, seen[seen.index(index) :]))

    def _head(self, index: int) -> int:
        """Return what has to start before an action on its stream, or the action itself."""
        stream = self.actions[index].stream
        return index if stream in self.as_ready else self.queues[stream][0]

    def _waiting(self, index: int) -> Waiting:
        behind, register = self._behind(index)
        return Waiting(
            self.actions[index], None if behind is None else self.actions[behind], register
        )

    def _behind(self, index: int) -> tuple[int | None, str | None]:
        """Return which action one waits for, and the register whose slot that frees, if any."""
        action = self.actions[index]
        if self.missing[index]:
            return next(i for i in action.after if self.ends[i] == inf), None
        register = self._lacking(action)
        for i, other in enumerate(self.actions):
            if self.ends[i] == inf and any(name == register for name, _ in other.gives):
                return (None if i == index else i), register
        return None, register
