"""The threads of native programs: one pool for a process, shared by all of them.

A program divides a kernel into as many shares as it was told threads, whether or not there are that
many free: :mod:`irc.backends.cpu.team` says how they are handed out. The threads are started when a
program with several is loaded, and again in a child made by fork, which has none of them.
"""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from collections.abc import Callable
from functools import partial

from irc.cluster.cpus import use_all_cpus
from irc.errors import IrcError
from irc.runtime.native.entry import refresh_entries

MOST = 1024
"""Threads that there is room for."""
LINE = 128
"""Bytes between what two threads write: two lines of a cache, which are fetched together."""
SPINS = 20_000
"""How often an idle thread looks for work before it sleeps: about half a millisecond."""

UNTIL, PERIOD, LAST = 16, 24, 32
"""Bytes into the pool's memory: until which cycle the machine is taken for busy, for how many, and
at which one the OpenMP runtime's threads were last let go."""

Worker = Callable[[int, int, int], None]
WORKER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class Pool:
    """Threads that run shares of kernels.

    Args:
        spins: how often an idle thread looks for work before it sleeps, by default :data:`SPINS`.

    Attributes:
        address: of its memory, which is never freed: its threads look at it until the process ends.
        num_threads: how many there are, their caller's included.
    """

    def __init__(self, spins: int | None = None) -> None:
        self._spins = spins
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self.wanted = 1
        self._clear()

    def _clear(self) -> None:
        self.num_threads = 1
        self.address = _zeros((MOST + 1) * LINE)
        self._pid = os.getpid()

    def want(self, threads: int, worker: Worker) -> None:
        """Start threads until there are as many.

        Where the system gives no more, there is a warning: a caller does the shares of all others.

        Args:
            threads: the caller's included.
            worker: what a thread runs, of any program's code: it never returns.

        Raises:
            IrcError: ``option-value``.
        """
        if not 1 <= threads <= MOST:
            raise IrcError(
                "option-value", f"{threads} threads: a program runs on 1 to {MOST} of them"
            )
        with self._lock:
            self._worker = self._worker or worker
            self.wanted = max(self.wanted, threads)
        self.start()

    def start(self) -> None:
        """Start the threads that are missing."""
        with self._lock:
            while self.num_threads < self.wanted and self._worker is not None:
                # A daemon: at the end of the process nobody waits for it, and it holds no lock.
                spins = SPINS if self._spins is None else self._spins
                arguments = (self.address, self.num_threads, spins)
                name = f"irc-{self.num_threads}"
                run = partial(_run, self._worker)
                thread = threading.Thread(target=run, args=arguments, name=name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    text = f"kernels have {self.num_threads} of {self.wanted} threads: {error}"
                    self.wanted = self.num_threads
                    warnings.warn(text, RuntimeWarning, stacklevel=2)
                    return
                self.num_threads += 1

    def ready(self, threads: int) -> tuple[int, int]:
        """Return how many threads a program's kernels are divided among, and the pool's address."""
        return threads, self.address

    def after_fork(self) -> None:
        """Begin anew in a child: its parent's threads are not there, nor is who had the team."""
        if self._pid != os.getpid():
            self._lock = threading.Lock()
            self._clear()
            refresh_entries()


def _run(worker: Worker, address: int, number: int, spins: int) -> None:
    use_all_cpus()
    worker(address, number, spins)


def _zeros(size: int) -> int:
    """Return the address of zeros, at the begin of a line, that nobody frees."""
    api = ctypes.pythonapi
    api.PyMem_RawCalloc.restype = ctypes.c_void_p
    api.PyMem_RawCalloc.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
    start: int | None = api.PyMem_RawCalloc(1, size + LINE)
    if start is None:
        raise MemoryError(size)
    return -(-start // LINE) * LINE


POOL = Pool()
"""Of programs that run without torch."""
BESIDE = Pool(spins=1000)
"""Of kernels that share the OpenMP runtime's threads with torch, while the machine is busy: seldom
used, so that they soon sleep."""
for _pool in (POOL, BESIDE):
    os.register_at_fork(after_in_child=_pool.after_fork)
