"""The processor at hand: what it can do, and how many threads it is worth."""

from __future__ import annotations

import ctypes
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
    """Return the processor's features by Linux's names; those that may not be used lack."""
    listed = _listed()
    return listed if permit_tiles() else listed.difference(TILES)


@cache
def _listed() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())


TILES = ("amx_bf16", "amx_int8", "amx_tile")
"""Features of tile registers, by Linux's names."""
_PERMIT, _TILE_DATA, _ARCH_PRCTL = 0x1023, 18, 158
"""``ARCH_REQ_XCOMP_PERM``, the state of tile registers, the system call of x86-64 (Linux 5.16)."""


@cache
def permit_tiles() -> bool:
    """Ask Linux for the use of tile registers (AMX), for this process and all of its threads.

    A tile holds 1 KiB of state for each thread, so a process has to ask. Returns whether it may;
    False as well on machines that have none.
    """
    if system() != "linux-x86_64" or not _listed().issuperset(TILES):
        return False
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _PERMIT, _TILE_DATA) == 0


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
