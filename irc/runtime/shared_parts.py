"""Memory that the processes of a host share: what a rank gives to all others, copied once by each.

Over a socket each byte is copied into the kernel and out of it again, by two threads of which one
wakes the other, once for each receiver. Here a rank copies what it gives to memory of its own that
its peers can read, tells each with one small message where it lies, and goes on; each peer reads
what it gets when it waits. On x86-64 what messages say is shown in the memory itself, and there are
none (:mod:`irc.runtime.notices`). Where four ranks gather nine tensors of 2.9 MB together by
messages, each spends 1.0 ms of a core instead of 1.4, and 0.6 of it where it begins instead of 0.9.

Messages, too, say which gathers are open: what all peers have read, ranks write to again. So a rank
holds what it gives to two gathers, or to as many as are under way; one that is never waited for,
yet kept, keeps its own bytes alone. Pages that few gathers have a use for go back to the system.

The memory is Linux's ``memfd``: it has no name that a rank that dies could leave behind. Ranks show
it to each other once, at the first collective of a group that is large enough, and agree whether
all could map that of all; on several machines, or where a container forbids it, they cannot, and
stay with messages. A rank may end when it likes: what it gave stays mapped in its peers.
"""

from __future__ import annotations

import mmap
import os
import secrets
import stat
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, finalize

import torch
from torch.distributed.constants import default_pg_timeout

from irc.cluster.host import memory_bytes
from irc.cluster.process import ENDED, started, state_of
from irc.errors import InternalError, IrcError
from irc.runtime.notices import Notices, can_look, num_bytes, patience_s

TAG = 0x697263
"""Of messages that are parts of a collective; between two ranks they keep their order."""
PAGE = mmap.PAGESIZE
NAME = "irc"
"""Of the memory's file: it tells it from others before it is opened."""
NUM_TOLD = 32
"""Open gathers that a message names; where there are more, those behind the last count as open."""
LENGTH = 3 + NUM_TOLD
"""Integers of a message, or of a notice: number, start and bytes of a collective, and these."""
TRIM_AFTER = 256
"""Gathers after which pages go back: one that has them again pays some 0.2 ms a MB for new ones."""

Take: TypeAlias = Callable[[Sequence[torch.Tensor]], None]
"""Called with the bytes that each rank gives, this one too: reads what this rank gets of them."""
Trim: TypeAlias = Callable[[int, int], None]
"""Called with the ends of a range of a rank's memory: gives its pages back; it is of zeros then."""


@dataclass(frozen=True)
class _Slot:
    """A piece of a rank's shared memory that its peers may still read.

    Attributes:
        start: of its bytes.
        end: behind them, at the end of a page.
        number: of the collective that it is of.
    """

    start: int
    end: int
    number: int


