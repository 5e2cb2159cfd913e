"""A native program bound to sizes, and what its calls share whatever they are.

Code, weights, states and the memory that calls work in belong to the :class:`Machine`; a
:class:`Bound` program is tables and shapes, so that a new size costs little and holds little.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from irc.plan import native
from irc.plan.native import Code
from irc.runtime.native.arguments import Argument, shown
from irc.runtime.native.dtypes import dtype_of
from irc.runtime.native.entry import API, Entry, api_addresses
from irc.runtime.native.folder import Native, load_code, load_weights
from irc.runtime.native.library import library_step
from irc.runtime.native.memory import Array, Bases, address_of, empty, raw_view, zero_bytes
from irc.runtime.native.pool import POOL, WORKER
from irc.runtime.native.segment import DRIVER, Segment, Workspaces

Step: TypeAlias = Callable[[Bases], object]
"""Runs one step, given the addresses of the bases."""


@dataclass
class Lease:
    """What one call works with, and no other at the same time.

    Attributes:
        arena: as large as the largest of the programs that had it.
        table: the base table.
        entry: runs the one segment of a short program.
        user: the program that it is set up for.
    """

    arena: Array
    table: Bases
    entry: Entry | None = None
    user: Bound | None = None


class Bound:
    """A program for one choice of sizes.

    Args:
        program: for them.
        code: the one that runs, with its tables for them.
        machine: runs it.
    """

    def __init__(self, program: native.Program, code: Code, machine: Machine) -> None:
        self.inputs = tuple(map(Argument.of, program.inputs))
        self.outputs = tuple(map(Argument.of, program.outputs))
        self.fresh = [(each.shape, dtype_of(each.dtype)) for each in program.fresh]
        self.arena_bytes = program.arena_bytes
        self.segments = machine.segments(code)
        self.steps = [self._step(step) for step in program.steps]
        self.shown = _shown(program)

    def _step(self, step: native.NativeStep) -> Step:
        match step:
            case native.Segment(table=number):
                run = self.segments[number].run
                return lambda bases: run(ctypes.addressof(bases))
            case native.Copy(source=source, target=target):
                return lambda bases: np.copyto(
                    raw_view(bases[target.base], target), raw_view(bases[source.base], source)
                )
            case native.Library():
                return library_step(step)


class Machine:
    """The code and the weights of a program, loaded once, and the memory of its calls.

    Args:
        found: the verified folder.
        code: which of its codes.
        threads: that a call uses.
        mapped: leave weights in the file.
    """

    def __init__(self, found: Native, code: Code, threads: int, *, mapped: bool) -> None:
        program = found.program
        self._threads = threads
        library = load_code(found, code)
        POOL.want(threads, WORKER(("irc_worker", library)))
        self._function = _entry_function(library)
        listed = (ctypes.c_void_p * program.kernels).in_dll(library, "irc_kernels")
        self._kernels = [address or 0 for address in listed]
        self._driver = DRIVER(("irc_driver", library))
        self._workspaces: list[Workspaces] = [[] for _ in code.tables]
        weights = load_weights(found, mapped=mapped, threads=threads)
        self._bases = [0] * program.num_bases
        self._keep = [weights, *_point(self._bases, program, weights)]
        self._slots = [port.view.base for port in program.inputs]
        self._slots += [each.base for each in program.fresh]
        self._seeds = program.seeds
        has_state = any(each.written for each in program.stored)
        self._turn = threading.Lock() if has_state else None
        kinds = [type(step) for step in program.steps]
        self._is_short = kinds == [native.Segment] and not has_state
        self._leases: deque[Lease] = deque()

    def segments(self, code: Code) -> list[Segment]:
        """Return the segments of a code, for the sizes that its tables are for."""
        return [
            Segment(table, self._kernels, self._driver, POOL, self._threads, workspaces)
            for table, workspaces in zip(code.tables, self._workspaces, strict=True)
        ]

    def run(self, bound: Bound, given: list[Array]) -> list[Array]:
        """Run a program once, on inputs as it takes them; any thread may call it at any time."""
        if POOL.num_threads < POOL.wanted:  # in a child made by fork
            POOL.start()
        if self._turn is None:
            return self._run(bound, given)
        with self._turn:
            return self._run(bound, given)

    def _run(self, bound: Bound, given: list[Array]) -> list[Array]:
        try:
            lease = self._leases.pop()
        except IndexError:
            lease = Lease(zero_bytes(0), (ctypes.c_int64 * len(self._bases))(*self._bases))
        if lease.user is not bound:
            self._set_up(lease, bound)
        fresh = [empty(shape, dtype) for shape, dtype in bound.fresh]
        addresses = [address_of(array) for array in (*given, *fresh)]
        if lease.entry is not None:
            lease.entry.run(*addresses)
        else:
            table = lease.table
            for slot, address in zip(self._slots, addresses, strict=True):
                table[slot] = address
            for step in bound.steps:
                step(table)
            for base in self._seeds:
                ctypes.c_int64.from_address(table[base]).value += 1
        self._leases.append(lease)
        if bound.shown is None:
            return fresh
        return [shown(fresh[place], view) for place, view in bound.shown]

    def _set_up(self, lease: Lease, bound: Bound) -> None:
        if len(lease.arena) < bound.arena_bytes or lease.user is None:
            lease.arena = zero_bytes(bound.arena_bytes)
            lease.table[0] = address_of(lease.arena)
        if lease.entry is not None:
            bound.segments[0].turn(lease.entry)
        elif self._is_short:
            address = ctypes.addressof(lease.table)
            lease.entry = bound.segments[0].bound(self._function, address, self._slots)
        lease.user = bound


def _entry_function(library: ctypes.CDLL) -> int:
    """Tell the code where Python's functions are, and return the one that Python calls."""
    table = (ctypes.c_void_p * len(API)).in_dll(library, "irc_api")
    table[:] = api_addresses()
    return ctypes.cast(library.irc_entry, ctypes.c_void_p).value or 0


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
