"""Processes of this machine: whether one that was known earlier is still there, and in what state.

Linux numbers processes anew when numbers run out, and each container its own: a process is known by
its number, the moment it started, and the machine or container that it runs in.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path

STOPPED, GONE = "T", ""
ENDED = (GONE, "Z", "X")
"""States of a process that does nothing any more."""


@cache
def machine() -> str:
    """Return what names this machine, and the container in which processes have their numbers."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip())
    with contextlib.suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def started(pid: int) -> str:
    """Return when a process started, in a unit of the system's; empty where that is not known."""
    return _stat(pid)[1]


def state_of(pid: int, start: str) -> str:
    """Return the state of a process of this machine, as Linux has it; empty where it is gone.

    Args:
        pid: its number.
        start: what :func:`started` said of it.
    """
    state, actual_start = _stat(pid)
    if not actual_start:
        return _alive(pid)
    return state if actual_start == start else GONE


def siblings() -> Iterator[tuple[int, str]]:
    """Yield number and state of each process that the parent of this one started, but this one.

    There are none where the system has no /proc.
    """
    own, parent = os.getpid(), str(os.getppid())
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            state, ppid = text.rpartition(")")[2].split()[:2]
            if ppid == parent and int(entry.name) != own:
                yield int(entry.name), state


def variable_of(pid: int, name: str) -> str:
    """Return a variable of the environment that a process was started with; empty for none."""
    with contextlib.suppress(OSError):
        for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            key, _, value = pair.partition(b"=")
            if key == name.encode():
                return value.decode("utf-8", "replace")
    return ""


def _alive(pid: int) -> str:
    """Return whether there is a process, where no /proc says more."""
    if Path("/proc/self/stat").exists():
        return GONE
    try:
        os.kill(pid, 0)
    except PermissionError:
        return "R"
    except OSError:
        return GONE
    return "R"


def _stat(pid: int) -> tuple[str, str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return GONE, ""
    fields = text.rpartition(")")[2].split()
    return fields[0], fields[19]
