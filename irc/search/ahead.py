"""Results that child processes compute before they are asked for.

Planning is Python, of which a process runs one thread at a time. What will be asked for next is
computed meanwhile by children, on the processors that the caller leaves idle. A child is a fork: it
begins with all that its parent knows, computes one result, sends it back and ends.

What is decided does not depend on children. A result is the same whoever computes it; where a
child fails, the caller computes the result when it needs it, and starts no other. None is started
on systems other than Linux, whose libraries do not stand being forked; while a Python thread is
alive that may hold a lock, which would stay locked in a child; beside CUDA, which a child cannot
use; nor in a process that is itself a daemon of :mod:`multiprocessing`.
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
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess, current_process
from pathlib import Path
from types import FrameType
from typing import Any, Self, TypeVar, cast

from irc.cluster.cpus import usable_cpus
from irc.errors import IrcError

T = TypeVar("T")
Job = Callable[[], Any]

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


def num_ahead() -> int:
    """Return how many results it pays to begin that may not be asked for.

    The caller and so many children have a processor each; one child more computes what is sure.
    """
    return max(1, most_processes() - 2) if can_fork() else 0


class Ahead:
    """Computes results ahead; at its end, what nobody has asked for is dropped.

    Args:
        begins: whether there may be children: not of what several would do to one device.
        until: when nothing is begun any more that nobody has asked for, by the monotonic clock.

    >>> with Ahead() as ahead:
    ...     for number in (3, 4):
    ...         ahead.begin(number, lambda number=number: number**2)
    ...     ahead.take(3, lambda: 3**2), ahead.take(4, lambda: 4**2)
    (9, 16)
    """

    def __init__(self, *, begins: bool = True, until: float = inf) -> None:
        self._begins, self._until = begins, until
        self._process = os.getpid()
        self._queued: dict[Hashable, Job] = {}
        self._running: dict[Hashable, _Child] = {}
        self._done: dict[Hashable, _Outcome] = {}
        self._said: set[Hashable] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self, key: Hashable, job: Callable[[], object]) -> None:
        """Let a result be computed as soon as a processor is idle.

        Args:
            key: that it is asked for by.
            job: computes it; the result can be pickled.
        """
        known = key in self._queued or key in self._running or key in self._done
        if not known and self._begins and self._is_own() and can_fork():
            self._queued[key] = job
            self._start()

    def take(self, key: Hashable, job: Callable[[], T]) -> T:
        """Return a result, computed by a child where one has begun.

        While it is waited for, the caller computes what no child has begun.

        Args:
            key: of the result.
            job: computes it.

        Raises:
            IrcError: what the job raises.
        """
        if not self._is_own():
            return job()
        self._queued.pop(key, None)
        self._start()
        while (child := self._running.get(key)) is not None:
            if self._queued and not child.is_ready():
                other = next(iter(self._queued))
                self.prepare(other, self._queued.pop(other))
            else:
                self._receive(key)
            self._start()
        outcome = self._done.pop(key, None) or _Outcome.of(job)
        for each in outcome.warned:
            # Where a child begins Python forgets what it has said.
            if each.place not in self._said:
                self._said.add(each.place)
                each.say()
        return cast("T", outcome.result())

    def prepare(self, key: Hashable, job: Callable[[], object]) -> None:
        """Compute a result in the caller, before it is asked for.

        Args:
            key: that it is asked for by.
            job: computes it; what it raises is raised when it is asked for.
        """
        # What is wrong with irc arises again then.
        with suppress(Exception):
            self._done[key] = _Outcome.recorded(job)

    def drop(self) -> None:
        """Compute nothing more of what no child has begun."""
        self._queued.clear()

    def end(self) -> None:
        """End all children, and forget what they sent."""
        self.drop()
        self._done.clear()
        with _interrupts_held():
            while self._running:
                self._running.popitem()[1].end()

    def _is_own(self) -> bool:
        """Whether this is the process whose children these are, and not one of them."""
        return os.getpid() == self._process

    def _start(self) -> None:
        """Take what children have sent, and start others."""
        if time.monotonic() >= self._until:
            self.drop()
        for key in [key for key, child in self._running.items() if child.is_ready()]:
            self._receive(key)
        while self._queued and self._begins and _CHILDREN.free() > 0 and can_fork():
            key = next(iter(self._queued))
            with _interrupts_held():
                if (child := _Child.of(self._queued[key])) is None:
                    # Each refusal takes file descriptors, which multiprocessing does not close.
                    _CHILDREN.is_refused = True
                    return
                del self._queued[key]
                self._running[key] = child

    def _receive(self, key: Hashable) -> None:
        """Wait for a child; where it has failed, its result is computed when it is asked for."""
        child = self._running[key]
        try:
            outcome = child.outcome()
        finally:
            with _interrupts_held():
                del self._running[key]
                child.end()
        if outcome is None:
            self._begins = False
        else:
            self._done[key] = outcome


@dataclass(frozen=True)
class _Warned:
    """A warning, and where it was warned of."""

    message: Warning
    category: type[Warning]
    path: str
    line: int
    module: str

    @classmethod
    def of(cls, caught: warnings.WarningMessage) -> _Warned:
        message, path = caught.message, caught.filename
        assert isinstance(message, Warning)
        # As Python calls what belongs to no module.
        name = next(filter(partial(_is_at, path), [*sys.modules]), path.removesuffix(".py"))
        return cls(message, caught.category, path, caught.lineno, name)

    @property
    def place(self) -> Hashable:
        """What Python says once, unless the user wants it more often."""
        return str(self.message), self.category, self.path, self.line

    def say(self) -> None:
        """Warn as if this process had come to the place: by its module's filters and registry."""
        own: dict[str, Any] = vars(sys.modules[self.module]) if self.module in sys.modules else {}
        known = own.setdefault("__warningregistry__", {})
        where = self.path, self.line, self.module, known
        warnings.warn_explicit(self.message, self.category, *where)


