"""gloo's own threads, which receive and send: they let those that compute run first.

Each group of gloo has a thread that waits for its sockets. While a caller is inside a send, that
thread asks again and again for the lock that the caller holds (``Pair::handleEvents`` of gloo's
transport over TCP). Woken on the caller's core, by the answer to the very message that the caller
sends, it takes the core and then waits there for what only the caller can give, until the
scheduler's next tick: up to four milliseconds in which nothing is done. On two cores, with a
millisecond of compute between them, four of ten collectives met this.

A thread of Linux's policy SCHED_BATCH (``sched(7)``) takes no core from one that runs: it goes on
where a core is idle, where the caller waits, or at the tick. Any process may ask for it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

NAME = "gloo_tcp_loop"
"""Of such a thread, from torch 2.13 on; before, it has none of its own, and nothing is done."""

_TASKS = Path("/proc/self/task")


def defer_network_threads() -> None:
    """Have the threads of all gloo groups of this process take no core from one that computes.

    To be called after groups are made; on systems other than Linux it does nothing.
    """
    if sys.platform != "linux":
        return
    for task in _TASKS.iterdir():
        # A thread may have ended meanwhile, and a container may forbid it: collectives are slower.
        with contextlib.suppress(OSError):
            if (task / "comm").read_text().strip() == NAME:
                os.sched_setscheduler(int(task.name), os.SCHED_BATCH, os.sched_param(0))
