"""Settings of the process that irc changes while it compiles, and puts back.

Threads may compile at the same time: a setting is put back when none of them is inside any more.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

DEEPER = 10
"""Frames of a trace for each frame of what is traced: torch calls a module by way of itself."""


class ProcessWide:
    """A setting that is changed while any thread is inside a block.

    Args:
        change: changes it, and returns what puts it back.
    """

    def __init__(self, change: Callable[[], Callable[[], None]]) -> None:
        self._change = change
        self._lock = threading.Lock()
        self._inside = 0
        self._undo: Callable[[], None] = lambda: None

    @contextmanager
    def __call__(self) -> Generator[None]:
        """Enter a block."""
        with self._lock:
            if self._inside == 0:
                self._undo = self._change()
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    self._undo()


def _deepen() -> Callable[[], None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit * DEEPER)
    return lambda: sys.setrecursionlimit(limit)


deep_recursion = ProcessWide(_deepen)
"""Modules as deeply nested as Python can call them can be traced, too."""
