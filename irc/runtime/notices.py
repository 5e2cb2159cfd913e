"""Notices of a rank's newest collectives, in memory that its peers read: what messages say, sooner.

A message wakes a thread of the library, which wakes the one that waits: behind a millisecond of
compute, that took 0.1 to 0.4 ms on two cores. Where each rank has a core, one that waits has
nothing better to do than to look: 64 KB among two processes take 0.07 ms so, and 0.12 behind
compute, where messages took 0.07 and 0.3.

Notices are rows of integers; a later one takes the place of one that is eight older. A reader sees
whether a row changed while it was read, since the number of its collective is written last, and is
wiped first: x86-64 shows the stores of a core in their order, other processors do not.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from irc.cluster.cpus import usable_cpus
from irc.runtime.network_threads import local_place

NOTICES = 8
START = 64
"""Bytes before the notices of a rank in its memory."""
PATIENCE_S = 1e-3
"""How long a rank looks before it waits for messages: for as long it keeps a core from others."""


def may_look(ranks: int, environment: Mapping[str, str]) -> bool:
    """Return whether a rank may look for notices: processors keep stores in order, and one is its.

    Args:
        ranks: that this machine has at least.
        environment: with what torchrun says of the ranks of this machine.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    place = local_place(environment)
    return max(ranks, place[1] if place else 0) <= len(usable_cpus())


class Notices:
    """The notices of all ranks, as one of them sees them.

    Args:
        here: this rank.
        memory: of each rank, as bytes.
        length: integers of a notice.
    """

    def __init__(self, here: int, memory: Sequence[torch.Tensor], length: int) -> None:
        self._here, self._length = here, length
        end = START + 8 * length * NOTICES
        parts: list[Any] = [each[START:end].numpy() for each in memory]
        self._rows = [memoryview(part).cast("q") for part in parts]

    def show(self, row: Sequence[int]) -> None:
        """Show a notice to all peers.

        Args:
            row: the number of its collective, one more than that of the last, and what follows.
        """
        rows, at = self._rows[self._here], row[0] % NOTICES * self._length
        rows[at] = 0
        for place, number in enumerate(row[1:], at + 1):
            rows[place] = number
        rows[at] = row[0] + 1  # memory that nobody wrote is 0

    def look(self, number: int) -> list[list[int]] | None:
        """Return the notices of all ranks of a collective, as they come; None: not so soon.

        Args:
            number: of the collective, of which this rank has shown its own.
        """
        end = time.perf_counter() + PATIENCE_S
        at = number % NOTICES * self._length
        seen: list[list[int]] = []
        for rows in self._rows:
            while rows[at] != number + 1:
                # A peer that is further ahead shows it no more.
                if rows[at] > number + 1 or time.perf_counter() > end:
                    return None
            row = rows[at : at + self._length].tolist()
            if rows[at] != number + 1:
                return None
            seen.append([number, *row[1:]])
        return seen
