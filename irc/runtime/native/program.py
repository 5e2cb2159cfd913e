"""A native program in this process: numpy arrays in, numpy arrays out.

Calls may come from several threads at once: each leases an arena and a base table of its own, and
the threads of kernels go from one call to the other.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from irc.plan import native
from irc.plan.native import Code
from irc.runtime.native.arguments import Argument, in_order, shown
from irc.runtime.native.dtypes import dtype_of
from irc.runtime.native.entry import API, Entry, api_addresses
from irc.runtime.native.folder import Native, choose, load_code, load_weights, open_native
from irc.runtime.native.library import check_torch, library_step
from irc.runtime.native.memory import Array, Bases, address_of, empty, raw_view, zero_bytes
from irc.runtime.native.pool import POOL, WORKER
from irc.runtime.native.processor import default_threads
from irc.runtime.native.segment import DRIVER, Segment

Step: TypeAlias = Callable[[Bases], object]
"""Runs one step, given the addresses of the bases."""


@dataclass
class _Lease:
    """What one call works with, and no other at the same time."""

    arena: Array
    table: Bases
    entry: Entry | None


def load(
    folder: str | os.PathLike[str],
    *,
    threads: int | None = None,
    code: str = "",
    hash: str = "",  # noqa: A002 - the word that the user reads
    mapped: bool = False,
) -> Program:
    """Load the native program of a plan.

    It is machine code: load only what you compiled, or what comes from somebody whom you trust as
    you trust the programs that you run. ``hash`` says which program it has to be.

    Args:
        folder: of a plan, or its native folder alone.
        threads: that a call uses; by default the cores that this process may use.
        code: the kind of processor whose code is taken; by default the best for the one at hand.
        hash: what ``irc compile`` printed, or its beginning; covers the weights too.
        mapped: leave weights in the file, from which all processes of a machine share them.

    Raises:
        IrcError: ``plan-missing``, ``native-missing``, ``plan-corrupt``, ``plan-version``,
            ``plan-hash-mismatch``, ``processor-unsupported``, ``package-missing``.
    """
    found = open_native(folder, hash)
    chosen = choose(found.program, code)
    check_torch(found.program.library)
    return Program(found, chosen, default_threads() if threads is None else threads, mapped=mapped)


class Program:
    """A loaded program; :func:`load` makes one.

    Args:
        found: the verified folder.
        code: which of its codes.
        threads: that a call uses.
        mapped: leave weights in the file.

    Attributes:
        inputs: what :meth:`run` takes, in order.
        outputs: what it gives.
        code: the name of the code that runs.
        threads: that a call uses.
        hash: names program and weights.
    """

    def __init__(self, found: Native, code: Code, threads: int, *, mapped: bool) -> None:
        program = found.program
        self.hash, self.code, self.threads = found.hash, code.name, threads
        library = load_code(found, code)
        POOL.want(threads, WORKER(("irc_worker", library)))
        self._function = _entry_function(library)
        self._segments = _segments(library, program, code, threads)
        self.inputs = tuple(map(Argument.of, program.inputs))
        self.outputs = tuple(map(Argument.of, program.outputs))
        self._fresh = [(each.shape, dtype_of(each.dtype)) for each in program.fresh]
        weights = load_weights(found, mapped=mapped, threads=threads)
        self._bases = [0] * program.num_bases
        self._keep = [weights, *_point(self._bases, program, weights)]
        self._arena_bytes, self._seeds = program.arena_bytes, program.seeds
        self._steps = [self._step(step) for step in program.steps]
        self._slots = [port.view.base for port in program.inputs]
        self._slots += [each.base for each in program.fresh]
        self._shown = _shown(program)
        has_state = any(each.written for each in program.stored)
        self._turn = threading.Lock() if has_state else None
        kinds = [type(step) for step in program.steps]
        self._is_short = kinds == [native.Segment] and not has_state
        self._leases: deque[_Lease] = deque()

    def run(self, inputs: Mapping[str, Any] | Sequence[Any]) -> list[Array]:
        """Run once; any thread may call it at any time.

        Args:
            inputs: by name, or in order: numpy arrays, or what numpy reads through DLPack.

        Returns:
            The outputs, in order, each in memory of its own.

        Raises:
            IrcError: ``input-mismatch``; ``index-out-of-range`` where an input is an index.
        """
        values = in_order(inputs, self.inputs)
        given = [wanted.array(value) for wanted, value in zip(self.inputs, values, strict=True)]
        if POOL.num_threads < POOL.wanted:  # in a child made by fork
            POOL.start()
        if self._turn is None:
            return self._run(given)
        with self._turn:
            return self._run(given)

    def _run(self, given: list[Array]) -> list[Array]:
        try:
            lease = self._leases.pop()
        except IndexError:
            lease = self._new_lease()
        fresh = [empty(shape, dtype) for shape, dtype in self._fresh]
        addresses = [address_of(array) for array in (*given, *fresh)]
        if lease.entry is not None:
            lease.entry.run(*addresses)
        else:
            table = lease.table
            for slot, address in zip(self._slots, addresses, strict=True):
                table[slot] = address
            for step in self._steps:
                step(table)
            for base in self._seeds:
                ctypes.c_int64.from_address(table[base]).value += 1
        self._leases.append(lease)
        if self._shown is None:
            return fresh
        return [shown(fresh[place], view) for place, view in self._shown]

    def _new_lease(self) -> _Lease:
        arena = zero_bytes(self._arena_bytes)
        table = (ctypes.c_int64 * len(self._bases))(*self._bases)
        table[0] = address_of(arena)
        entry = None
        if self._is_short:
            address = ctypes.addressof(table)
            entry = self._segments[0].bound(self._function, address, self._slots)
        return _Lease(arena, table, entry)

    def _step(self, step: native.NativeStep) -> Step:
        match step:
            case native.Segment(table=number):
                run = self._segments[number].run
                return lambda bases: run(ctypes.addressof(bases))
            case native.Copy(source=source, target=target):
                return lambda bases: np.copyto(
                    raw_view(bases[target.base], target), raw_view(bases[source.base], source)
                )
            case native.Library():
                return library_step(step)


def _entry_function(library: ctypes.CDLL) -> int:
    """Tell the code where Python's functions are, and return the one that Python calls."""
    table = (ctypes.c_void_p * len(API)).in_dll(library, "irc_api")
    table[:] = api_addresses()
    return ctypes.cast(library.irc_entry, ctypes.c_void_p).value or 0


