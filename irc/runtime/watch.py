"""Watching the ranks of a run: one that is stopped or gone ends the others soon, by its name.

A collective waits for a rank that does not come: for half an hour, since ranks also wait so for
the one that compiles. So each rank has a thread that looks, once a second, at the processes of the
other ranks on its machine (Linux says which are stopped), and the first rank of each machine leaves
a sign of life in the run's store, where those of other machines look for it. What one sees, it
writes into the store, and all ranks end with ``rank-lost``, each with the collective that it waits
in. A rank that computes for long is no lost one.

Ranks that call different things wait for each other, too: one that has waited for long says so in
the store, and where all have, in different calls, all end with ``ranks-diverged``.

``IRC_RANK_TIMEOUT`` says how many seconds a rank may be stopped, or all may wait in different calls
(15; 0: for ever); another machine may be silent for eight times as long.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from irc.cluster import process
from irc.cluster.process import ENDED, STOPPED
from irc.errors import IrcError
from irc.runtime.pending import Looks, Pending, own_pending, pending_in

TIMEOUT_VARIABLE = "IRC_RANK_TIMEOUT"
TIMEOUT_S = 15.0
SILENT = 8
"""How many times as long another machine may be silent."""
INTERVAL_S = 1.0
BEAT_S = 5.0
SEEN_S = 10.0
"""How long the end of a process may take, once its connections are closed."""
ENDING_S = 20.0
"""How long the end of a process waits for a look that has begun."""
PREFIX = "irc/watch"
LOST = f"{PREFIX}/lost"
STUCK = f"{PREFIX}/stuck"

DIVERGED = "diverged: "

Tell = Callable[[IrcError], None]


def tell_on_stderr(error: IrcError) -> None:
    """Print an error as a rank does that ends with it."""
    print(f"[rank {os.environ.get('RANK', '0')}] {error.render()}", file=sys.stderr, flush=True)


_tell: Tell = tell_on_stderr
_watch: Watch | None = None
_watched: Any = None
"""The store in which it watches, as the caller has it."""


def tell_by(tell: Tell) -> None:
    """Say how a lost rank is reported before this process ends."""
    global _tell
    _tell = tell


def watch_ranks() -> None:
    """Watch the other ranks of processes that have joined; every rank of the run calls it.

    Does nothing where it is watching already, and where the user switched it off.
    """
    store: Any = dist.distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]
    watch_in(store, dist.get_rank(), dist.get_world_size())


def watch_in(store: Any, rank: int, world: int) -> None:
    """Watch the other ranks from now on; see :func:`watch_ranks`.

    Args:
        store: of the run.
        rank: of this process.
        world: how many ranks there are.
    """
    global _watch, _watched
    limit = timeout_s()
    if limit <= 0 or world == 1:
        return
    if _watch is not None and _watch.is_alive and _is_part(store, _watched):
        return
    stop_watching()
    try:
        own = store.clone()
    except RuntimeError:
        return  # a store of the user's own, which has one connection
    _watch, _watched = Watch(own, rank, world, limit), store
    _watch.start()
    atexit.register(stop_watching)


def stop_watching() -> None:
    """Watch no more: the processes part, in order."""
    global _watch, _watched
    if _watch is not None:
        _watch.stop()
    _watch = _watched = None
    atexit.unregister(stop_watching)


def _is_part(store: Any, whole: Any) -> bool:
    """Return whether a store is another, or lies in it: torch gives each group a part of one."""
    while store is not None and store is not whole:
        store = getattr(store, "underlying_store", None)
    return store is not None


def timeout_s() -> float:
    """Return how long a rank may be stopped.

    Raises:
        IrcError: ``option-value`` for a variable that is no number.
    """
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        return float(text) if text else TIMEOUT_S
    except ValueError:
        raise IrcError(
            "option-value", f"{TIMEOUT_VARIABLE}={text} is no number of seconds"
        ) from None


class Watch:
    """The thread that watches.

    Args:
        store: of the run, on a connection of its own: others wait in theirs.
        rank: of this process.
        world: how many ranks there are.
        limit_s: how long one may be stopped.
    """

    def __init__(self, store: Any, rank: int, world: int, limit_s: float) -> None:
        self._store, self._rank, self._world, self._limit_s = store, rank, world, limit_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="irc-rank-watch")
        self._stopped_since: dict[int, float] = {}
        self._heard: dict[int, tuple[bytes, float]] = {}
        self._places: list[dict[str, Any]] = []
        self._looks = Looks()
        self._is_stuck = False

    @property
    def is_alive(self) -> bool:
        """Whether it watches."""
        return self._thread.is_alive() and not self._ended.is_set()

    def start(self) -> None:
        """Begin."""
        self._store.set(f"{PREFIX}/place/{self._rank}", json.dumps(own_place()))
        self._thread.start()

    def stop(self) -> None:
        """End, and leave word that this rank ends in order."""
        self._ended.set()
        # A thread inside the store when the interpreter ends would abort the process. On a machine
        # where much else runs, a look at the store takes seconds.
        self._thread.join(ENDING_S)
        if not self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                self._store.set(f"{PREFIX}/done/{self._rank}", "1")

    def gone(self) -> list[str]:
        """Say which ranks on this machine are gone, or stopped."""
        descriptions: list[str] = []
        for rank in self._neighbours():
            state = state_of(self._places[rank])
            if state in (STOPPED, *ENDED):
                descriptions.append(described(rank, self._places[rank], state))
        return descriptions

    def first_cause(self, pending: Pending) -> IrcError | None:
        """Return what one rank has said of the end of the run, if any has.

        Args:
            pending: what this rank was in.
        """
        with contextlib.suppress(RuntimeError, ValueError):
            if self._store.check([LOST]):
                return cause(self._store.get(LOST).decode("utf-8", "replace"), pending)
        return None

    def _run(self) -> None:
        beat = 0.0
        # The store ends with the rank that keeps it, whose end the others see in their collectives.
        with contextlib.suppress(RuntimeError, ValueError):
            while not self._ended.wait(INTERVAL_S):
                if self._store.check([LOST]):
                    # Longer than the rank that has found it out, which ends the stopped one.
                    said = self._store.get(LOST).decode("utf-8", "replace")
                    self._end(said, 2.5 * INTERVAL_S)
                if not self._places and not self._meet():
                    continue
                self._look_here()
                self._look_at_itself()
                now = time.monotonic()
                if now >= beat and self._rank in self._leaders():
                    beat = now + BEAT_S
                    self._look_elsewhere()

    def _meet(self) -> bool:
        keys = [f"{PREFIX}/place/{rank}" for rank in range(self._world)]
        if not self._store.check(keys):
            return False
        self._places = [json.loads(text) for text in self._store.multi_get(keys)]
        return True

    def _neighbours(self) -> list[int]:
        if not self._places:
            return []
        own = self._places[self._rank]["machine"]
        return [r for r, p in enumerate(self._places) if p["machine"] == own and r != self._rank]

    def _leaders(self) -> list[int]:
        first: dict[str, int] = {}
        for rank, place in enumerate(self._places):
            first.setdefault(place["machine"], rank)
        return list(first.values())

    def _look_here(self) -> None:
        """Look at the ranks on this machine."""
        for rank in self._neighbours():
            if state_of(self._places[rank]) != STOPPED:
                self._stopped_since.pop(rank, None)
                continue
            since = self._stopped_since.setdefault(rank, time.monotonic())
            if time.monotonic() - since > self._limit_s:
                self._lose(described(rank, self._places[rank], STOPPED), self._places[rank])

    def _look_elsewhere(self) -> None:
        """Leave a sign of life, and look for those of other machines."""
        self._store.set(f"{PREFIX}/beat/{self._rank}", str(time.monotonic()))
        now = time.monotonic()
        for rank in self._leaders():
            key = f"{PREFIX}/beat/{rank}"
            if rank == self._rank or not self._store.check([key]):
                continue
            beat = self._store.get(key)
            known = self._heard.get(rank)
            if known is None or known[0] != beat:
                self._heard[rank] = (beat, now)
            elif now - known[1] > SILENT * self._limit_s and not self._is_done(rank):
                host = self._places[rank]["host"]
                self._lose(
                    f"rank {rank} on {host} has been silent for {now - known[1]:.0f} s", None
                )

    def _look_at_itself(self) -> None:
        """Say where this rank has waited for long, and end where all have, in different calls."""
        is_stuck = self._looks.waited_s() > self._limit_s
        if is_stuck or self._is_stuck:
            here = own_pending() if is_stuck else None
            said = "" if here is None else json.dumps([here.call, f"{here}"])
            self._store.set(f"{STUCK}/{self._rank}", said)
            self._is_stuck = bool(said)
        keys = [f"{STUCK}/{rank}" for rank in range(self._world)]
        if not self._is_stuck or not self._store.check(keys):
            return
        texts = [text.decode("utf-8", "replace") for text in self._store.multi_get(keys)]
        if not all(texts):
            return
        calls: dict[str, list[int]] = {}
        for rank, text in enumerate(texts):
            calls.setdefault(json.loads(text)[0], []).append(rank)
        if len(calls) > 1:
            waits = [f"{_ranks(own)}: {json.loads(texts[own[0]])[1]}" for own in calls.values()]
            self._lose(f"{DIVERGED}{json.dumps(waits)}", None)

    def _is_done(self, rank: int) -> bool:
        return bool(self._store.check([f"{PREFIX}/done/{rank}"]))

    def _lose(self, what: str, place: Mapping[str, Any] | None) -> NoReturn:
        self._store.set(LOST, what)
        self._end(what, 1.5 * INTERVAL_S, place)

    def _end(self, what: str, wait_s: float, place: Mapping[str, Any] | None = None) -> NoReturn:
        """End the process, once all ranks have said why: a launcher ends them when the first ends.

        Args:
            what: one has written.
            wait_s: for the others, which look once a second.
            place: of a rank that is stopped, which is ended too.
        """
        if self._ended.is_set():
            sys.exit()
        # The main thread is inside a collective, where no exception reaches it.
        end_with(cause(what, own_pending()), wait_s, place)


def end_with(error: IrcError, wait_s: float, place: Mapping[str, Any] | None) -> NoReturn:
    """Tell an error, and end this process.

    Args:
        error: is told first, as a launcher ends all processes when the first ends.
        wait_s: for what others have to tell.
        place: of a rank that is stopped, which is ended too: it takes no other signal, and would
            keep its launcher waiting.
    """
    try:
        with contextlib.suppress(OSError, ValueError):  # whoever read what it says is gone
            _tell(error)
            sys.stdout.flush()
        time.sleep(wait_s)
    finally:
        if place is not None and state_of(place) == STOPPED:
            with contextlib.suppress(OSError):
                os.kill(place["pid"], signal.SIGKILL)
        os._exit(error.exit_code)


def cause(what: str, pending: Pending | None) -> IrcError:
    """Return the error for what a rank has written into the store.

    Args:
        what: it has written.
        pending: what this rank is in.
    """
    if what.startswith(DIVERGED):
        return diverged(json.loads(what.removeprefix(DIVERGED)))
    return lost(what, pending)


def lost(what: str, pending: Pending | None = None) -> IrcError:
    """Return the error for a rank that does not answer.

    Args:
        what: became of it.
        pending: what this rank is in.
    """
    waits = [f"this rank waits in {pending}"] if pending is not None and f"{pending}" else []
    return IrcError(
        "rank-lost",
        what,
        because=[*waits, "the other ranks wait for it, and would for ever"],
        help=f"see what became of it; {TIMEOUT_VARIABLE}=N waits N seconds for a stopped one",
    )


def diverged(waits: Sequence[str]) -> IrcError:
    """Return the error for ranks that wait for each other in different calls.

    Args:
        waits: what ranks wait in, by rank.
    """
    return IrcError(
        "ranks-diverged",
        "the ranks call different things, and wait for each other",
        because=waits,
        help="call what works together on every rank: not under `if rank == 0`, and as often",
    )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def own_place() -> dict[str, Any]:
    """Return where this process is: its machine, and how it is known there."""
    return place_of_process(os.getpid())


def place_of_process(pid: int) -> dict[str, Any]:
    """Return how a process of this machine is known."""
    host = socket.gethostname()
    return {"machine": process.machine(), "host": host, "pid": pid, "start": process.started(pid)}


def state_of(place: Mapping[str, Any]) -> str:
    """Return the state of a rank's process, which is on this machine."""
    return process.state_of(int(place["pid"]), str(place["start"]))


