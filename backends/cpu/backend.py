"""The CPU backend as the pipeline and the executor see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from irc.backends.cpu.emit import emit, run_time_sizes

if TYPE_CHECKING:
    from irc.dialects.task import KernelOp


class CpuBackend:
    """Kernels as LLVM IR for the machine that compiles the plan."""

    name = "cpu"
    targets = ("cpu",)
    extension = ".ll"

    def emit(self, kernel: KernelOp) -> str:
        """Return the LLVM IR of a kernel."""
        return emit(kernel)

    def run_time_sizes(self, kernel: KernelOp, most: Mapping[str, int]) -> str | None:
        """Return why a kernel cannot take its sizes when it runs; None where it can.

        Args:
            kernel: with sizes.
            most: the greatest number of each symbol that has one.
        """
        return run_time_sizes(kernel, most=most)

    def emit_plan_sources(self, kernels: Sequence[KernelOp]) -> dict[str, str]:
        """Return one file per kernel."""
        return {f"{kernel.sym_name.data}.ll": emit(kernel) for kernel in kernels}
