"""A run of kernel calls made by one native call.

The table of calls is read-only; scratch memory is leased per run: segments may be run by several
Python threads at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from irc.errors import IrcError
from irc.plan.native import PAGE, Table
from irc.runtime.index_bounds import index_outside
from irc.runtime.native.entry import Entry

Driver: TypeAlias = Callable[[int, int, int, int, object, int, int], None]
"""Takes the words and their number of calls, the base table, threads, scratch memory and the bytes
of one thread in it, and the pool of threads."""
DRIVER: Any = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p,
    ctypes.c_int64, ctypes.c_void_p,
)  # fmt: skip


class Crew(Protocol):
    """The threads that kernels run on."""

    def ready(self, threads: int) -> tuple[int, int]:
        """Return how many of ``threads`` a call may use now, and the address of their pool."""
        ...


class Workspace:
    """Memory of one run: scratch of all threads, and the words that kernels set on a fault.

    Args:
        num_bytes: how much there is for scratch memory.

    Attributes:
        memory: the scratch memory.
        faults: words in it, as the segment has them that uses it.
        user: that segment.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._raw = ctypes.create_string_buffer(num_bytes + 2 * PAGE)
        self._start = -ctypes.addressof(self._raw) % PAGE + PAGE
        self.memory = (ctypes.c_char * num_bytes).from_buffer(self._raw, self._start)
        self.faults: Sequence[ctypes.c_int32] = ()
        self.user: object = None

    def lend(self, user: object, faults: Sequence[int]) -> None:
        """Give the memory to a segment.

        Args:
            user: the segment.
            faults: where its words are, in bytes from the scratch memory; they become 0.
        """
        if self.user is not user:
            places = (self._start + place for place in faults)
            self.faults = [ctypes.c_int32.from_buffer(self._raw, place) for place in places]
            for word in self.faults:
                word.value = 0
            self.user = user


Workspaces: TypeAlias = list[Workspace]
"""Those that nobody uses, of segments that share them: one segment at all of its sizes."""


class Segment:
    """Compiled kernel calls; :meth:`run` makes all of them in order.

    Args:
        table: the calls.
        addresses: of the kernels.
        driver: walks over the calls.
        crew: the threads.
        num_threads: how many of them at most.
        workspaces: scratch memory, which other segments may share; by default its own.
    """

    def __init__(
        self,
        table: Table,
        addresses: Sequence[int],
        driver: Driver,
        crew: Crew,
        num_threads: int,
        workspaces: Workspaces | None = None,
    ) -> None:
        self.num_threads = num_threads if table.parallel else 1
        self.stride = table.stride
        words = table.linked(addresses)
        self._table = (ctypes.c_int64 * (len(words) + 1))(*words)
        self._count, self._words = table.count, ctypes.addressof(self._table)
        self._free: Workspaces = [] if workspaces is None else workspaces
        self._checked = table.checked
        shares = range(self.num_threads if table.checked else 0)
        self._faults = [share * self.stride - table.fault for share in shares]
        self._driver, self._crew = driver, crew

    def run(self, table: int) -> None:
        """Run all calls; ``table`` is the address of the array of base pointers."""
        free = self._free
        # pop and append are atomic: two threads never hold one workspace.
        try:
            workspace = free.pop()
        except IndexError:
            workspace = self._workspace()
        if workspace.user is not self:
            free.append(workspace)
            workspace = self._workspace()
        threads, pool = self._crew.ready(self.num_threads)
        self._driver(self._words, self._count, table, threads, workspace.memory, self.stride, pool)
        faulty = [word for word in workspace.faults if word.value]
        for word in faulty:
            word.value = 0
        free.append(workspace)
        if faulty:
            raise self._outside()

    def _outside(self) -> IrcError:
        """Return the error of a run in which a kernel was given an index outside its tensor."""
        return index_outside(
            f"an index lies outside the tensor that it selects from, in {', '.join(self._checked)}"
        )

    def bound(self, function: int, table: int, slots: Sequence[int]) -> Entry:
        """Return the run on one base table as a builtin function, which costs little to call.

        Args:
            function: the address of the builtin function.
            table: the address of the base table.
            slots: its words that the function's arguments are written to.
        """
        entry = Entry(function, table, slots)
        self.turn(entry)
        return entry

    def turn(self, entry: Entry) -> None:
        """Let an entry run this segment: a new one, or that of another, of other sizes."""
        if entry.workspace is not None:
            self._free.append(entry.workspace)
        workspace = self._workspace()
        entry.turn(
            self._driver,
            calls=(self._words, self._count),
            threads=lambda: self._crew.ready(self.num_threads),
            scratch=(ctypes.addressof(workspace.memory), self.stride),
            fault=self._faults[0] if self._faults else 0,
            outside=self._outside,
            keep=(self._table, workspace),
        )
        entry.workspace = workspace

    def run_pointers(self, pointers: Sequence[int]) -> None:
        """Run all calls on base pointers given as integers."""
        array = (ctypes.c_void_p * len(pointers))(*pointers)
        self.run(ctypes.addressof(array))

    def _workspace(self) -> Workspace:
        """Return memory for a run, that of another run where it is large enough."""
        num_bytes = self.stride * self.num_threads
        try:
            workspace = self._free.pop()
        except IndexError:
            workspace = Workspace(num_bytes)
        if workspace.num_bytes < num_bytes:
            workspace = Workspace(num_bytes)
        workspace.lend(self, self._faults)
        return workspace
