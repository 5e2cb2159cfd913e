"""Kernels as CUDA C++ source, one file each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from irc.backends.cuda.build import compile_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from irc.dialects.task import KernelOp
    from irc.runtime.segments import Segment, SegmentCall

__all__ = [
    "CudaBackend",
    "compile_for",
    "emit",
    "emit_plan_sources",
    "is_interpreted",
    "load",
    "load_segment",
]

OPEN = ("rows", "matmul", "attention")
"""Templates that take sizes when they run."""


def emit(kernel: KernelOp) -> str:
    """Return the .cu file of a kernel.

    Raises:
        IrcError: ``op-unsupported``, with everything that CUDA C++ cannot express here.
    """
    from irc.backends.cuda.file import emit_kernel

    return emit_kernel(kernel)


def emit_plan_sources(kernels: Sequence[KernelOp]) -> dict[str, str]:
    """Return the files of a plan's ``kernels/`` folder.

    Raises:
        IrcError: ``op-unsupported``, with everything that any kernel needs and this backend lacks.
    """
    from irc.kernels.support import emit_all

    return emit_all(kernels, emit, ".cu")


def is_interpreted() -> bool:
    """True where kernels run on the host, on what stands in for a GPU."""
    from irc.backends.cuda import machine

    return machine.current().device == "cpu"


def load(path: str | Path) -> Callable[..., None]:
    """Load a kernel file for the GPU at hand; see :func:`.segment.load`."""
    from irc.backends.cuda import segment

    return segment.load(path)


def load_segment(
    texts: Sequence[str], calls: Sequence[SegmentCall], num_threads: int = 1
) -> Segment:
    """Compile a plan's kernels for the GPU at hand and bind their calls; see :mod:`.segment`."""
    from irc.backends.cuda import segment

    return segment.load_segment(texts, calls, num_threads)


@dataclass(frozen=True)
class CudaBackend:
    """CUDA C++ for NVIDIA GPUs."""

    name: str = "cuda"
    targets: tuple[str, ...] = ("sm_90", "sm_80")
    extension: str = ".cu"

    def emit(self, kernel: KernelOp) -> str:
        """Return the .cu file of a kernel."""
        return emit(kernel)

    def run_time_sizes(self, kernel: KernelOp, most: Mapping[str, int]) -> str | None:
        """Return why a kernel cannot take its sizes when it runs; None where it can."""
        from irc.kernels.gpu.run_time import reason_against

        return reason_against(kernel, most, OPEN, emit)

    def emit_plan_sources(self, kernels: Sequence[KernelOp]) -> dict[str, str]:
        """Return the files of a plan's ``kernels/`` folder."""
        return emit_plan_sources(kernels)