def _segments(
    library: ctypes.CDLL, program: native.Program, code: Code, threads: int
) -> list[Segment]:
    listed = (ctypes.c_void_p * program.kernels).in_dll(library, "irc_kernels")
    addresses = [address or 0 for address in listed]
    driver = DRIVER(("irc_driver", library))
    return [Segment(table, addresses, driver, POOL, threads) for table in code.tables]


def _point(bases: list[int], program: native.Program, weights: Array) -> list[Array]:
    """Fill in where weights are; what calls change is copied, and returned to be kept."""
    own: list[Array] = []
    for each in program.stored:
        part = weights[each.start : each.start + each.bytes]
        if each.written:
            copy = zero_bytes(each.bytes)
            copy[:] = part
            own.append(copy)
            part = copy
        bases[each.base] = address_of(part)
    return own


def _shown(program: native.Program) -> list[tuple[int, native.View]] | None:
    """Return for each output of what it is part; None where each is all of what is allocated."""
    place = {each.base: number for number, each in enumerate(program.fresh)}
    views = [port.view for port in program.outputs]
    wholes = [(each.base, 0, each.dtype, each.shape, None) for each in program.fresh]
    if [(v.base, v.offset, v.dtype, v.shape, v.strides) for v in views] == wholes:
        return None
    return [(place[view.base], view) for view in views]
