"""A run of kernel calls made by one native call.

The table of calls is read-only; scratch memory is leased per run: segments may be run by several
Python threads at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from irc.errors import IrcError
from irc.plan.native import Table
from irc.runtime.native.entry import Entry

PAGE = 4096

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


@dataclass(frozen=True)
class _Workspace:
    """Memory of one run: scratch of all threads, and the words that kernels set on a fault."""

    memory: ctypes.Array[ctypes.c_char]
    faults: Sequence[ctypes.c_int32]


class Segment:
    """Compiled kernel calls; :meth:`run` makes all of them in order.

    Args:
        table: the calls.
        addresses: of the kernels.
        driver: walks over the calls.
        crew: the threads.
        num_threads: how many of them at most.
    """

    def __init__(
        self,
        table: Table,
        addresses: Sequence[int],
        driver: Driver,
        crew: Crew,
        num_threads: int,
    ) -> None:
        self.num_threads = num_threads if table.parallel else 1
        self.stride = table.stride
        words = table.linked(addresses)
        self._table = (ctypes.c_int64 * (len(words) + 1))(*words)
        self._count, self._words = table.count, ctypes.addressof(self._table)
        self._workspaces: list[_Workspace] = []
        self._checked, self._fault = table.checked, table.fault
        self._driver, self._crew = driver, crew

    def run(self, table: int) -> None:
        """Run all calls; ``table`` is the address of the array of base pointers."""
        workspaces = self._workspaces
        # pop and append are atomic: two threads never hold one workspace.
        try:
            workspace = workspaces.pop()
        except IndexError:
            workspace = self._allocate()
        threads, pool = self._crew.ready(self.num_threads)
        self._driver(self._words, self._count, table, threads, workspace.memory, self.stride, pool)
        faulty = [word for word in workspace.faults if word.value]
        for word in faulty:
            word.value = 0
        workspaces.append(workspace)
        if faulty:
            raise _outside(self._checked)

    def bound(self, function: int, table: int, slots: Sequence[int]) -> Entry | None:
        """Return the run on one base table as a builtin function, which costs little to call.

        Args:
            function: the address of the builtin function.
            table: the address of the base table.
            slots: its words that the function's arguments are written to.

        None where kernels check their indices: :meth:`run` is what reads the faults.
        """
        if self._checked:
            return None
        try:
            workspace = self._workspaces.pop()
        except IndexError:
            workspace = self._allocate()
        return Entry(
            function,
            self._driver,
            calls=(self._words, self._count),
            threads=lambda: self._crew.ready(self.num_threads),
            scratch=(ctypes.addressof(workspace.memory), self.stride),
            table=table,
            slots=slots,
            keep=(self._table, workspace),
        )

    def run_pointers(self, pointers: Sequence[int]) -> None:
        """Run all calls on base pointers given as integers."""
        array = (ctypes.c_void_p * len(pointers))(*pointers)
        self.run(ctypes.addressof(array))

    def _allocate(self) -> _Workspace:
        size = self.stride * self.num_threads
        raw = ctypes.create_string_buffer(size + 2 * PAGE)
        start = -ctypes.addressof(raw) % PAGE + PAGE
        memory = (ctypes.c_char * size).from_buffer(raw, start)
        threads = range(self.num_threads if self._checked else 0)
        words = [start - self._fault + thread * self.stride for thread in threads]
        return _Workspace(memory, [ctypes.c_int32.from_buffer(raw, word) for word in words])


def _outside(names: Sequence[str]) -> IrcError:
    return IrcError(
        "index-out-of-range",
        f"an index lies outside the tensor that it selects from, in {', '.join(names)}",
        because="such an element does not exist; torch refuses it too",
        help="check token ids, labels and positions against the sizes of their tables",
    )
