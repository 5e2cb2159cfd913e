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
    """

    after: tuple[int, ...]
    seconds: float = 0.0
    axis: str | None = None
    waits_for: int | None = None


def list_schedule(tasks: Sequence[Task], in_flight: int) -> list[int]:
    """Return the positions of tasks in the order in which they are issued.

    Whenever the compute stream is free, every collective whose operand exists begins, else the
    earliest task runs that can run, else the collective that ends first is waited for. Tasks that
    are equally good keep their order. O(n log n) in the number of tasks and their reads.

    Args:
        tasks: each behind those that it reads.
        in_flight: how many collectives may be pending at a time, at least 1.

    >>> gather, wait = Task((), 5.0, "data"), Task((0,), waits_for=0)
    >>> list_schedule([gather, wait, Task((1,), 1.0), Task((), 6.0)], 4)
    [0, 3, 1, 2]
    """
    return _ListSchedule(tasks, max(in_flight, 1)).run()


@dataclass
class _ListSchedule:
    tasks: Sequence[Task]
    in_flight: int
    clock: float = 0.0
    order: list[int] = field(default_factory=list[int])
    starts: list[int] = field(default_factory=list[int])
    computes: list[int] = field(default_factory=list[int])
    waits: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    link_free: dict[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        self.ends: dict[int, float] = {}
        self.missing = [len(task.after) for task in self.tasks]
        self.readers: list[list[int]] = [[] for _ in self.tasks]
        for position, task in enumerate(self.tasks):
            for before in task.after:
                self.readers[before].append(position)
        for position, missing in enumerate(self.missing):
            if not missing:
                self._ready(position)

    def run(self) -> list[int]:
        while len(self.order) < len(self.tasks):
            if self.starts and len(self.waits) < self.in_flight:
                self._issue(heapq.heappop(self.starts))
            elif self.waits and self.waits[0][0] <= self.clock:
                self._wait()
            elif self.computes:
                self._issue(heapq.heappop(self.computes))
            else:
                self._wait()
        return self.order

    def _ready(self, position: int) -> None:
        task = self.tasks[position]
        if task.waits_for is not None:
            key = self._first_reader(position)
            heapq.heappush(self.waits, (self.ends.get(task.waits_for, 0.0), key))
        else:
            heapq.heappush(self.computes if task.axis is None else self.starts, position)

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
        for reader in self.readers[position]:
            self.missing[reader] -= 1
            if not self.missing[reader]:
                self._ready(reader)
