"""Notices of ranks in memory that their peers read: what a rank gives, and where it lies.

A message wakes a thread of the library, which wakes the one that waits: behind a millisecond of
compute, that took 0.1 to 0.4 ms on two cores. One that has a core has nothing better to do than to
look, and one that shares it naps between looks. A sum of 4 KB among two processes takes 0.03 ms so,
by messages 0.07; one of 1 MB among four on two cores 0.6 ms, by gloo 1.1.

A notice is a row of integers, which begins with the number of its collective. There is room for
some, so that one takes the place of an older one once all peers have read that: a rank says how far
it has read, and one that gets too far ahead waits. What a collective needs that is waited for much
later is copied when its row's turn comes. Ranks run one program, so the one that is furthest behind
waits for nobody here.

x86-64 shows the stores of a core in their order; other processors do not, and have messages.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from irc.cluster.cpus import usable_cpus
from irc.runtime.network_threads import local_place

NOTICES = 64
START = 64
"""Bytes before the notices of a rank in its memory."""
HEAD = 3
"""Integers before the rows: how many it has shown and has read, and whether it has left."""
PATIENCE_S = 1e-3
"""How long a rank that has a core looks all the time."""
NAP_S, LONGEST_NAP_S, NAPS = 5e-5, 2e-3, 20
"""Between looks after that: the least and the most, and otherwise this part of the time waited."""
LOOK_S = 0.05
"""Between looks whether all peers are there."""


def can_look() -> bool:
    """Return whether this machine shows the stores of a core in their order."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def patience_s(ranks: int, environment: Mapping[str, str]) -> float:
    """Return how long a rank looks all the time, before it naps: not at all without its own core.

    Args:
        ranks: that this machine has at least.
        environment: with what torchrun says of the ranks of this machine.
    """
    place = local_place(environment)
    return PATIENCE_S if max(ranks, place[1] if place else 0) <= len(usable_cpus()) else 0.0


def num_bytes(length: int) -> int:
    """Return the bytes of a rank's memory up to the end of its notices of so many integers."""
    return START + 8 * (HEAD + length * NOTICES)


class Notices:
    """The notices of all ranks, as one of them sees them.

    Args:
        here: this rank.
        memory: of each rank, as bytes, all 0 before the first notice.
        length: integers of a notice.
        patience: seconds for which one that waits looks all the time.
        check: called by one that waits with the seconds for which it does, now and then; raises
            where a peer will not come.
    """

    def __init__(
        self,
        here: int,
        memory: Sequence[torch.Tensor],
        length: int,
        patience: float,
        check: Callable[[float], None],
    ) -> None:
        self._here, self._length, self._patience, self._check = here, length, patience, check
        parts: list[Any] = [each[START : num_bytes(length)].numpy() for each in memory]
        self._words = [memoryview(part).cast("q") for part in parts]
        self._peers = [words for rank, words in enumerate(self._words) if rank != here]
        # Rows of collectives that were not waited for when their turn came.
        self._copied: dict[int, list[list[int]]] = {}

    def show(self, row: Sequence[int], catch_up: Callable[[], None]) -> None:
        """Show the next notice to all peers, once they have read the one in its place.

        Args:
            row: the number of its collective, one more than that of the last, and what follows.
            catch_up: called by one that waits, and before the row is written; is to call
                :meth:`have_read`.
        """
        number, own = row[0], self._words[self._here]
        for peer in self._peers:
            self._wait(peer, lambda peer=peer: peer[1] > number - NOTICES, catch_up)
        # Peers may have shown and read meanwhile what is open here: its rows are replaced now.
        catch_up()
        at = self._at(number)
        for place, value in enumerate(row, at):
            own[place] = value
        own[0] = number + 1

    def await_all(self, number: int, catch_up: Callable[[], None]) -> None:
        """Wait until all ranks have shown their notices of a collective.

        Args:
            number: of the collective, of which this rank has shown its own.
            catch_up: called by one that waits.
        """
        for peer in self._peers:
            self._wait(peer, lambda peer=peer: peer[0] > number, catch_up)

    def rows(self, number: int) -> list[list[int]]:
        """Return the notices of all ranks of a collective that is open here; all have shown them.

        Any thread may ask: what is replaced meanwhile was copied before.
        """
        if (copied := self._copied.get(number)) is not None:
            return copied
        rows = [self._row(words, number) for words in self._words]
        # A rank that failed to show one has another there for ever.
        return rows if all(row[0] == number for row in rows) else self._copied.get(number, rows)

    def leave(self) -> None:
        """Tell peers that this rank will show no more."""
        self._words[self._here][2] = 1

    def have_read(self, open_numbers: Iterable[int]) -> None:
        """Tell peers what they may replace: all but notices of collectives that are open here.

        Args:
            open_numbers: of these.
        """
        shown = self._words[self._here][0]
        shown_by_all = min(words[0] for words in self._words)
        for number in sorted(open_numbers):
            if number in self._copied:
                continue
            # Not those that peers have still to show, nor those whose turn is far away.
            if number >= shown_by_all or number > shown - NOTICES // 2:
                shown = min(shown, number)
                break
            self._copied[number] = self.rows(number)
        self._words[self._here][1] = shown

    def forget(self, number: int) -> None:
        """Drop the copy of a notice that nobody will read."""
        self._copied.pop(number, None)

    def newest(self, rank: int) -> list[int] | None:
        """Return the newest notice of a rank; None before its first."""
        words = self._words[rank]
        while shown := words[0]:
            row = self._row(words, shown - 1)
            if words[0] < shown + NOTICES - 1:  # it was not replaced meanwhile
                return row
        return None

    def _row(self, words: memoryview[int], number: int) -> list[int]:
        at = self._at(number)
        return words[at : at + self._length].tolist()

    def _at(self, number: int) -> int:
        return HEAD + number % NOTICES * self._length

    def _wait(
        self, peer: memoryview[int], is_there: Callable[[], bool], catch_up: Callable[[], None]
    ) -> None:
        if is_there():
            return
        begun = time.perf_counter()
        look_s = LOOK_S
        while not is_there():
            waited = time.perf_counter() - begun
            if waited > self._patience:
                catch_up()
                if waited > look_s:
                    look_s += LOOK_S
                    try:
                        self._check(waited)
                        if peer[2]:
                            raise RuntimeError("[gloo] Connection closed by peer: it left")
                    except Exception:
                        # A peer may have shown it, and ended, since this rank looked.
                        if is_there():
                            return
                        raise
                time.sleep(min(max(NAP_S, waited / NAPS), LONGEST_NAP_S))
