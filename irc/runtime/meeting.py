"""Where the processes of one start meet, in a store that holds what earlier starts have left.

Launchers restart their processes with one store, each launcher counting its own restarts, and the
number of ranks may be another: nothing that a process is given says which start it belongs to. So
rank 0 thinks of a name, and gives it to each rank that asks. A question has a number of its own, by
which an answer to a process that is gone is told from one's own; rank 0 answers until all have said
that they know its name.
"""

from __future__ import annotations

import secrets
import time
from typing import Protocol

from irc.errors import IrcError

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
    end_s = time.monotonic() + timeout_s
    if rank == 0:
        return _answer(store, world, end_s)
    question, key = secrets.token_hex(8), f"{PREFIX}/answer/{rank}"
    store.set(f"{PREFIX}/question/{rank}", question)
    while True:
        if store.check([key]):
            asked, _, name = store.get(key).decode().partition(" ")
            if asked == question:
                store.set(f"{name}/known/{rank}", "1")
                return name
        _pause(end_s, [0])


def _answer(store: Store, world: int, end_s: float) -> str:
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
            _pause(end_s, list(answered))
    return name


def _pause(end_s: float, ranks: list[int]) -> None:
    if time.monotonic() > end_s:
        are = "rank" if len(ranks) == 1 else "ranks"
        raise IrcError(
            "rank-lost",
            f"{are} {', '.join(map(str, ranks))} did not come where the processes meet",
            help="see what that process says, and whether it ended before its first call",
        )
    time.sleep(POLL_S)
