"""gloo's own threads, which receive and send: they let those that compute run first.

Each group of gloo has a thread that waits for its sockets. While a caller is inside a send, that
thread asks again and again for the lock that the caller holds (``Pair::handleEvents`` of gloo's
transport over TCP). Woken on the caller's core, by the answer to the very message that the caller
sends, it takes the core and then waits there for what only the caller can give, until the
scheduler's next tick: up to four milliseconds in which nothing is done. On two cores, with a
millisecond of compute between them, four of ten collectives met this.

A thread of Linux's policy SCHED_BATCH (``sched(7)``) takes no core from one that runs: it goes on
where a core is idle, where the caller waits, or at the tick. Any process may ask for it.

And Linux wakes a thread where the one runs that woke it: gloo's thread on the core of the peer
that sent, and the caller on the core of gloo's thread. So two ranks come to stand on one core,
one of them behind the other's compute, beside an idle one. Each rank has its part of the
machine's cores for its network threads; those that compute stay free to go where a core is idle,
and are woken in their own part.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from irc.cluster.cpus import cpus_of_rank

NAME = "gloo_tcp_loop"
"""Of such a thread, from torch 2.13 on; before, it has none of its own, and nothing is done."""

_TASKS = Path("/proc/self/task")


def defer_network_threads() -> None:
    """Have the threads of all gloo groups of this process take no core from one that computes.

    To be called after groups are made; on systems other than Linux it does nothing.
    """
    if sys.platform != "linux":
        return
    place = local_place(os.environ)
    own = None if place is None else cpus_of_rank(*place)
    for task in _TASKS.iterdir():
        # A thread may have ended meanwhile, and a container may forbid it: collectives are slower.
        with contextlib.suppress(OSError):
            if (task / "comm").read_text().strip() == NAME:
                os.sched_setscheduler(int(task.name), os.SCHED_BATCH, os.sched_param(0))
                if own is not None:
                    os.sched_setaffinity(int(task.name), own)


def local_place(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Return rank and number of ranks on this machine, as torchrun says them; None without it."""
    words = [environment.get(name, "") for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")]
    if not all(word.isascii() and word.isdigit() for word in words):
        return None
    rank, ranks = map(int, words)
    return (rank, ranks) if rank < ranks else None
