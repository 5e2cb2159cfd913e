"""Results that child processes compute before they are asked for.

Planning is Python, of which a process runs one thread at a time. What will be asked for next is
computed meanwhile by children (:mod:`irc.search.children`), on the processors that the caller
leaves idle.

What is decided does not depend on children. A result is the same whoever computes it; where a
child fails, the caller computes the result when it needs it, and starts no other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from math import inf
from typing import Self, TypeVar, cast

from irc.search.children import CHILDREN, Child, can_fork, interrupts_held, most_processes
from irc.search.outcomes import Job, Outcome

T = TypeVar("T")


def num_ahead() -> int:
    """Return how many results it pays to begin that may not be asked for.

    The caller and so many children have a processor each; one child more computes what is sure.
    """
    return max(1, most_processes() - 2) if can_fork() else 0


class Ahead:
    """Computes results ahead; at its end, what nobody has asked for is dropped.

    Args:
        begins: whether there may be children: not of what several would do to one device.
        until: when nothing is begun any more that nobody has asked for, by the monotonic clock.

    >>> with Ahead() as ahead:
    ...     for number in (3, 4):
    ...         ahead.begin(number, lambda number=number: number**2)
    ...     ahead.take(3, lambda: 3**2), ahead.take(4, lambda: 4**2)
    (9, 16)
    """

    def __init__(self, *, begins: bool = True, until: float = inf) -> None:
        self._begins, self._until = begins, until
        self._process = os.getpid()
        self._queued: dict[Hashable, Job] = {}
        self._running: dict[Hashable, Child] = {}
        self._done: dict[Hashable, Outcome] = {}
        self._said: set[Hashable] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self, key: Hashable, job: Callable[[], object]) -> None:
        """Let a result be computed as soon as a processor is idle.

        Args:
            key: that it is asked for by.
            job: computes it; the result can be pickled.
        """
        known = key in self._queued or key in self._running or key in self._done
        if not known and self._begins and self._is_own() and can_fork():
            self._queued[key] = job
            self._start()

    def take(self, key: Hashable, job: Callable[[], T]) -> T:
        """Return a result, computed by a child where one has begun.

        While it is waited for, the caller computes what no child has begun.

        Args:
            key: of the result.
            job: computes it.

        Raises:
            IrcError: what the job raises.
        """
        if not self._is_own():
            return job()
        self._queued.pop(key, None)
        self._start()
        while (child := self._running.get(key)) is not None:
            if self._queued and not child.is_ready():
                other = next(iter(self._queued))
                self.prepare(other, self._queued.pop(other))
            else:
                self._receive(key)
            self._start()
        outcome = self._done.pop(key, None) or Outcome.of(job)
        for each in outcome.warned:
            # Where a child begins Python forgets what it has said.
            if each.place not in self._said:
                self._said.add(each.place)
                each.say()
        return cast("T", outcome.result())

    def prepare(self, key: Hashable, job: Callable[[], object]) -> None:
        """Compute a result in the caller, before it is asked for.

        Args:
            key: that it is asked for by.
            job: computes it; what it raises is raised when it is asked for.
        """
        # What is wrong with irc arises again then.
        with suppress(Exception):
            self._done[key] = Outcome.recorded(job)

    def drop(self) -> None:
        """Compute nothing more of what no child has begun."""
        self._queued.clear()

    def end(self) -> None:
        """End all children, and forget what they sent."""
        self.drop()
        self._done.clear()
        with interrupts_held():
            while self._running:
                self._running.popitem()[1].end()

    def _is_own(self) -> bool:
        """Whether this is the process whose children these are, and not one of them."""
        return os.getpid() == self._process

    def _start(self) -> None:
        """Take what children have sent, and start others."""
        if time.monotonic() >= self._until:
            self.drop()
        for key in [key for key, child in self._running.items() if child.is_ready()]:
            self._receive(key)
        while self._queued and self._begins and CHILDREN.free() > 0 and can_fork():
            key = next(iter(self._queued))
            with interrupts_held():
                if (child := Child.of(self._queued[key])) is None:
                    # Each refusal takes file descriptors, which multiprocessing does not close.
                    CHILDREN.is_refused = True
                    return
                del self._queued[key]
                self._running[key] = child

    def _receive(self, key: Hashable) -> None:
        """Wait for a child; where it has failed, its result is computed when it is asked for."""
        child = self._running[key]
        try:
            outcome = child.outcome()
        finally:
            with interrupts_held():
                del self._running[key]
                child.end()
        if outcome is None:
            self._begins = False
        else:
            self._done[key] = outcome
