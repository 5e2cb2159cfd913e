"""How fast the ranks of a run are: a slow one is told by how little it waits in collectives.

Ranks that wait for each other take equally long for a step, so its duration names nobody. The slow
rank is the one that the others wait for: it computes longer, and waits less, than they do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist

from irc.runtime.watch import naming_lost_ranks

SLOW = 1.5
"""How many times as long as the median of the others a slow rank computes."""
LEAST_S = 1e-3
"""By how much longer at least, in a step: less is noise."""


class SlowRankWarning(UserWarning):
    """A rank of a run computes far longer than the others, which wait for it."""


@dataclass(frozen=True)
class Pace:
    """What a rank does with its time, in seconds a step.

    Attributes:
        rank: which.
        computes_s: what it takes for its own work.
        waits_s: what it waits for others, and for what they send.
    """

    rank: int
    computes_s: float
    waits_s: float


class Stopwatch:
    """Adds up what steps take, with what lies between them, and how much of it is waiting.

    Data that a rank loads slowly is its own work, too: a step begins where the one before ended.
    """

    def __init__(self) -> None:
        self._begin: float | None = None
        self.reset()

    def reset(self) -> None:
        """Count from here on."""
        self.steps, self.seconds, self.waited = 0, 0.0, 0.0

    def waiting(self, wait: Callable[[], object]) -> Callable[[], None]:
        """Return a wait that is counted."""

        def timed() -> None:
            begin = time.perf_counter()
            wait()
            self.waited += time.perf_counter() - begin

        return timed

    def ended(self, *, counts: bool = True) -> None:
        """Note that a step has ended; one that compiled does not count, nor its waiting."""
        now = time.perf_counter()
        if counts and self._begin is not None:
            self.steps += 1
            self.seconds += now - self._begin
        else:
            self.reset()
        self._begin = now

    def paces(self) -> list[Pace]:
        """Return what all ranks have done since this was last asked; every rank calls it."""
        count = max(self.steps, 1)
        own = [max(self.seconds - self.waited, 0.0) / count, self.waited / count]
        self.reset()
        if not dist.is_initialized():
            return [Pace(0, *own)]
        sent = torch.tensor(own, dtype=torch.float64)
        rows = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
        with naming_lost_ranks():
            dist.all_gather(rows, sent)  # pyright: ignore[reportUnknownMemberType]
        return [Pace(rank, float(row[0]), float(row[1])) for rank, row in enumerate(rows)]


def slow_ranks(paces: Sequence[Pace]) -> list[Pace]:
    """Return the ranks that compute far longer than the others.

    >>> fast = [Pace(rank, 0.010, 0.030) for rank in range(3)]
    >>> [pace.rank for pace in slow_ranks([*fast, Pace(3, 0.039, 0.001)])]
    [3]
    """
    slow: list[Pace] = []
    for pace in paces:
        others = [each.computes_s for each in paces if each is not pace]
        usual = median(others) if others else pace.computes_s
        if pace.computes_s > max(SLOW * usual, usual + LEAST_S):
            slow.append(pace)
    return slow


def slowness(paces: Sequence[Pace]) -> str:
    """Say which ranks are slow; empty where none is.

    >>> slowness([Pace(0, 0.010, 0.030), Pace(1, 0.039, 0.001)])
    'rank 1 is slow: it computes 39.0 ms a step, the others 10.0 ms, and wait 30.0 ms for it'
    """
    slow = slow_ranks(paces)
    others = [pace for pace in paces if pace not in slow]
    if not slow or not others:
        return ""
    names = ", ".join(f"{pace.rank}" for pace in slow)
    one = len(slow) == 1
    who = f"rank {names} is slow: it computes" if one else f"ranks {names} are slow: they compute"
    longest = max(pace.computes_s for pace in slow)
    usual, wait = (median(getattr(p, each) for p in others) for each in ("computes_s", "waits_s"))
    return (
        f"{who} {1e3 * longest:.1f} ms a step, the others {1e3 * usual:.1f} ms, and wait "
        f"{1e3 * wait:.1f} ms for {'it' if one else 'them'}"
    )
