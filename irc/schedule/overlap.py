"""In which order a rank issues compute and collectives, so that they overlap: list scheduling.

Graham 1969, on two machines: compute, and the links of each mesh axis. Pass ``order`` asks it of
the ops of a plan, and the search of placements of what it chose (:mod:`irc.simulate.choice`).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf


@dataclass(frozen=True)
class Task:
    """Something that is issued.

    Attributes:
        after: positions of the tasks that it reads, each once.
        seconds: that it takes; infinite of a collective that is not known to end.
        axis: of a collective, the mesh axis over which it runs.
        waits_for: of a wait, the position of its collective; -1 where that is none of the tasks,
            and has ended.
        grows: of a collective, whether its result takes more memory than its operand.
    """

    after: tuple[int, ...]
    seconds: float = 0.0
    axis: str | None = None
    waits_for: int | None = None
    grows: bool = False


def list_schedule(tasks: Sequence[Task], in_flight: int | None = None) -> list[int]:
    """Return the positions of tasks in the order in which they are issued.

    Whenever the compute stream is free, collectives whose operands exist begin, else the earliest
    task runs that can run, else the collective that ends first is waited for. Tasks that are
    equally good keep their order. O(n log n) in the number of tasks and their reads.

    A collective begins while its link would else stand idle before the next task ends: a call of a
    block is one task, and as many begin before it as the link can carry meanwhile. What is gathered
    holds memory until it is read, so a collective that ``grows`` begins no earlier than it must for
    its reader, and those behind it on the link, to find it there. A task that leads to a collective
    sooner than that takes runs before others, as the job with the shorter first operation does in a
    flow shop of two machines (Johnson 1954), where all ends earlier by it.

    Args:
        tasks: each behind those that it reads.
        in_flight: how many collectives may be pending at a time, at least 1, where nobody knows how
            long they take; None for what the links can carry.

    >>> gather, wait = Task((), 5.0, "data"), Task((0,), waits_for=0)
    >>> list_schedule([gather, wait, Task((1,), 1.0), Task((), 6.0)])
    [0, 3, 1, 2]
    >>> list_schedule([gather, Task((), 1.0, "data"), Task((1,), waits_for=1)])
    [0, 1, 2]
    """
    if in_flight is not None:
        return _ListSchedule(tasks, max(in_flight, 1)).run()
    plain = _ListSchedule(tasks)
    order = plain.run()
    if not (short := _short_ways(tasks)):
        return order
    eager = _ListSchedule(tasks, short=short)
    sooner = eager.run()
    return sooner if eager.end < plain.end else order


def _short_ways(tasks: Sequence[Task]) -> frozenset[int]:
    """Return the tasks that lead to a collective sooner than that takes."""
    # By task: compute until the collective, and how long that takes.
    ways: dict[int, tuple[float, float]] = {}
    for position in reversed(range(len(tasks))):
        task = tasks[position]
        if task.waits_for is not None or (task.axis is None and position not in ways):
            continue
        compute, link = ways.get(position, (0.0, task.seconds))
        if task.axis is None:
            ways[position] = compute, link = compute + task.seconds, link
        for before in task.after:
            if tasks[before].axis is None and tasks[before].waits_for is None:
                ways[before] = min(ways.get(before, (inf, 0.0)), (compute, link))
    return frozenset(
        p for p, (compute, link) in ways.items() if tasks[p].axis is None and compute < link
    )


@dataclass
class _ListSchedule:
    tasks: Sequence[Task]
    in_flight: int | None = None
    short: frozenset[int] = frozenset()
    clock: float = 0.0
    computed: float = 0.0
    order: list[int] = field(default_factory=list[int])
    starts: dict[tuple[str, bool], list[int]] = field(
        default_factory=dict[tuple[str, bool], list[int]]
    )
    computes: list[tuple[bool, int]] = field(default_factory=list[tuple[bool, int]])
    waits: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    link_free: dict[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        self.ends: dict[int, float] = {}
        self.missing = [len(task.after) for task in self.tasks]
        self.readers: list[list[int]] = [[] for _ in self.tasks]
        for position, task in enumerate(self.tasks):
            for before in task.after:
                self.readers[before].append(position)
        self.latest = self._latest() if self.in_flight is None else {}
        for position, missing in enumerate(self.missing):
            if not missing:
                self._ready(position)

    @property
    def end(self) -> float:
        """When compute and all links are done."""
        return max([self.clock, *self.ends.values()])

    def run(self) -> list[int]:
        while len(self.order) < len(self.tasks):
            if (key := self._idle_link()) is not None:
                self._issue(heapq.heappop(self.starts[key]))
            elif self.waits and self.waits[0][0] <= self.clock:
                self._wait()
            elif self.computes:
                self._issue(heapq.heappop(self.computes)[1])
            elif self.waits:
                self._wait()
            else:
                # What is awaited by none of the tasks keeps the link from those that wait for it.
                self.clock = min(
                    self.link_free[axis] for (axis, _), own in self.starts.items() if own
                )
        return self.order

    def _idle_link(self) -> tuple[str, bool] | None:
        """Return the axis whose next collective begins now, and whether that grows; or None."""
        waiting = {key: heap[0] for key, heap in self.starts.items() if heap}
        if self.in_flight is None:
            # The next task runs to its end before another can begin.
            ahead = self.tasks[self.computes[0][1]].seconds if self.computes else inf
            until, done = self.clock + (ahead if self.computes else 0.0), self.computed + ahead
            waiting = {
                (axis, grows): position
                for (axis, grows), position in waiting.items()
                if self.link_free.get(axis, 0.0) <= until
                and (not grows or self.latest.get(position, 0.0) <= done)
            }
        elif len(self.waits) >= self.in_flight:
            return None
        return min(waiting, key=waiting.__getitem__, default=None)

    def _latest(self) -> dict[int, float]:
        """Return the seconds of compute after which each collective begins at the latest.

        A collective ends before what reads it, and before the next on its link begins; it is given
        as long again, since nothing is exact.
        """
        before: list[float] = [0.0]
        for task in self.tasks:
            is_compute = task.axis is None and task.waits_for is None
            before.append(before[-1] + (task.seconds if is_compute else 0.0))
        # Several waits may be for one: the first that is read counts.
        dues: dict[int, int] = {}
        for position, task in enumerate(self.tasks):
            if task.waits_for is not None and task.waits_for >= 0:
                due = min(self.readers[position], default=len(self.tasks))
                dues[task.waits_for] = min(dues.get(task.waits_for, due), due)
        latest: dict[int, float] = {}
        free: dict[str | None, float] = {}
        for due, start in sorted(((due, start) for start, due in dues.items()), reverse=True):
            own = self.tasks[start]
            end = min(before[due], free.get(own.axis, inf))
            free[own.axis] = end - own.seconds
            latest[start] = end - 2 * own.seconds
        return latest

    def _ready(self, position: int) -> None:
        task = self.tasks[position]
        if task.waits_for is not None:
            key = self._first_reader(position)
            heapq.heappush(self.waits, (self.ends.get(task.waits_for, 0.0), key))
        elif task.axis is not None:
            heapq.heappush(self.starts.setdefault((task.axis, task.grows), []), position)
        else:
            heapq.heappush(self.computes, (position not in self.short, position))

    def _first_reader(self, position: int) -> int:
        """Return where a wait stands among others: where its first reader stood it matters."""
        count = len(self.tasks)
        # Positions are distinct and a wait comes first in its own text: both order it totally.
        return min(self.readers[position], default=count) * (count + 1) + position

    def _wait(self) -> None:
        end, key = heapq.heappop(self.waits)
        # A collective of unknown length (inf) ends when it is waited for: time goes on from here.
        self.clock = max(self.clock, end) if end < inf else self.clock
        self._issue(key % (len(self.tasks) + 1))

    def _issue(self, position: int) -> None:
        self.order.append(position)
        task = self.tasks[position]
        if task.axis is not None:
            begin = max(self.clock, self.link_free.get(task.axis, 0.0))
            self.ends[position] = self.link_free[task.axis] = begin + task.seconds
        elif task.waits_for is None:
            self.clock += task.seconds
            self.computed += task.seconds
        for reader in self.readers[position]:
            self.missing[reader] -= 1
            if not self.missing[reader]:
                self._ready(reader)
