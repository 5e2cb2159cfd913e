"""Independent jobs that a caller does with threads beside it, and need not wait for.

A job is native code that runs long beside what handing it over costs (some 50 us). The caller does
the first job, then itself each of the others that no thread has begun: where other programs have
the cores, it does all of them, one after the other.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

Job = Callable[[], None]


def share(jobs: Sequence[Job], threads: int) -> None:
    """Do all jobs, on as many threads at most, the caller's among them; they raise nothing."""
    if len(jobs) < 2 or threads < 2:
        for job in jobs:
            job()
        return
    others = _threads(threads - 1, os.getpid())
    handed = [(job, others.submit(job)) for job in jobs[1:]]
    jobs[0]()
    # From the end: threads begin with the first that was handed over.
    begun = [future for job, future in reversed(handed) if not _done_here(job, future.cancel)]
    for future in begun:
        future.result()


def _done_here(job: Job, cancel: Callable[[], bool]) -> bool:
    """Do a job unless a thread has begun it."""
    if not cancel():
        return False
    job()
    return True


@functools.cache
def _threads(count: int, _process: int) -> ThreadPoolExecutor:
    """Return threads of a process: a child made by fork has none of its parent's."""
    return ThreadPoolExecutor(count, thread_name_prefix="irc-beside")