class SharedParts:
    """What the ranks of a group share, as one of them sees it.

    Args:
        group: of processes, as torch has it.
        memory: of each rank, as bytes.
        trim: what gives pages of this rank's memory back.
        waits: how one that waits for notices does, as :class:`irc.runtime.notices.Notices` has it:
            its patience and its check; None: there are messages.

    Attributes:
        looks: whether there are notices.
    """

    def __init__(
        self,
        group: Any,
        memory: Sequence[torch.Tensor],
        trim: Trim = lambda start, end: None,
        waits: tuple[float, Callable[[float], None]] | None = None,
    ) -> None:
        self._here: int = group.rank()
        self._memory, self._trim = memory, trim
        self._notices: Notices | None = None
        self._first = PAGE
        if waits is not None:
            self._notices = Notices(self._here, memory, LENGTH, *waits)
            self._first = _paged(num_bytes(LENGTH))
        self.looks = waits is not None
        self._lock = Lock()
        # In the order of their bytes.
        self._slots: list[_Slot] = []
        self._reach = self._first  # behind the last byte that has been written since the last trim
        self._begun = 0
        self._open: set[int] = set()
        self._over: deque[int] = deque()
        # Messages of collectives that could not begin: gloo reads nothing more from a peer once it
        # comes upon one whose receiver is gone.
        self._left: list[Any] = []
        # Of each rank: the collectives that are open there, as its newest message names them.
        self._told: list[Sequence[int]] = [(0,)] * len(memory)

    def begin(self, group: Any, tensors: Sequence[torch.Tensor], take: Take) -> Delivery:
        """Give tensors to all peers, and return what takes theirs.

        Ranks begin their collectives in one order.

        Args:
            group: that of this.
            tensors: one behind the other; as many bytes on each rank. They are copied.
            take: called where the result is waited for; what it is given ends with it.

        Raises:
            InternalError: more is under way than the machine has memory.
        """
        pieces = [piece.reshape(-1).view(torch.uint8) for piece in tensors]
        size = sum(piece.numel() for piece in pieces)
        with self._lock:
            # Copied before it has a number: what fails here, neither this rank nor a peer keeps.
            start = self._room(size)
            torch.cat(pieces, out=self._memory[self._here][start : start + size])
            number = self._begun
            self._begun += 1
            try:
                self._open.add(number)
                self._slots.append(_Slot(start, start + _paged(size), number))
                self._slots.sort(key=lambda slot: slot.start)
                named = sorted(self._open)[:NUM_TOLD]
                row = [number, start, size, *named, *[number] * (NUM_TOLD - len(named))]
                works, rows = self._told_to_all(group, row)
                delivery = Delivery(works, lambda: self._take(number, size, rows, take))
                # One for which nobody waits reads nothing: peers need not keep what they gave.
                finalize(delivery, self._end, number).atexit = False
            except BaseException:
                self._end(number)
                raise
        return delivery

    def leave(self) -> None:
        """Tell peers that this rank will give nothing more."""
        if self._notices is not None:
            self._notices.leave()

    def _told_to_all(
        self, group: Any, row: Sequence[int]
    ) -> tuple[list[Any], Callable[[], Sequence[Sequence[int]]]]:
        """Tell all peers where bytes lie; return messages, and what returns the rows of all."""
        works: list[Any] = []
        if (notices := self._notices) is not None:
            notices.show(row, self._read_on)
            return works, lambda: self._noticed(notices, row[0])
        told = torch.tensor(row, dtype=torch.int64, device="cpu")
        rows = told.new_empty(len(self._memory), len(told))
        rows[self._here] = told
        peers = [peer for peer in range(len(rows)) if peer != self._here]
        try:
            works.extend(group.recv([rows[peer]], peer, TAG) for peer in peers)
            works.extend(group.send([told], peer, TAG) for peer in peers)
        except BaseException:
            self._left += works
            raise
        return works, lambda: _rows(rows)

    def _noticed(self, notices: Notices, number: int) -> Sequence[Sequence[int]]:
        """Return the notices of all ranks, as soon as they are there."""
        notices.await_all(number, self._catch_up)
        return notices.rows(number)

    def _catch_up(self) -> None:
        """Read on, unless one that begins does."""
        if self._lock.acquire(blocking=False):
            try:
                self._read_on()
            finally:
                self._lock.release()

    def _read_on(self) -> None:
        """Take out what is over, and let peers replace what nobody reads here any more."""
        while self._over:
            number = self._over.popleft()
            self._open.discard(number)
            if self._notices is not None:
                self._notices.forget(number)
        if self._notices is not None:
            self._notices.have_read(self._open)

    def _room(self, size: int) -> int:
        """Return where so many bytes begin that no peer reads any more: as low as there are."""
        self._read_on()
        if self._notices is not None:
            newest = map(self._notices.newest, range(len(self._memory)))
            self._told = [(0,) if row is None else row[3:] for row in newest]
        self._slots = [slot for slot in self._slots if not self._is_read(slot.number)]
        if self._begun % TRIM_AFTER == TRIM_AFTER - 1:
            self._give_back()
        start = self._first
        for slot in self._slots:
            if slot.start - start >= _paged(size):
                break
            start = slot.end
        else:
            if start + _paged(size) > (room := len(self._memory[self._here])):
                under_way = size + sum(slot.end - slot.start for slot in self._slots)
                raise InternalError(
                    f"{under_way} bytes are under way to ranks of this machine, "
                    f"which share {room} of each"
                )
        self._reach = max(self._reach, start + _paged(size))
        return start

    def _is_read(self, number: int) -> bool:
        """Return whether a collective has ended on all ranks: they read no more of it."""
        if number in self._open:
            return False
        peers = (told for rank, told in enumerate(self._told) if rank != self._here)
        return all(number < told[-1] and number not in told for told in peers)

    def _give_back(self) -> None:
        """Give the pages back that are of no slot, though some of them will be needed again."""
        start = self._first
        for slot in (*self._slots, _Slot(self._reach, self._reach, 0)):
            if start < slot.start:
                self._trim(start, slot.start)
            start = slot.end
        self._reach = max((slot.end for slot in self._slots), default=self._first)

    def _take(
        self, number: int, size: int, all_rows: Callable[[], Sequence[Sequence[int]]], take: Take
    ) -> None:
        try:
            rows = all_rows()
            for peer, (its_number, _start, its_size, *_named) in enumerate(rows):
                if (its_number, its_size) != (number, size):
                    raise IrcError(
                        "ranks-differ",
                        f"rank {self._here} of a group takes {size} bytes of each rank, "
                        f"rank {peer} gives {its_size}",
                        because=f"they are in collectives {number} and {its_number} of their group",
                        help="run the same program on every rank",
                    )
            take([self._memory[rank][row[1] : row[1] + size] for rank, row in enumerate(rows)])
            # The last one tells the newer message. Without the lock: where an older one comes
            # between, it names more that are open, never fewer.
            for peer, (_number, _start, _size, *named) in enumerate(rows):
                if named[-1] > self._told[peer][-1]:
                    self._told[peer] = named
        finally:
            self._end(number)

    def _end(self, number: int) -> None:
        # Without the lock: it may be held by what the collector of cycles interrupts to come here.
        # So the next that begins takes it out of the set, over which nobody else goes.
        self._over.append(number)


