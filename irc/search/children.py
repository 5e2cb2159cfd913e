"""Child processes that compute results of planning, and when there may be some.

A child is a fork: it begins with all that its parent knows, computes one result, sends it back and
ends. None is started on systems other than Linux, whose libraries do not stand being forked; while
a Python thread is alive that may hold a lock, which would stay locked in a child; beside CUDA,
which a child cannot use; nor in a process that is itself a daemon of :mod:`multiprocessing`.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess, current_process
from pathlib import Path
from types import FrameType
from typing import cast

from irc.cluster.cpus import usable_cpus
from irc.errors import IrcError
from irc.search.outcomes import Job, Outcome

PROCESSES = "IRC_PROCESSES"
"""Variable of the environment: in so many processes plans are made at most; 1: without children."""

MOST = 8
"""Processors used by default at most: each child may come to hold as much as its parent."""

IDLE_THREADS = ("irc-beside", "irc-rank-watch", "irc-parent-watch")
"""How threads are called that hold no lock of Python's when nothing is planned."""

PR_SET_PDEATHSIG = 1

STUCK_S = 10.0
"""A child that did nothing for so long waits for what it will not get, and is ended."""


def most_processes() -> int:
    """Return in how many processes this one may plan, itself among them.

    By default one for each processor that ranks of the same host leave to it, up to :data:`MOST`,
    and one more, since one of them mostly waits for another.

    Raises:
        IrcError: ``option-value`` where ``IRC_PROCESSES`` is no number of processes.
    """
    if sys.platform != "linux":
        return 1
    if text := os.environ.get(PROCESSES):
        if not text.isdecimal() or int(text) < 1:
            raise IrcError(
                "option-value",
                f"{PROCESSES}='{text}' is no number of processes",
                help="choose 1 for irc itself alone, or more for child processes beside it",
            )
        return int(text)
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    share = len(usable_cpus()) // (int(ranks) if ranks.isdecimal() and int(ranks) else 1)
    return min(share, MOST) + 1 if share > 1 else 1


def can_fork() -> bool:
    """Whether children can be started, which find no lock held that nobody would release."""
    if current_process().daemon or most_processes() < 2:
        return False
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return False
    others = (each for each in threading.enumerate() if each is not threading.current_thread())
    return all(each.name.startswith(IDLE_THREADS) for each in others)


@dataclass(eq=False)
class Child:
    """A child process, and the end of the pipe that its result comes by."""

    process: BaseProcess
    results: Connection
    cpu_ticks: int = -1

    @classmethod
    def of(cls, job: Job) -> Child | None:
        """Start a child; return None where the system has no room for one."""
        fork = multiprocessing.get_context("fork")
        try:
            results, sender = fork.Pipe(duplex=False)
        except OSError:
            return None
        arguments = job, sender, os.getpid()
        process = fork.Process(target=_work, args=arguments, name="irc-ahead", daemon=True)
        child = cls(process, results)
        try:
            with warnings.catch_warnings():
                # From Python 3.12 on, of any thread, idle ones of native code among them.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
        except OSError:
            results.close()
            return None
        finally:
            sender.close()
        CHILDREN.running.add(child)
        return child

    def is_ready(self) -> bool:
        """Whether it has sent its result, or ended."""
        return bool(wait([self.results], 0))

    def outcome(self) -> Outcome | None:
        """Wait until it ends, and return what it sent; None where it failed."""
        while not wait([self.results], STUCK_S):
            before, self.cpu_ticks = self.cpu_ticks, _cpu_ticks(self.process)
            if before == self.cpu_ticks:
                return None
        # It may have ended, or have sent what is no value here.
        with suppress(Exception):
            return cast("Outcome", self.results.recv())
        return None

    def end(self) -> None:
        """End it, whatever it does."""
        CHILDREN.running.discard(self)
        self.results.close()
        self.process.kill()
        self.process.join()


@dataclass
class Children:
    """All children of this process.

    Attributes:
        running: those that have not been ended.
        is_refused: the system had no room for one, and none is begun any more.
    """

    running: set[Child] = field(default_factory=set[Child])
    is_refused: bool = False

    def free(self) -> int:
        """Return how many more there may be."""
        return 0 if self.is_refused else most_processes() - 1 - len(self.running)


CHILDREN = Children()


@contextmanager
def interrupts_held() -> Generator[None]:
    """Hold an interrupt back in a block, at whose end it arrives: no child is lost sight of.

    A mask would not do: the system gives an interrupt to any thread, those of libraries among them.
    """
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(before):
        yield
        return
    held: list[tuple[int, FrameType | None]] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append((number, frame))

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            before(*held[0])


def _cpu_ticks(process: BaseProcess) -> int:
    """Return what a process has computed so far, in ticks of the system's clock."""
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_text("utf-8")
    except OSError:
        return time.monotonic_ns()  # nothing is known of it: never twice the same
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _work(job: Job, results: Connection, parent: int) -> None:
    """Compute a result in a child, and send it; where anything fails, send nothing."""
    # What the user's program does on signals is the parent's to do: it ends its children.
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    _end_with(parent)
    gc.disable()  # it would copy the memory that is shared with the parent
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # the threads of the parent's pool are not here
    # The parent computes it then, and raises what there is to raise.
    with suppress(BaseException):
        outcome = Outcome.recorded(job)
        # Once the parent has the result it ends this process.
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with suppress(Exception):  # what the user put there need not be one of the system's
                stream.flush()
        results.send(outcome)


def _end_with(parent: int) -> None:
    """Let the system end this process when its parent ends, however that does."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)
