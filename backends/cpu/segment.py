"""A run of kernel calls in this process, on the threads that torch uses too.

A driver, compiled once per process, walks a table of calls; so a segment costs compile time only
for its distinct kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

from irc.backends.cpu import openmp
from irc.backends.cpu.contents import Digest, Piece, digest_text
from irc.backends.cpu.driver import driver, worker
from irc.backends.cpu.emit import KernelInfo, emit, info_of
from irc.backends.cpu.entry import entry_function
from irc.backends.cpu.features import Features
from irc.backends.cpu.jit import compile_texts
from irc.backends.cpu.table import KernelCall, call_table
from irc.dialects.task import KernelOp
from irc.runtime.native.entry import Entry
from irc.runtime.native.pool import BESIDE, MOST
from irc.runtime.native.segment import Segment as NativeSegment

__all__ = ["KernelCall", "Segment", "compile_read", "compile_segment", "load_segment"]


class OpenMp:
    """The threads of the OpenMP runtime, and beside them some for a busy machine.

    In a child made by fork there is one.
    """

    def ready(self, threads: int) -> tuple[int, int]:
        """Return how many threads a call may use, and the pool of those for a busy machine."""
        return 1 if openmp.is_forked() else threads, BESIDE.address


class Segment(NativeSegment):
    """Compiled kernel calls; ``run`` makes all in order, on :data:`MOST` threads at most."""

    def __init__(
        self,
        infos: Sequence[KernelInfo],
        addresses: Sequence[int],
        calls: Sequence[KernelCall],
        num_threads: int,
    ) -> None:
        table = call_table(infos, calls)
        self._most = num_threads
        num_threads = min(num_threads, MOST)  # each has its box beside the OpenMP runtime, too
        several = table.parallel and num_threads > 1
        if several and not openmp.is_forked():
            BESIDE.want(num_threads, worker())
        super().__init__(table, addresses, driver(pool=several), OpenMp(), num_threads)

    def entry(self, table: int, slots: Sequence[int]) -> Entry:
        """Return the run on one base table as a builtin function, which costs little to call.

        Args:
            table: the address of the base table.
            slots: its words that the function's arguments are written to.
        """
        return self.bound(entry_function(), table, slots)

    def digest(self, pieces: Sequence[Piece]) -> Digest:
        """Return what tells whether memory still holds the same.

        Args:
            pieces: the memory, which the caller keeps.
        """
        text = digest_text(sum(size for _, size in pieces))
        segment = load_segment([text], [KernelCall(0, ((0, 0), (1, 0)))], self._most)
        return Digest(segment.run, pieces, segment.num_threads)


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


def compile_read(texts: Sequence[str]) -> None:
    """Compile kernel texts that were read from a file, where :func:`load_segment` finds them.

    Raises:
        IrcError: ``kernel-invalid`` for what no kernel of irc holds.
    """
    compile_texts(texts, guarded=True)


def load_segment(
    texts: Sequence[str],
    calls: Sequence[KernelCall],
    num_threads: int,
    features: Features | None = None,
) -> Segment:
    """Compile kernel texts, as :func:`emit` wrote them, and bind their calls."""
    infos = [info_of(text) for text in texts]
    return Segment(infos, compile_texts(texts, features), calls, num_threads)