def described(rank: int, place: Mapping[str, Any], state: str) -> str:
    """Say what became of a rank."""
    what = "is stopped" if state == STOPPED else "is gone"
    return f"rank {rank} {what} (process {place['pid']} on {place['host']})"


@contextlib.contextmanager
def naming_lost_ranks() -> Generator[None]:
    """Turn what torch says of a connection that broke into an error that names the rank.

    Raises:
        IrcError: ``rank-lost``.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_of_connection(error):
            raise
        here = pending_in(error)
        if _watch is not None and (first := _watch.first_cause(here)) is not None:
            raise first from error
        gone: list[str] = []
        # The end of a process is seen later than that of its connections.
        until = time.monotonic() + SEEN_S
        while _watch is not None and not (gone := _watch.gone()) and time.monotonic() < until:
            time.sleep(0.1)
        raise IrcError(
            "rank-lost",
            "; ".join(gone) or "a rank of the run is gone, or does not answer",
            because=[
                *([f"this rank waited in {here}"] if f"{here}" else []),
                str(error).partition("\n")[0][:300],
            ],
            help="its own output says why it ended; killed without a word, it lacked memory",
        ) from error


def is_of_connection(error: RuntimeError) -> bool:
    """True for what torch.distributed raises where a rank is not reached."""
    if isinstance(error, torch.distributed.DistError):
        return True
    text = str(error)
    return "gloo" in text and any(
        word in text for word in ("onnection", "imed out", "imeout", "socket", "ead error")
    )
