"""Independent jobs that a caller does with threads beside it, and need not wait for.

A job is native code that runs long beside what handing it over costs (some 50 us). The caller does
the first job, then itself each of the others that no thread has begun: where other programs have
the cores, or the process is at its end and takes no work any more, it does all of them, one after
the other.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from irc.cluster.cpus import use_all_cpus

Job = Callable[[], None]


def share(jobs: Sequence[Job], threads: int) -> None:
    """Do all jobs, on as many threads at most, the caller's among them.

    Where the caller is interrupted, or a job fails, what threads have begun is waited for, since
    it writes to the caller's memory, and the rest is not begun.
    """
    if len(jobs) < 2 or threads < 2:
        for job in jobs:
            job()
        return
    handed = [_Handed(job) for job in jobs[1:]]
    try:
        _hand_over(handed, threads - 1)
        jobs[0]()
        # From the end: threads begin with the first that was handed over.
        for each in reversed(handed):
            if (job := each.taken_back()) is not None:
                job()
    finally:
        begun = [each.future for each in handed if not each.future.cancel()]
        for future in begun:
            future.exception()
    for future in begun:
        future.result()


class _Handed:
    """A job that a thread does, unless the caller takes it back before.

    The future is not the executor's own: where no thread can be started, ``submit`` raises and has
    put the job into its queue all the same.
    """

    def __init__(self, job: Job) -> None:
        self._job: Job | None = job
        self.future = Future[None]()

    def run(self) -> None:
        """Do the job, on a thread."""
        if not self.future.set_running_or_notify_cancel() or self._job is None:
            return
        try:
            self._job()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(None)

    def taken_back(self) -> Job | None:
        """Return the job for the caller to do; None where a thread has begun it."""
        if not self.future.cancel():
            return None
        # What is left in the executor's queue holds no memory.
        job, self._job = self._job, None
        return job


def _hand_over(handed: Sequence[_Handed], threads: int) -> None:
    """Give jobs to threads, as far as the executor takes any."""
    others = _threads(threads, os.getpid())
    for each in handed:
        try:
            others.submit(each.run)
        except RuntimeError:  # the interpreter ends, or the system has no thread left
            return


@functools.cache
def _threads(count: int, _process: int) -> ThreadPoolExecutor:
    """Return threads of a process: a child made by fork has none of its parent's."""
    return ThreadPoolExecutor(count, thread_name_prefix="irc-beside", initializer=use_all_cpus)
