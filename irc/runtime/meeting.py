"""Where the processes of one start meet, in a store that holds what earlier starts have left.

Launchers restart their processes with one store, each launcher counting its own restarts, and the
number of ranks may be another: nothing that a process is given says which start it belongs to. So
rank 0 thinks of a name, and gives it to each rank that asks. A question has a number of its own, by
which an answer to a process that is gone is told from one's own; rank 0 answers until all have said
that they know its name.

One that waits looks at the processes that its launcher has started beside it: a rank that is
stopped on its way does not come.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from typing import Protocol

from irc.cluster import process
from irc.errors import IrcError
from irc.runtime.watch import INTERVAL_S, described, end_with, lost, place_of_process, timeout_s

STORE_VARIABLE = "IRC_STORE"
"""A file by which processes of one machine meet; without it, MASTER_ADDR and MASTER_PORT do."""

RUN_VARIABLE = "TORCHELASTIC_RUN_ID"
"""Torchrun sets it, and may start the processes again, more or fewer of them."""

OF_RUN = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", RUN_VARIABLE, STORE_VARIABLE)
"""Variables that are alike in all processes of a run."""

PREFIX = "irc/start"
POLL_S = 0.01


class Store(Protocol):
    """What is asked of a store of torch.distributed."""

    def set(self, key: str, value: str) -> None:
        """Write a value."""
        ...

    def get(self, key: str) -> bytes:
        """Return a value, once it is there."""
        ...

    def check(self, keys: list[str]) -> bool:
        """Return whether there are values of all keys."""
        ...


class _Wait:
    """For ranks that are on their way.

    Args:
        most_s: how long they may take.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s, self._since = most_s, time.monotonic()
        self._looked = 0.0
        self._stopped_since: dict[int, float] = {}

    def pause(self, ranks: Sequence[int]) -> None:
        """Wait a moment.

        Args:
            ranks: that have not come.

        Raises:
            IrcError: ``rank-lost`` where time is over.
        """
        now = time.monotonic()
        if now - self._since > self._most_s:
            are = "rank" if len(ranks) == 1 else "ranks"
            raise IrcError(
                "rank-lost",
                f"{are} {', '.join(map(str, ranks))} did not come where the processes meet",
                help="see what that process says, and whether it ended before its first call",
            )
        if now - self._looked > INTERVAL_S:
            self._looked = now
            self._look(ranks)
        time.sleep(POLL_S)

    def _look(self, ranks: Sequence[int]) -> None:
        """Look for the processes of ranks among those that this one's launcher has started.

        This process ends, and the other, where one has been stopped for long.
        """
        limit, names = timeout_s(), {str(rank) for rank in ranks}
        stopped = [pid for pid, state in process.siblings() if state == process.STOPPED]
        now = time.monotonic()
        self._stopped_since = {pid: self._stopped_since.get(pid, now) for pid in stopped}
        for pid, since in self._stopped_since.items():
            name = process.variable_of(pid, "RANK")
            if name not in names or not 0 < limit < now - since or not _is_of_this_run(pid):
                continue
            place = place_of_process(pid)
            end_with(lost(described(int(name), place, process.STOPPED)), 0.0, place)


def _is_of_this_run(pid: int) -> bool:
    """Return whether a process is of the run that this one is of.

    A shell, too, is the parent of what runs in it, and its user may have stopped another run there.
    """
    return all(process.variable_of(pid, name) == os.environ.get(name, "") for name in OF_RUN)


def name_of_start(store: Store, rank: int, world: int, timeout_s: float) -> str:
    """Return a name that the processes of this start agree on, and no others; all of them call it.

    Args:
        store: that all of them see, and those of earlier starts saw.
        rank: of this process.
        world: how many there are.
        timeout_s: how long they wait for each other.

    Raises:
        IrcError: ``rank-lost``.
    """
    wait = _Wait(timeout_s)
    if rank == 0:
        return _answer(store, world, wait)
    question, key = secrets.token_hex(8), f"{PREFIX}/answer/{rank}"
    store.set(f"{PREFIX}/question/{rank}", question)
    while True:
        if store.check([key]):
            asked, _, name = store.get(key).decode().partition(" ")
            if asked == question:
                store.set(f"{name}/known/{rank}", "1")
                return name
        wait.pause([0])


def _answer(store: Store, world: int, wait: _Wait) -> str:
    """Give all other ranks a new name, until they know it."""
    name = f"{PREFIX}/{secrets.token_hex(8)}"
    answered: dict[int, str] = dict.fromkeys(range(1, world), "")
    while answered:
        for rank, last in list(answered.items()):
            key = f"{PREFIX}/question/{rank}"
            if store.check([f"{name}/known/{rank}"]):
                del answered[rank]
            elif store.check([key]) and (asked := store.get(key).decode()) != last:
                answered[rank] = asked
                store.set(f"{PREFIX}/answer/{rank}", f"{asked} {name}")
        if answered:
            wait.pause(list(answered))
    return name
