"""The machine at hand: its cores, its memory, and what its processor is called."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

from irc.cluster.cpus import usable_cpus


def num_cores() -> int:
    """Return how many cores this process may use."""
    try:
        return len(usable_cpus())
    except AttributeError:
        return os.cpu_count() or 1


def memory_bytes() -> int:
    """Return the memory of the machine, or of the control group that this process is limited to."""
    try:
        physical_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 * 10**9
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return physical_bytes
    return min(physical_bytes, int(limit)) if limit.isdigit() and int(limit) > 0 else physical_bytes


def free_bytes(meminfo: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory that new processes can have without another one losing its own.

    Args:
        meminfo: where Linux says what is available; elsewhere all of `memory_bytes` counts as free.
        group: the control group that limits this process, if one does.
    """
    free = memory_bytes()
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text("ascii").splitlines())
        free = min(free, int(lines["MemAvailable"].split()[0]) << 10)
        limit = (group / "memory.max").read_text("ascii").strip()
        used = int((group / "memory.current").read_text("ascii"))
        rows = (row.split() for row in (group / "memory.stat").read_text("ascii").splitlines())
        cached = next((int(size) for name, size in rows if name == "inactive_file"), 0)
    except (OSError, ValueError, KeyError):
        return free
    return min(free, max(0, int(limit) - used + cached)) if limit.isdigit() else free


USUAL_SECOND_CACHE = 1 << 20
"""Bytes of a core's second cache where the system does not say."""


def second_cache_bytes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Return the bytes of the second cache of a core.

    Args:
        folder: where Linux describes the caches of one core.
    """
    for index in sorted(folder.glob("index*")):
        try:
            level, kind, size = (
                (index / name).read_text(encoding="ascii").strip()
                for name in ("level", "type", "size")
            )
        except (OSError, ValueError):
            continue
        if level == "2" and kind != "Instruction" and size[:-1].isdigit():
            return int(size[:-1]) << {"K": 10, "M": 20}.get(size[-1], 0)
    return USUAL_SECOND_CACHE


def processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(filter(None, named), platform.machine())


def fingerprint() -> str:
    """Return a short name of this kind of machine: times of one are of no use to another."""
    parts = f"{processor()}|{platform.machine()}|{num_cores()}"
    return hashlib.sha256(parts.encode()).hexdigest()[:16]
