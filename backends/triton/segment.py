"""A segment of a plan as launches of Triton kernels.

A kernel is compiled for the device at hand when its segment is loaded, once per process for equal
sources; Triton keeps binaries on disk. In Triton's interpreter the same files run on the host.
"""

from __future__ import annotations

import ctypes
import hashlib
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from irc.backends.triton.build import (
    ALIGNMENT,
    Variant,
    compile_module,
    import_kernel,
    is_interpreted,
    variant_of,
)
from irc.runtime.address_table import AddressTables
from irc.runtime.graph import GraphedSegment
from irc.runtime.segments import Segment, SegmentCall


class Launcher(Protocol):
    """A kernel that is ready to run."""

    def __call__(self, pointers: Sequence[int], sizes: Sequence[int] = ()) -> None:
        """Launch it on buffers, inputs then outputs, given as addresses, and on its sizes."""
        ...


class TritonSegment:
    """Launches in order, on torch's current stream."""

    def __init__(self, launchers: Sequence[Launcher], calls: Sequence[SegmentCall]) -> None:
        self._calls = [(launchers[call.kernel], call.args, call.sizes) for call in calls]
        self.num_bases = 1 + max((base for call in calls for base, _ in call.args), default=0)

    def run(self, table: int) -> None:
        """Launch all kernels; ``table`` is the address of the array of base pointers."""
        bases = (ctypes.c_int64 * self.num_bases).from_address(table)
        for launch, args, sizes in self._calls:
            launch([bases[base] + offset for base, offset in args], sizes)


class DeviceKernel:
    """A kernel compiled for the current GPU, again for what a launch has otherwise than others.

    Pointers that are not aligned as a plan's are get code without wide loads. A kernel that takes
    sizes has code for those that are multiples of 16, if its addresses hold products of them, and
    code for positions of 64 bits: as many compilations, however many sizes there are.

    Args:
        module: the kernel's file, imported.
        arch: compute capability, 90 for 9.0.
    """

    def __init__(self, module: Any, arch: int) -> None:
        self.module, self.arch = module, arch
        self.takes_sizes = hasattr(module, "grid")
        self._compiled: dict[Variant, Any] = {}
        self._kernel(Variant())
        head = getattr(module, "HEAD", None)
        self._tables = None if head is None else AddressTables(head, "cuda")

    def _kernel(self, variant: Variant) -> Any:
        if variant not in self._compiled:
            self._compiled[variant] = compile_module(self.module, self.arch, variant)
        return self._compiled[variant]

    def __call__(self, pointers: Sequence[int], sizes: Sequence[int] = ()) -> None:
        """Launch it."""
        blocks = (self.module.grid(*sizes) if self.takes_sizes else self.module.GRID)[0]
        if not blocks:
            return
        alignment = 1 if any(pointer % ALIGNMENT for pointer in pointers) else ALIGNMENT
        if self.takes_sizes:
            kernel = self._kernel(variant_of(self.module, sizes, alignment))
            kernel[blocks, 1, 1](*pointers, *sizes, None)
        elif self._tables is None:
            self._kernel(Variant(alignment))[blocks, 1, 1](*pointers)
        else:
            table = self._tables.at(pointers)
            self._kernel(Variant(alignment))[blocks, 1, 1](table, alignment)


class InterpretedKernel:
    """A kernel that runs in Triton's interpreter, on host memory."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, pointers: Sequence[int], sizes: Sequence[int] = ()) -> None:
        """Run all programs of the grid, one after the other."""
        module = self.module
        rows = module.described(*sizes) if hasattr(module, "described") else module.BUFFERS
        pairs = zip(pointers, rows, strict=True)
        buffers = [_tensor(pointer, size, dtype) for pointer, (_, size, dtype, _) in pairs]
        module.launch(*buffers, *sizes)


def _tensor(pointer: int, size: int, dtype: Any) -> Any:
    import torch

    if not size:
        return torch.empty(0, dtype=dtype)
    memory = (ctypes.c_uint8 * (size * dtype.itemsize)).from_address(pointer)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)


def load_segment(
    texts: Sequence[str], calls: Sequence[SegmentCall], num_threads: int = 1
) -> Segment:
    """Compile kernel files and bind their calls.

    Args:
        texts: of all kernels of the plan; those that ``calls`` use are compiled.
        calls: the launches.
        num_threads: not used; a GPU has its own.

    Raises:
        IrcError: ``compiler-missing`` without Triton.
    """
    used = {call.kernel for call in calls}
    launchers = [launcher(text) if i in used else _unused for i, text in enumerate(texts)]
    segment = TritonSegment(launchers, calls)
    return segment if is_interpreted() else GraphedSegment(segment, segment.num_bases)


def launcher(text: str) -> Launcher:
    """Compile a kernel file for the GPU at hand, or import it into Triton's interpreter."""
    return _launcher(text, None if is_interpreted() else _device())


def _unused(pointers: Sequence[int], sizes: Sequence[int] = ()) -> None:
    raise AssertionError("a kernel that no call names was launched")


def _device() -> tuple[int, int]:
    """Return the compute capability of the current device, and its number: it loads the code."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor, torch.cuda.current_device()


@cache
def _launcher(text: str, device: tuple[int, int] | None) -> Launcher:
    # Triton reads the source of a function from its file.
    path = Path(_folder().name) / f"k{hashlib.sha256(text.encode()).hexdigest()[:24]}.py"
    path.write_text(text, encoding="utf-8")
    module = import_kernel(path)
    return InterpretedKernel(module) if device is None else DeviceKernel(module, device[0])


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="irc-triton-")
