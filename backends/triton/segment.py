"""A segment of a plan as launches of Triton kernels.

A kernel is compiled for the device at hand when its segment is loaded, once per process for equal
sources; Triton keeps binaries on disk. In Triton's interpreter the same files run on the host.
"""

# pyright: basic
from __future__ import annotations

import ctypes
import hashlib
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from irc.backends.triton.build import compile_module, import_kernel, is_interpreted
from irc.runtime.address_table import AddressTables
from irc.runtime.graph import GraphedSegment
from irc.runtime.segments import Segment, SegmentCall

ALIGNMENT = 16
"""Bytes that wide and asynchronous loads need; buffers of a plan have it, a caller's may not."""


class Launcher(Protocol):
    """A kernel that is ready to run."""

    def __call__(self, pointers: Sequence[int]) -> None:
        """Launch it on buffers, inputs then outputs, given as addresses."""
        ...


class TritonSegment:
    """Launches in order, on torch's current stream."""

    def __init__(self, launchers: Sequence[Launcher], calls: Sequence[SegmentCall]) -> None:
        self._calls = [(launchers[call.kernel], call.args) for call in calls]
        self.num_bases = 1 + max((base for call in calls for base, _ in call.args), default=0)

    def run(self, table: int) -> None:
        """Launch all kernels; ``table`` is the address of the array of base pointers."""
        bases = (ctypes.c_int64 * self.num_bases).from_address(table)
        for launch, args in self._calls:
            launch([bases[base] + offset for base, offset in args])


class DeviceKernel:
    """A kernel compiled for the current GPU.

    Args:
        module: the kernel's file, imported.
        arch: compute capability, 90 for 9.0.
    """

    def __init__(self, module: Any, arch: int) -> None:
        self.module, self.arch = module, arch
        self.grid = (module.GRID[0], 1, 1)
        self._aligned = compile_module(module, arch)
        self._unaligned: Any = None
        head = getattr(module, "HEAD", None)
        self._tables = None if head is None else AddressTables(head, "cuda")

    def __call__(self, pointers: Sequence[int]) -> None:
        """Launch; pointers that are not aligned as a plan's are get code without wide loads."""
        if not self.grid[0]:
            return
        aligned = not any(pointer % ALIGNMENT for pointer in pointers)
        if not aligned and self._unaligned is None:
            self._unaligned = compile_module(self.module, self.arch, alignment=1)
        kernel = self._aligned if aligned else self._unaligned
        if self._tables is None:
            kernel[self.grid](*pointers)
        else:
            kernel[self.grid](self._tables.at(pointers), ALIGNMENT if aligned else 1)


class InterpretedKernel:
    """A kernel that runs in Triton's interpreter, on host memory."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self._buffers = [(size, dtype) for _, size, dtype, _ in module.BUFFERS]

    def __call__(self, pointers: Sequence[int]) -> None:
        """Run all programs of the grid, one after the other."""
        pairs = zip(pointers, self._buffers, strict=True)
        self.module.launch(*[_tensor(p, size, dtype) for p, (size, dtype) in pairs])


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


def _unused(pointers: Sequence[int]) -> None:
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
