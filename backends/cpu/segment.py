"""A run of kernel calls made by one native call.

A driver, compiled once per process, walks a table of calls; so a segment costs compile time only
for its distinct kernels. The table is read-only; scratch memory is leased per run: segments may be
run by several Python threads at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from irc.backends.cpu import openmp
from irc.backends.cpu.driver import driver
from irc.backends.cpu.emit import KernelInfo, emit, info_of
from irc.backends.cpu.entry import Entry
from irc.backends.cpu.features import Features
from irc.backends.cpu.jit import compile_texts
from irc.backends.cpu.loops.steps import FAULT
from irc.backends.cpu.loops.units import MAX_ARGS
from irc.dialects.size import value_of
from irc.dialects.task import KernelOp
from irc.errors import InternalError, IrcError

PAGE = 4096
HEADER = 8
"""Words of a call before its arguments."""


@dataclass(frozen=True)
class KernelCall:
    """One launch: the kernel's number and, per argument, its base's number and a byte offset.

    ``sizes`` are the values of :attr:`KernelInfo.sizes`, in that order.
    """

    kernel: int
    args: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Workspace:
    """Memory of one run: scratch of all threads, and the words that kernels set on a fault."""

    memory: ctypes.Array[ctypes.c_char]
    faults: Sequence[ctypes.c_int32]


class Segment:
    """Compiled kernel calls; :meth:`run` makes all of them in order."""

    def __init__(
        self,
        infos: Sequence[KernelInfo],
        addresses: Sequence[int],
        calls: Sequence[KernelCall],
        num_threads: int,
    ) -> None:
        used = [infos[call.kernel].bound(call.sizes) for call in calls]
        self.num_threads = num_threads if any(info.parallel for info in used) else 1
        self.stride = _round_up(max((value_of(i.scratch_bytes, {}) for i in used), default=0))
        if self.stride or any(info.checks for info in used):
            self.stride += 128  # threads' scratch must not fall on the same cache sets
        words: list[int] = []
        later = _next_weights(infos, calls)
        length = sum(HEADER + 2 * len(call.args) for call in calls)
        values = [value for call in calls for value in call.sizes]
        for call, weight, info in zip(calls, later, used, strict=True):
            if len(call.args) != info.num_args:
                raise InternalError(
                    f"kernel {info.name} takes {info.num_args} buffers, not {len(call.args)}"
                )
            words += [addresses[call.kernel], len(call.args), int(info.parallel), *weight]
            words += [int(info.checks), length]
            words += [word for arg in call.args for word in arg]
            length += len(call.sizes)
        words += values
        self._table = (ctypes.c_int64 * (len(words) + 1))(*words)
        self._most = max((len(call.args) for call in calls), default=0)
        self._count, self._words = len(calls), ctypes.addressof(self._table)
        self._workspaces: list[_Workspace] = []
        self._checked = [infos[call.kernel].name for call in calls if infos[call.kernel].checks]
        self._driver = driver(pool=self.num_threads > 1)
        if self._most > MAX_ARGS:
            raise InternalError(f"a kernel of {self._most} buffers; at most {MAX_ARGS} are passed")

    def run(self, table: int) -> None:
        """Run all calls; ``table`` is the address of the array of base pointers."""
        workspaces = self._workspaces
        # pop and append are atomic: two threads never hold one workspace.
        try:
            workspace = workspaces.pop()
        except IndexError:
            workspace = self._allocate()
        threads = 1 if openmp.is_forked() else self.num_threads
        self._driver(self._words, self._count, table, threads, workspace.memory, self.stride)
        faulty = [word for word in workspace.faults if word.value]
        for word in faulty:
            word.value = 0
        workspaces.append(workspace)
        if faulty:
            raise _outside(self._checked)

    def entry(self, table: int, slots: Sequence[int]) -> Entry | None:
        """Return the run on one base table as a builtin function, which costs little to call.

        Args:
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
            self._driver,
            calls=(self._words, self._count),
            threads=self.num_threads,
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
        words = [start - FAULT + thread * self.stride for thread in threads]
        return _Workspace(memory, [ctypes.c_int32.from_buffer(raw, word) for word in words])


def _next_weights(
    infos: Sequence[KernelInfo], calls: Sequence[KernelCall]
) -> list[tuple[int, int, int]]:
    """Return for each call the weight that a later one streams: base, offset and bytes."""
    found: list[tuple[int, int, int]] = []
    following = (0, 0, 0)
    for call in reversed(calls):
        found.append(following)
        info = infos[call.kernel]
        if info.weight >= 0:
            following = (*call.args[info.weight], info.weight_bytes)
    return found[::-1]


def _outside(names: Sequence[str]) -> IrcError:
    return IrcError(
        "index-out-of-range",
        f"an index lies outside the tensor that it selects from, in {', '.join(names)}",
        because="such an element does not exist; torch refuses it too",
        help="check token ids, labels and positions against the sizes of their tables",
    )


def _round_up(size: int) -> int:
    return -(-size // PAGE) * PAGE


def compile_segment(
    kernels: Sequence[KernelOp],
    calls: Sequence[KernelCall],
    num_threads: int,
    features: Features | None = None,
) -> Segment:
    """Write and compile kernels, and bind their calls."""
    return load_segment(
        [emit(kernel, features) for kernel in kernels], calls, num_threads, features
    )


def load_segment(
    texts: Sequence[str],
    calls: Sequence[KernelCall],
    num_threads: int,
    features: Features | None = None,
) -> Segment:
    """Compile kernel texts, as :func:`emit` wrote them, and bind their calls."""
    infos = [info_of(text) for text in texts]
    return Segment(infos, compile_texts(texts, features), calls, num_threads)
