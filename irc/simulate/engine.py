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
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
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
        # Ends of actions by position, and by its complement when those that wait are told. Of one
        # on a resource, which gets on faster or slower, that of the newest version counts.
        self.coming: list[tuple[float, int, int]] = []
        self.versions: dict[int, int] = {}
        # What runs on each resource, as what, and how fast.
        self.shared: dict[str, dict[int, str]] = {name: {} for name in resources}
        self.rates: dict[int, dict[str, float]] = {}
        self.known: dict[Hashable, Mapping[str, float]] = {}
        # Seconds of work that were left of it, when that was, and its rate since.
        self.left: dict[int, tuple[float, float, float]] = {}
        self.changed: dict[str, None] = {}
        self.alive: dict[str, float] = {}
        self.peak: dict[str, float] = {}
        self.taken: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.waiting: dict[str, list[str]] = {}
        self.woken: list[str] = []

    def run(self) -> Timeline:
        for stream in self.queues:
            self._try(stream)
        self._settle()
        while self.coming:
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
        shares = [each for each in action.shares if each[0] in self.resources]
        if not shares:
            heapq.heappush(self.coming, (self.now + action.seconds, index, 0))
            return
        self.left[index], self.versions[index] = (action.seconds, self.now, 0.0), 0
        self.rates[index] = {}
        for resource, kind in shares:
            self.shared[resource][index] = kind
            self.changed[resource] = None

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

    def _settle(self) -> None:
        """Find anew how fast everything gets on that runs where something began or ended."""
        changed, self.changed = self.changed, {}
        touched: dict[int, None] = {}
        for resource in changed:
            running = self.shared[resource]
            rates = self._rates_on(resource, running)
            for index, kind in running.items():
                self.rates[index][resource] = rates[kind]
                touched[index] = None
        for index in touched:
            left, since, before = self.left[index]
            rate = min(self.rates[index].values())
            if rate != before:
                left = max(0.0, left - (self.now - since) * before)
                self.left[index] = left, self.now, rate
                self.versions[index] += 1
                end = self.now + left / rate
                heapq.heappush(self.coming, (end, index, self.versions[index]))

    def _rates_on(self, resource: str, running: Mapping[int, str]) -> Mapping[str, float]:
        """Return the rate of each kind that runs on a resource."""
        weights: dict[str, float] = {}
        for index, kind in running.items():
            weights[kind] = weights.get(kind, 0.0) + self.actions[index].weight
        if not weights:
            return weights
        shared = self.resources[resource]
        key = id(shared), *sorted(weights.items())
        if key not in self.known:
            self.known[key] = shared.rates(weights)
        return self.known[key]

    def _advance(self) -> None:
        """Go to the next end, and do what follows from it."""
        done: list[int] = []
        while self.coming:
            end, index, version = self.coming[0]
            is_stale = self.versions.get(index, 0) != version
            if done and end > self.now and not is_stale:
                break
            heapq.heappop(self.coming)
            if is_stale:
                continue
            self.now = end
            done.append(index)
            if version:
                self._leave(index)
        ready: list[str] = []
        for index in sorted(done):
            if index >= 0:
                ready.append(self._end(index))
            if index < 0 or not self.actions[index].lag:
                ready += self._release(index if index >= 0 else ~index)
        woken, self.woken = self.woken, []
        for stream in dict.fromkeys((*woken, *ready)):
            self._try(stream)
        self._settle()

    def _leave(self, index: int) -> None:
        """Give free what an action shared."""
        for resource in self.rates.pop(index):
            del self.shared[resource][index]
            self.changed[resource] = None
        del self.left[index]
        self.versions[index] = -1

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
            heapq.heappush(self.coming, (self.now + action.lag, ~index, 0))
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
