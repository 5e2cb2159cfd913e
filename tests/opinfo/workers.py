"""Entries in processes of their own, so that a crash, a hang or a leak ends one entry only.

A process that has torch loaded and some programs compiled forks one child per entry: a child starts
within milliseconds, begins with Dynamo's state fresh, and gives back all its memory at its end. It
tries the entry in all ways, one task each, and writes a line for each sample, so that time is
limited by sample (an entry has up to 1440), what was said before a crash is kept, and another child
goes on with the next task.
"""

# pyright: basic
from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from tests.opinfo.ways import Way

MEMORY = 6 << 30
"""Bytes that a child may have mapped beyond its parent's, where nothing else is said."""


@dataclass(frozen=True)
class Task:
    """An entry, by name, and a way to try it."""

    name: str
    way: Way


Work = Callable[[Task], Iterable[Any]]


def results(
    batches: Sequence[Sequence[Task]],
    work: Work,
    *,
    seconds: float,
    workers: int,
    memory: int = MEMORY,
) -> Iterator[tuple[Task, list[Any], str]]:
    """Yield for each task what its work gave, and in what its process ended, empty where well.

    Args:
        batches: tasks that one process does one after the other.
        work: runs in a child; gives things that JSON can hold, one by one.
        seconds: of time that a child may take for each of them.
        workers: children at a time.
        memory: bytes that a child may have mapped beyond its parent's.
    """
    waiting, running = [list(batch) for batch in batches], dict[int, _Child]()
    while waiting or running:
        while waiting and len(running) < workers:
            child = _Child(waiting.pop(0), work, seconds, memory)
            running[child.pipe] = child
        ready, _, _ = select.select(list(running), [], [], 1.0)
        for pipe in list(running):
            child = running[pipe]
            if (pipe in ready and child.read()) or child.is_late():
                del running[pipe]
                child.end()
                if rest := child.tasks[len(child.done) :]:
                    waiting.insert(0, rest)
            yield from child.take()


class _Child:
    def __init__(self, tasks: list[Task], work: Work, seconds: float, memory: int) -> None:
        self.tasks = tasks
        self.done: list[tuple[Task, list[Any], str]] = []
        self.said = list[Any]()
        self.text = b""
        self.taken = 0
        self.seconds = seconds
        self.until = time.monotonic() + seconds
        self.pipe, write = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            _run(tasks, work, write, memory)
        os.close(write)

    def read(self) -> bool:
        """Read what the child has written; true at the end of it."""
        part = os.read(self.pipe, 1 << 16)
        # A child that was killed may have stopped within its last line.
        *lines, self.text = (self.text + part).split(b"\n")
        for line in map(json.loads, lines):
            if "value" in line:
                self.said.append(line["value"])
            else:
                self._finish(line["end"])
        self.until = time.monotonic() + self.seconds
        return not part

    def take(self) -> list[tuple[Task, list[Any], str]]:
        """Return the tasks that were done since the last time."""
        new = self.done[self.taken :]
        self.taken = len(self.done)
        return new

    def is_late(self) -> bool:
        return time.monotonic() > self.until

    def end(self) -> None:
        """Kill the child where it is still at it, and say what ended it where that was no task."""
        late = self.is_late()
        if late:
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.pipe)
        _, status = os.waitpid(self.pid, 0)
        if len(self.done) == len(self.tasks):
            return
        if late:
            self._finish(f"not done after {self.seconds:.0f} s")
        elif os.WIFSIGNALED(status):
            self._finish(f"its process died of {signal.Signals(os.WTERMSIG(status)).name}")
        else:
            self._finish(f"its process ended with status {os.waitstatus_to_exitcode(status)}")

    def _finish(self, error: str) -> None:
        self.done.append((self.tasks[len(self.done)], self.said, error))
        self.said = []


def _run(tasks: Sequence[Task], work: Work, pipe: int, memory: int) -> None:
    """Work, say what came of it, and end the process whatever happens."""
    try:
        _limit_memory(memory)
        with os.fdopen(pipe, "wb") as out:
            for task in tasks:
                end = ""
                try:
                    for value in work(task):
                        _say(out, {"value": value})
                except BaseException as error:  # the parent reports it
                    end = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
                _say(out, {"end": end})
    finally:
        os._exit(0)


def _say(out: BinaryIO, what: dict[str, Any]) -> None:
    out.write(json.dumps(what).encode() + b"\n")
    out.flush()


def _limit_memory(memory: int) -> None:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - no file of ours
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
