"""A segment of a plan as launches of CUDA kernels, by the driver.

Files are compiled when a segment is loaded, once per process for equal sources; machine code is
kept on disk. A launch writes addresses into arguments that were laid out before, so that it is one
call of the driver; a tensor map is made again where the address of its tensor is another.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from irc.backends.cuda import machine
from irc.backends.cuda.launch_table import (
    ADDRESSES,
    ALIGNMENT,
    PARTIAL,
    Launch,
    LaunchTable,
    read_table,
)
from irc.backends.cuda.libcuda import MAP_ALIGNMENT, MAP_BYTES, Handle
from irc.backends.cuda.machine import Machine
from irc.errors import IrcError
from irc.runtime.segments import Segment, SegmentCall


class LoadedKernel:
    """The functions of a file on one device.

    Args:
        text: of the file.
        table: how they are launched; of some example, where they take sizes.
        image: machine code.
        on: the machine.
    """

    def __init__(self, text: str, table: LaunchTable, image: bytes, on: Machine) -> None:
        self.text, self.table = text, table
        self.functions: list[Handle] = []
        if table.launches:
            module = on.driver.load_module(image)
            self.functions = [
                on.driver.function(module, launch.kernel, launch.shared)
                for launch in table.launches
            ]

    def table_at(self, sizes: Sequence[int]) -> LaunchTable:
        """Return how they are launched for some sizes."""
        return read_table(self.text, sizes) if sizes else self.table


class BoundCall:
    """One call of a kernel, its arguments laid out.

    Args:
        kernel: the kernel.
        call: its buffers, and its sizes.
        partial: memory of the launch's own, where it wants some.
        on: the machine.
    """

    def __init__(self, kernel: LoadedKernel, call: SegmentCall, partial: int, on: Machine) -> None:
        table = kernel.table_at(call.sizes)
        self.table, self.args, self._driver = table, call.args, on.driver
        count = len(table.buffers)
        # The buffers, the partial sums, the table of addresses, the sizes; the maps apart, aligned
        # for the driver.
        self._words = (ctypes.c_uint64 * (count + 2 + len(call.sizes)))()
        self._words[count] = partial
        self._words[count + 2 :] = call.sizes
        self._tables = None
        if table.head:
            from irc.runtime.address_table import AddressTables

            self._tables = AddressTables(table.head, on.device)
        self._room = (ctypes.c_uint8 * (MAP_ALIGNMENT + MAP_BYTES * len(table.maps)))()
        start = -(-ctypes.addressof(self._room) // MAP_ALIGNMENT) * MAP_ALIGNMENT
        self._maps = [start + MAP_BYTES * i for i in range(len(table.maps))]
        self._seen = [0] * len(table.maps)
        self._launches = [
            (function, launch, self._laid_out(launch))
            for function, launch in zip(kernel.functions, table.launches, strict=True)
            if launch.blocks
        ]

    def _laid_out(self, launch: Launch) -> Any:
        """Return the addresses of the arguments of a launch."""
        words, count = ctypes.addressof(self._words), len(self.table.buffers)
        places: dict[int | str, int] = {i: words + 8 * i for i in range(count)}
        places[PARTIAL], places[ADDRESSES] = words + 8 * count, words + 8 * (count + 1)
        for i in range(len(self.table.symbols)):
            # A kernel with positions of 32 bits reads the lower half.
            places[f"N{i}"] = words + 8 * (count + 2 + i)
        names = [each.name for each in self.table.maps]
        places |= dict(zip(names, self._maps, strict=True))
        addresses = [places[argument] for argument in launch.arguments]
        return (ctypes.c_uint64 * len(addresses))(*addresses)

    def __call__(self, bases: Any, stream: Handle, on: Machine) -> None:
        """Launch on the buffers of a base table."""
        if not self._launches:
            return
        pointers = [bases[base] + offset for base, offset in self.args]
        if self._tables is not None:  # such a kernel takes buffers that begin anywhere
            self._words[len(pointers) + 1] = self._tables.at(pointers)
            self._start(stream)
            return
        staged = _Staged(self.table, pointers, stream, on)
        for i, pointer in enumerate(pointers):
            self._words[i] = pointer
        for number, each in enumerate(self.table.maps):
            address = pointers[each.buffer] + each.offset
            if self._seen[number] != address:
                self._driver.encode(self._maps[number], each, address)
                self._seen[number] = address
        self._start(stream)
        staged.put_back()

    def _start(self, stream: Handle) -> None:
        for function, launch, arguments in self._launches:
            self._driver.launch(
                function, launch.blocks, launch.threads, launch.shared, stream,
                ctypes.addressof(arguments),
            )  # fmt: skip


class _Staged:
    """Copies of the buffers that are not aligned as kernels need; written ones are put back.

    A plan's own memory is aligned, but a caller's tensor may begin anywhere. A result is copied
    too, since a kernel may write to a part of it. Replaces their pointers.
    """

    def __init__(
        self, table: LaunchTable, pointers: list[int], stream: Handle, on: Machine
    ) -> None:
        self._copies: list[tuple[int, int, int]] = []
        self._stream, self._driver = stream, on.driver
        self._held: list[Any] = []
        for i, pointer in enumerate(pointers):
            if not pointer % ALIGNMENT or not table.bytes_of(i):
                continue
            memory = _memory(table.bytes_of(i), on)
            self._held.append(memory)
            pointers[i] = memory.data_ptr()
            self._driver.copy(pointers[i], pointer, table.bytes_of(i), stream)
            if i >= table.num_inputs:
                self._copies.append((pointer, pointers[i], table.bytes_of(i)))

    def put_back(self) -> None:
        """Copy what was written to where it belongs."""
        for to, source, num_bytes in self._copies:
            self._driver.copy(to, source, num_bytes, self._stream)


class CudaSegment:
    """Launches in order, on torch's current stream.

    Args:
        kernels: by the index that calls use.
        calls: the launches.
        on: the machine.
    """

    def __init__(
        self, kernels: Sequence[LoadedKernel], calls: Sequence[SegmentCall], on: Machine
    ) -> None:
        most = max((kernels[call.kernel].table.partial_bytes for call in calls), default=0)
        # One for all: launches of a segment come after one another.
        self._partial = _memory(most, on) if most else None
        partial = 0 if self._partial is None else self._partial.data_ptr()
        self._calls = [BoundCall(_wide(kernels[c.kernel], c, on), c, partial, on) for c in calls]
        self.num_bases = 1 + max((base for call in calls for base, _ in call.args), default=0)
        self._on = on
        # Arguments are laid out once: two threads must not write them together.
        self._turn = threading.Lock()

    def run(self, table: int) -> None:
        """Launch all kernels; ``table`` is the address of the array of base pointers."""
        bases = (ctypes.c_int64 * self.num_bases).from_address(table)
        self._on.place()
        stream = self._on.stream()
        with self._turn:
            for call in self._calls:
                call(bases, stream, self._on)


def _wide(kernel: LoadedKernel, call: SegmentCall, on: Machine) -> LoadedKernel:
    """Return a kernel with positions as wide as the sizes of a call need."""
    if not kernel.table_at(call.sizes).is_wide:
        return kernel
    (wide,) = load_kernels([f"#define IRC_WIDE\n{kernel.text}"], on)
    return wide


def _memory(num_bytes: int, on: Machine) -> Any:
    import torch

    return torch.empty(num_bytes, dtype=torch.uint8, device=on.device)


def load_segment(
    texts: Sequence[str], calls: Sequence[SegmentCall], num_threads: int = 1
) -> Segment:
    """Compile kernel files and bind their calls.

    Args:
        texts: of all kernels of the plan.
        calls: the launches.
        num_threads: not used; a GPU has its own.

    Raises:
        IrcError: ``compiler-missing``, ``device-missing``, ``device-unfit``.
    """
    on = machine.current()
    segment = CudaSegment(load_kernels(texts, on), calls, on)
    if on.device == "cpu":
        return segment
    from irc.runtime.graph import GraphedSegment

    return GraphedSegment(segment, segment.num_bases)


def load(path: str | Path) -> Callable[..., None]:
    """Load a kernel file for the GPU at hand; the result takes CUDA tensors, inputs then outputs.

    Behind them it takes the kernel's sizes, if it has some.

    Raises:
        IrcError: ``file-missing``, and as :func:`load_segment`.
    """
    source = Path(path)
    if not source.is_file():
        raise IrcError("file-missing", f"no kernel file {path}")
    on = machine.current()
    (kernel,) = load_kernels([source.read_text(encoding="utf-8")], on)
    count = len(kernel.table.buffers)
    args = tuple((i, 0) for i in range(count))

    @cache
    def segment(sizes: tuple[int, ...]) -> CudaSegment:
        return CudaSegment([kernel], [SegmentCall(0, args, sizes)], on)

    def launch(*arguments: Any) -> None:
        """Start the kernel on the current stream; contiguous tensors of its device, and sizes."""
        pointers = (ctypes.c_int64 * count)(*[buffer.data_ptr() for buffer in arguments[:count]])
        segment(tuple(arguments[count:])).run(ctypes.addressof(pointers))

    return launch


_loaded: dict[tuple[Machine, int, str], LoadedKernel] = {}


def load_kernels(texts: Iterable[str], on: Machine) -> list[LoadedKernel]:
    """Return files as kernels of the device at hand; those not seen before are compiled together.

    Raises:
        IrcError: as :func:`load_segment`.
    """
    place, wanted = (on, on.place()), list(texts)
    fresh = [text for text in dict.fromkeys(wanted) if (*place, text) not in _loaded]
    if fresh:
        tables = [read_table(text) for text in fresh]
        arch = on.arch()
        for table in tables:
            _check_fits(table, arch)
        for text, table, image in zip(fresh, tables, on.compile(fresh, arch), strict=True):
            _loaded[*place, text] = LoadedKernel(text, table, image, on)
    return [_loaded[*place, text] for text in wanted]


def _check_fits(table: LaunchTable, arch: int) -> None:
    if arch >= 80 and table.arch in (0, arch):
        return
    target = f"sm_{table.arch} alone" if table.arch else "sm_80 and later"
    raise IrcError(
        "device-unfit",
        f"a kernel of the plan is for {target}, and the GPU here is sm_{arch}",
        because="it uses instructions that this one does not have",
        help="compile it where it is to run: irc.compile takes the target of the GPU at hand",
    )
