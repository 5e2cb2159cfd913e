"""What other programs compute while something is measured: times from then are worth nothing."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from irc.cluster.host import num_cores
from irc.errors import IrcError

STAT = Path("/proc/stat")
LEAST, PART = 0.25, 0.05
"""Cores that others may use: a desktop's small change, or this part of all."""
WAITING = (3, 4)
"""Which of Linux's counts of a processor's time are idle: with nothing to do, and before a disk."""
COUNTS = 8
"""How many of them add up: those of guests are part of others."""


@dataclass(frozen=True)
class Others:
    """What was computed beside a measurement.

    Attributes:
        cores: that other programs, or other machines on this host, used in the mean; None where the
            system does not say (it is read from Linux's ``/proc/stat``).
    """

    cores: float | None

    @property
    def busy(self) -> bool:
        """Whether that is too much to believe what was measured."""
        return self.cores is not None and self.cores > max(LEAST, PART * num_cores())

    def check(self, kept: str) -> None:
        """Refuse to keep what was measured beside them.

        Args:
            kept: what would be, in the message.

        Raises:
            IrcError: ``machine-busy``.
        """
        if self.busy:
            raise IrcError(
                "machine-busy",
                f"{kept} not kept: other programs used {self.cores:.1f} of {num_cores()} cores",
                help="stop them and measure again, or keep it all the same with --anyway",
            )


UNKNOWN = Others(None)
"""The system does not say, or nobody asked it."""


def others_since(*, total: Callable[[float], float] = lambda own: own) -> Callable[[], Others]:
    """Begin to watch; what it returns says what others have computed since then.

    Args:
        total: of the seconds that this process and its children computed, makes those of all
            processes that measure together on this machine.
    """
    began, busy, own = time.perf_counter(), _busy_s(), _own_s()

    def since() -> Others:
        mine = total(_own_s() - own)
        ended = _busy_s()
        if busy is None or ended is None:
            return UNKNOWN
        passed = max(time.perf_counter() - began, 1e-9)
        return Others(max(ended - busy - mine, 0.0) / passed)

    return since


def _own_s() -> float:
    """Return the seconds that this process and its children that have ended computed."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _busy_s() -> float | None:
    """Return the seconds that all processors have computed since the machine began."""
    try:
        words = STAT.read_text(encoding="ascii").partition("\n")[0].split()[1 : COUNTS + 1]
        ticks = [int(word) for word in words]
        return sum(t for i, t in enumerate(ticks) if i not in WAITING) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None
