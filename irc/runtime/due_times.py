"""When messages are due, as the ranks of one machine tell each other.

A link that takes longer than this machine's own moves a message at once and lets it arrive later:
when the sender's link would have carried it there. Only the sender knows when that is. It writes it
to a file that all who receive the message map, before it gives the message to the library. Who has
received the message has thus the time as well, without a message of its own for it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np

KEPT = 1 << 16
"""Messages of one board whose times are kept: more than the actions of a step, so than can be under
way at a time. A file has pages only for those that were written."""


class Board:
    """The times of messages that the same ranks exchange, one after the other.

    Each rank counts them by itself: the n-th of one is the n-th of all.

    Args:
        file: that the ranks share; made where it is not there.
        places: how many of them tell a time.
    """

    def __init__(self, file: Path, places: int) -> None:
        shape = KEPT, places
        descriptor = os.open(file, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            # All make it as long as the others do, which leaves what is written.
            os.ftruncate(descriptor, KEPT * places * 8)
        finally:
            os.close(descriptor)
        self._times = np.memmap(file, dtype=np.float64, mode="r+", shape=shape)
        self._count = 0

    def next(self) -> int:
        """Return the number of the next message."""
        self._count += 1
        return self._count - 1

    def tell(self, number: int, place: int, due_s: float) -> None:
        """Say when a message is due that comes from a place, in seconds of the machine's clock."""
        self._times[number % KEPT, place] = due_s

    def latest(self, number: int) -> float:
        """Return when the last part of a message is due that has been received."""
        return float(self._times[number % KEPT].max())


class Boards:
    """The boards of one rank.

    Args:
        folder: that the ranks of a run share.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._boards: dict[tuple[int | str, ...], Board] = {}

    def between(self, ranks: Sequence[int], name: str, places: int = 1) -> Board:
        """Return the board of some ranks for what has this name, with a place for each sender."""
        key = *ranks, name
        if key not in self._boards:
            # A name may hold what names of files may not.
            file = self._folder / f"due-{sha256(repr(key).encode()).hexdigest()[:32]}"
            self._boards[key] = Board(file, places)
        return self._boards[key]
