"""Entries in processes of their own, so that a crash, a hang or a leak ends one entry only.

A process that has torch loaded and one program compiled forks one child per entry: a child starts
within milliseconds, begins with Dynamo's state fresh, and gives back all its memory at its end.
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
from collections.abc import Callable, Iterator, Sequence
from typing import Any

MEMORY = 6 << 30
"""Bytes that a child may have mapped beyond its parent's."""


def results(
    names: Sequence[str],
    work: Callable[[str], Any],
    *,
    seconds: float,
    workers: int,
) -> Iterator[tuple[str, Any, str]]:
    """Yield for each name what its work returned, or in what its process ended.

    Args:
        names: of the entries.
        work: runs in a child; returns something that JSON can hold.
        seconds: of time that a child may take.
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
    def __init__(self, name: str, work: Callable[[str], Any], seconds: float) -> None:
        self.name = name
        self.text = b""
        self.until = time.monotonic() + seconds
        self.seconds = seconds
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
        return not part

    def is_late(self) -> bool:
        return time.monotonic() > self.until

    def end(self) -> tuple[Any, str]:
        """Return what the child said; kill it where it is still at it."""
        late = self.is_late()
        if late:
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.pipe)
        _, status = os.waitpid(self.pid, 0)
        if late:
            return None, f"not done after {self.seconds:.0f} s"
        if os.WIFSIGNALED(status):
            return None, f"its process died of {signal.Signals(os.WTERMSIG(status)).name}"
        try:
            found = json.loads(self.text)
        except ValueError:
            return None, f"its process ended with status {os.waitstatus_to_exitcode(status)}"
        return found.get("value"), found.get("error", "")


def _run(name: str, work: Callable[[str], Any], pipe: int) -> None:
    """Work, say what came of it, and end the process whatever happens."""
    try:
        _limit_memory()
        try:
            said = {"value": work(name)}
        except BaseException as error:  # the parent reports it
            said = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}
        with os.fdopen(pipe, "wb") as out:
            out.write(json.dumps(said).encode())
    finally:
        os._exit(0)


def _limit_memory() -> None:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - no file of ours
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
