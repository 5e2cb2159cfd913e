"""The search for something smaller that still fails.

Delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002,
section 3): large parts are taken away first, then smaller ones, until none can be. As in C-Reduce
(Regehr et al., "Test-case reduction for C compiler bugs", 2012) the parts are of several kinds,
which come again in turn until a round of all of them takes nothing away.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from irc.logs import PROGRESS

Subject = TypeVar("Subject")


class OutOfTimeError(Exception):
    """The search has taken as long as it may."""


class Smallest(Generic[Subject]):
    """The smallest subject so far that fails.

    Args:
        subject: one that fails; is not changed.
        fails: whether another fails in the same way; may change what it is given no more than
            ``subject``.
        size: of a subject; whatever replaces another is of a lesser size, so that the search ends.
        seconds: that it may take.
    """

    def __init__(
        self,
        subject: Subject,
        fails: Callable[[Subject], bool],
        size: Callable[[Subject], tuple[int, ...]],
        seconds: float,
    ) -> None:
        self.subject = subject
        self.tries = 0
        self.is_minimal = False
        self._fails, self._size = fails, size
        self._end = time.monotonic() + seconds

    def offer(self, candidate: Subject | None) -> bool:
        """Take a candidate that is smaller and fails.

        Args:
            candidate: None for one that cannot be.

        Returns:
            Whether it is now the smallest.

        Raises:
            OutOfTimeError: before it is tried; what is tried may take longer.
        """
        if time.monotonic() > self._end:
            raise OutOfTimeError
        if candidate is None or self._size(candidate) >= self._size(self.subject):
            return False
        self.tries += 1
        size, left = self._size(self.subject)[0], self._end - time.monotonic()
        PROGRESS.info("try %d, smallest so far %d ops, at most %.0f s more", self.tries, size, left)
        if not self._fails(candidate):
            return False
        self.subject = candidate
        return True

    def without_parts(
        self,
        count: Callable[[Subject], int],
        without: Callable[[Subject, range], Subject | None],
    ) -> None:
        """Take away runs of numbered parts, from all of them down to each alone.

        Args:
            count: how many parts a subject has.
            without: the subject without some of them; None where that cannot be.
        """
        length = count(self.subject)
        while length:
            start = 0
            while start < (most := count(self.subject)):
                part = range(start, min(start + length, most))
                if not self.offer(without(self.subject, part)):
                    start += length
            length = min(length, most + 1) // 2

    def search(self, kinds: Sequence[Callable[[Smallest[Subject]], None]]) -> None:
        """Try all kinds of parts until a round takes nothing away, or the time is over."""
        before = None
        try:
            while before is not self.subject:
                before = self.subject
                for kind in kinds:
                    kind(self)
        except OutOfTimeError:
            return
        self.is_minimal = True
