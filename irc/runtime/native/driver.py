"""The driver of plans as machine code: arrays in host memory, and no torch.

Code, weights, states and the memory that calls work in belong to the :class:`NativeDriver`. What it
makes of one choice of sizes is tables and shapes, so that a new size costs little and holds little.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

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
        user: whose steps it is set up for.
    """

    arena: Array
    table: Bases
    entry: Entry | None = None
    user: Steps | None = None


class Steps:
    """What a call with some sizes does.

    Args:
        program: for these sizes.
        segments: of the code, with its tables for them.
    """

    def __init__(self, program: native.Program, segments: list[Segment]) -> None:
        self.inputs = tuple(map(Argument.of, program.inputs))
        self.outputs = tuple(map(Argument.of, program.outputs))
        self.fresh = [(each.shape, dtype_of(each.dtype)) for each in program.fresh]
        self.arena_bytes = program.arena_bytes
        self.segments = segments
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


@dataclass(frozen=True)
class Bound:
    """A program bound to sizes; any thread may call it at any time.

    Attributes:
        driver: whose code and memory it works with.
        steps: what a call does.
    """

    driver: NativeDriver
    steps: Steps

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """What a call takes, in order."""
        return self.steps.inputs

    @property
    def outputs(self) -> tuple[Argument, ...]:
        """What a call gives, in order."""
        return self.steps.outputs

    def __call__(self, *inputs: Any) -> list[Array]:
        """Run once on numpy arrays, or what numpy reads through DLPack, in order.

        Raises:
            IrcError: ``input-mismatch``; ``index-out-of-range`` where an input is an index.
        """
        steps = self.steps
        pairs = zip(steps.inputs, inputs, strict=True)
        return self.driver.run(steps, [wanted.array(value) for wanted, value in pairs])


class NativeDriver:
    """Binds programs to machine code: loaded once, with their weights and the memory of calls.

    Args:
        native_folder: the verified folder.
        code: which of its codes.
        threads: that a call uses.
        mapped: leave weights in the file.
    """

    def __init__(self, native_folder: Native, code: Code, threads: int, *, mapped: bool) -> None:
        program = native_folder.program
        self._threads = threads
        library = load_code(native_folder, code)
        POOL.want(threads, WORKER(("irc_worker", library)))
        self._function = _entry_function(library)
        listed = (ctypes.c_void_p * program.kernels).in_dll(library, "irc_kernels")
        self._kernels = [address or 0 for address in listed]
        self._driver = DRIVER(("irc_driver", library))
        self._workspaces: list[Workspaces] = [[] for _ in code.tables]
        weights = load_weights(native_folder, mapped=mapped, threads=threads)
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

    def bind(self, program: native.Program, /, code: Code | None = None) -> Bound:
        """Return what runs a program for its sizes.

        Args:
            program: of the folder, for some sizes.
            code: with tables for them; by default the only one of the program.
        """
        tables = (code or program.codes[0]).tables
        segments = [
            Segment(table, self._kernels, self._driver, POOL, self._threads, workspaces)
            for table, workspaces in zip(tables, self._workspaces, strict=True)
        ]
        return Bound(self, Steps(program, segments))

    def run(self, steps: Steps, inputs: list[Array]) -> list[Array]:
        """Run once, on inputs as the steps take them; any thread may call it at any time."""
        if POOL.num_threads < POOL.wanted:  # in a child made by fork
            POOL.start()
        if self._turn is None:
            return self._run(steps, inputs)
        with self._turn:
            return self._run(steps, inputs)

    def _run(self, steps: Steps, inputs: list[Array]) -> list[Array]:
        try:
            lease = self._leases.pop()
        except IndexError:
            lease = Lease(zero_bytes(0), (ctypes.c_int64 * len(self._bases))(*self._bases))
        if lease.user is not steps:
            self._set_up(lease, steps)
        fresh = [empty(shape, dtype) for shape, dtype in steps.fresh]
        addresses = [address_of(array) for array in (*inputs, *fresh)]
        if lease.entry is not None:
            try:
                lease.entry.run(*addresses)
            except SystemError:
                raise lease.entry.outside() from None
        else:
            table = lease.table
            for slot, address in zip(self._slots, addresses, strict=True):
                table[slot] = address
            for step in steps.steps:
                step(table)
            for base in self._seeds:
                ctypes.c_int64.from_address(table[base]).value += 1
        self._leases.append(lease)
        if steps.shown is None:
            return fresh
        return [shown(fresh[place], view) for place, view in steps.shown]

    def _set_up(self, lease: Lease, steps: Steps) -> None:
        if len(lease.arena) < steps.arena_bytes or lease.user is None:
            lease.arena = zero_bytes(steps.arena_bytes)
            lease.table[0] = address_of(lease.arena)
        if lease.entry is not None:
            steps.segments[0].turn(lease.entry)
        elif self._is_short:
            address = ctypes.addressof(lease.table)
            lease.entry = steps.segments[0].bound(self._function, address, self._slots)
        lease.user = steps


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