def _is_at(path: str, module: str) -> bool:
    """Whether a module was read from a file."""
    return getattr(sys.modules.get(module), "__dict__", {}).get("__file__") == path


@dataclass(frozen=True)
class _Outcome:
    """What came of a job, and what it warned of, which is said when the result is asked for."""

    value: object
    error: Exception | None = None
    warned: tuple[_Warned, ...] = ()

    @classmethod
    def of(cls, job: Job) -> _Outcome:
        try:
            return cls(job())
        except IrcError as error:
            return cls(None, error)

    @classmethod
    def recorded(cls, job: Job) -> _Outcome:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            own = cls.of(job)
        warned = {each.place: each for each in map(_Warned.of, caught)}
        return replace(own, warned=tuple(warned.values()))

    def result(self) -> object:
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(eq=False)
class _Child:
    """A child process, and the end of the pipe that its result comes by."""

    process: BaseProcess
    results: Connection
    cpu_ticks: int = -1

    @classmethod
    def of(cls, job: Job) -> _Child | None:
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
        _CHILDREN.running.add(child)
        return child

    def is_ready(self) -> bool:
        """Whether it has sent its result, or ended."""
        return bool(wait([self.results], 0))

    def outcome(self) -> _Outcome | None:
        """Wait until it ends, and return what it sent; None where it failed."""
        while not wait([self.results], STUCK_S):
            before, self.cpu_ticks = self.cpu_ticks, _cpu_ticks(self.process)
            if before == self.cpu_ticks:
                return None
        # It may have ended, or have sent what is no value here.
        with suppress(Exception):
            return cast("_Outcome", self.results.recv())
        return None

    def end(self) -> None:
        """End it, whatever it does."""
        _CHILDREN.running.discard(self)
        self.results.close()
        self.process.kill()
        self.process.join()


@dataclass
class _Children:
    """All children of this process.

    Attributes:
        running: those that have not been ended.
        is_refused: the system had no room for one, and none is begun any more.
    """

    running: set[_Child] = field(default_factory=set[_Child])
    is_refused: bool = False

    def free(self) -> int:
        """Return how many more there may be."""
        return 0 if self.is_refused else most_processes() - 1 - len(self.running)


_CHILDREN = _Children()


@contextmanager
def _interrupts_held() -> Generator[None]:
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


def can_fork() -> bool:
    """Whether children can be started, which find no lock held that nobody would release."""
    if current_process().daemon or most_processes() < 2:
        return False
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return False
    others = (each for each in threading.enumerate() if each is not threading.current_thread())
    return all(each.name.startswith(IDLE_THREADS) for each in others)


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
        outcome = _Outcome.recorded(job)
        # Once the parent has the result it ends this process.
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        results.send(outcome)


def _end_with(parent: int) -> None:
    """Let the system end this process when its parent ends, however that does."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)
