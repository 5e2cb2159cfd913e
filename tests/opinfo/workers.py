"""Entries in processes of their own, so that a crash, a hang or a leak ends one entry only.

A process that has torch loaded and one program compiled forks one child per entry: a child starts
within milliseconds, begins with Dynamo's state fresh, and gives back all its memory at its end. It
writes a line for each sample, so that time is limited by sample (an entry has up to 1440), and what
was found before a crash is kept.
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
from typing import Any, BinaryIO

MEMORY = 6 << 30
"""Bytes that a child may have mapped beyond its parent's."""


def results(
    names: Sequence[str],
    work: Callable[[str], Iterable[Any]],
    *,
    seconds: float,
    workers: int,
) -> Iterator[tuple[str, list[Any], str]]:
    """Yield for each name what its work gave, and in what its process ended, empty where well.

    Args:
        names: of the entries.
        work: runs in a child; gives things that JSON can hold, one by one.
        seconds: of time that a child may take for each of them.
        workers: children at a time.
    """
    waiting, running = list(names), dict[int, _Child]()
    while waiting or running:
        while waiting and len(running) < workers:
            child = _Child(waiting.pop(0), work, seconds)
            running[child.pipe] = child
        ready, _, _ = select.select(list(running), [], [], 1.0)
        for pipe in list(running):
            child = running[pipe]
            if (pipe in ready and child.read()) or child.is_late():
                del running[pipe]
                yield (child.name, *child.end())


class _Child:
    def __init__(self, name: str, work: Callable[[str], Iterable[Any]], seconds: float) -> None:
        self.name = name
        self.text = b""
        self.seconds = seconds
        self.until = time.monotonic() + seconds
        self.pipe, write = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            _run(name, work, write)
        os.close(write)

    def read(self) -> bool:
        """Take what the child has written; true at the end of it."""
        part = os.read(self.pipe, 1 << 16)
        self.text += part
        self.until = time.monotonic() + self.seconds
        return not part

    def is_late(self) -> bool:
        return time.monotonic() > self.until

    def end(self) -> tuple[list[Any], str]:
        """Return what the child said; kill it where it is still at it."""
        late = self.is_late()
        if late:
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.pipe)
        _, status = os.waitpid(self.pid, 0)
        # A child that was killed may have stopped within its last line.
        *lines, _ = self.text.split(b"\n")
        said = [json.loads(line) for line in lines]
        found = [each["value"] for each in said if "value" in each]
        if late:
            return found, f"not done after {self.seconds:.0f} s"
        if os.WIFSIGNALED(status):
            return found, f"its process died of {signal.Signals(os.WTERMSIG(status)).name}"
        if not said or "value" in said[-1]:
            return found, f"its process ended with status {os.waitstatus_to_exitcode(status)}"
        return found, said[-1]["end"]


def _run(name: str, work: Callable[[str], Iterable[Any]], pipe: int) -> None:
    """Work, say what came of it, and end the process whatever happens."""
    try:
        _limit_memory()
        with os.fdopen(pipe, "wb") as out:
            try:
                for value in work(name):
                    _say(out, {"value": value})
                end = ""
            except BaseException as error:  # the parent reports it
                end = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            _say(out, {"end": end})
    finally:
        os._exit(0)


def _say(out: BinaryIO, what: dict[str, Any]) -> None:
    out.write(json.dumps(what).encode() + b"\n")
    out.flush()


def _limit_memory() -> None:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - no file of ours
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