def _paged(size: int) -> int:
    """Return the bytes of whole pages that hold so many."""
    return -(-size // PAGE) * PAGE


class Delivery:
    """What peers give, under way.

    Attributes:
        works: torch's, one a message; none where there are notices.
        take: to be done once when all of them have ended (IrcError: ``ranks-differ``).
    """

    def __init__(self, works: Sequence[Any], take: Callable[[], None]) -> None:
        self.works, self.take = works, take


_known: WeakKeyDictionary[Any, SharedParts | None] = WeakKeyDictionary()


def shared_parts(group: Any, gather: Callable[[torch.Tensor], torch.Tensor]) -> SharedParts | None:
    """Return what the ranks of a group share; None: messages carry everything.

    The first call waits for all ranks of the group. Ranks that differ in whether they ask are not
    told so: some wait for the message that says where bytes lie, the others for the bytes. The
    library ends a process to which more comes than it waits for; one to which less comes goes on
    with what is no result.

    Args:
        group: of processes of torch's gloo.
        gather: returns the rows of all ranks, called with that of this one.
    """
    if group not in _known:
        with torch.inference_mode(False):  # it is written in any mode from now on
            own = _known[group] = _agreed(group, gather)
        if own is not None:
            finalize(group, own.leave).atexit = False
    return _known[group]


def leave_groups() -> None:
    """Tell peers of all groups that this rank will give nothing more, as closed connections do."""
    for own in list(_known.values()):
        if own is not None:
            own.leave()


def _agreed(group: Any, gather: Callable[[torch.Tensor], torch.Tensor]) -> SharedParts | None:
    """Show this rank's memory to the others, map theirs, and return it all if each rank could."""
    size = memory_bytes() // PAGE * PAGE
    token = secrets.randbits(62)
    own: _Own | None = None
    with suppress(AttributeError, OSError, ValueError):  # another system, or a limit of addresses
        own = _new(size, token)
    try:
        row = [os.getpid(), -1 if own is None else own.fd, size, token]
        shown = _rows(gather(torch.tensor(row, dtype=torch.int64, device="cpu")))
        memory: list[torch.Tensor] = []
        with suppress(OSError, ValueError):
            for rank, row in enumerate(shown):
                if rank == group.rank() and own is not None:
                    memory.append(own.memory)
                else:
                    memory.append(_shown(*row))
        could = [len(memory) == len(shown), can_look()]
        every = gather(torch.tensor(could, dtype=torch.int64, device="cpu"))
    finally:
        if own is not None:
            os.close(own.fd)  # all have mapped it, or nobody needs it
    could_map, can_all_look = map(bool, every.all(0))
    if own is None or not could_map:
        return None
    if not can_all_look:
        return SharedParts(group, memory, own.trim)
    check = _check_of(group, [row[0] for row in shown])
    return SharedParts(group, memory, own.trim, (patience_s(len(shown), os.environ), check))


def _check_of(group: Any, processes: Sequence[int]) -> Callable[[float], None]:
    """Return what raises, as the library does, where a peer is gone or does not come in time."""
    peers = [(process, started(process)) for process in processes if process != os.getpid()]
    options = getattr(group._get_backend(torch.device("cpu")), "options", None)
    limit: timedelta = getattr(options, "_timeout", default_pg_timeout)

    def check(waited_s: float) -> None:
        for process, start in peers:
            if state_of(process, start) in ENDED:
                raise RuntimeError(f"[gloo] Connection closed by peer: process {process} ended")
        if waited_s > limit.total_seconds():
            raise RuntimeError(f"[gloo] Timed out waiting {waited_s:.0f} s for a peer")

    return check


def _rows(table: torch.Tensor) -> list[list[int]]:
    values: Any = table  # torch leaves the type of its list open
    return values.tolist()


@dataclass(frozen=True)
class _Own:
    """Memory that others may map.

    Attributes:
        fd: of its file.
        memory: as bytes, which take pages where they are written.
        trim: what gives pages back.
    """

    fd: int
    memory: torch.Tensor
    trim: Trim


def _new(size: int, token: int) -> _Own:
    """Return memory whose first bytes are a token."""
    fd = os.memfd_create(NAME)
    try:
        os.ftruncate(fd, size)
        mapped = mmap.mmap(fd, size)
        memory = torch.frombuffer(mapped, dtype=torch.uint8)
    except BaseException:
        os.close(fd)
        raise
    memory[:8].view(torch.int64)[0] = token

    def trim(start: int, end: int) -> None:
        with suppress(AttributeError, OSError):  # a system that cannot keeps them
            mapped.madvise(mmap.MADV_REMOVE, start, end - start)

    return _Own(fd, memory, trim)


def _shown(process: int, fd: int, size: int, token: int) -> torch.Tensor:
    """Return the memory of another process of this machine, to be read.

    Raises:
        OSError: it is not there, or may not be read.
        ValueError: a process of another machine has this number here.
    """
    path = Path(f"/proc/{process}/fd/{fd}")
    # To open a terminal or a pipe of a stranger has effects; what it is, its link says before.
    if not str(path.readlink()).startswith(f"/memfd:{NAME}"):
        raise ValueError(f"file {fd} of process {process} is not memory of a rank")
    own = os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(own)
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            raise ValueError(f"process {process} is not that of the rank")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch knows no memory that is only read
            memory = torch.frombuffer(mmap.mmap(own, size, prot=mmap.PROT_READ), dtype=torch.uint8)
    finally:
        os.close(own)
    if int(memory[:8].view(torch.int64)[0]) != token:
        raise ValueError(f"process {process} is not that of the rank")
    return memory
