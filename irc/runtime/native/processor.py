"""The processor at hand: what it can do, and how many threads it is worth."""

from __future__ import annotations

import platform
import sys
from functools import cache
from pathlib import Path

from irc.cluster.host import num_cores


def system() -> str:
    """Return the operating system and architecture, as programs name it: ``linux-x86_64``."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower())
    return f"{sys.platform}-{machine or platform.machine().lower()}"


@cache
def flags() -> frozenset[str]:
    """Return the processor's features by Linux's names; those that the kernel switched off lack."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())


def default_threads() -> int:
    """Return how many threads a program uses unless told: the cores that this process may use.

    Two threads of one core share its vector units, so cores are counted; and a control group may
    be given the time of fewer.
    """
    count = min(num_cores(), _physical())
    quota = _quota()
    return max(1, count if quota is None else min(count, quota))


def _physical() -> int:
    """Return the number of cores, of which each may show as several."""
    cores: set[str] = set()
    for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list"):
        try:
            cores.add(path.read_text(encoding="ascii").strip())
        except (OSError, ValueError):
            continue
    return len(cores) or num_cores()


def _quota() -> int | None:
    """Return how many cores' time the control group gets, None where it is not limited."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return max(1, -(-int(limit) // int(period))) if limit.isdigit() and int(period) > 0 else None
