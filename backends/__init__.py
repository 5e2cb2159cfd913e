"""The backends of irc, one folder each; this table is their register.

A row is ``"name": "irc.backends.name:NameBackend"``. Rows are text, so that naming one
backend imports one module. A backend turns ``task.kernel`` ops into source files of a plan.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from irc.dialects.task import KernelOp

BUILTIN: Mapping[str, str] = {
    "cpu": "irc.backends.cpu:CpuBackend",
    "cuda": "irc.backends.cuda:CudaBackend",
    "triton": "irc.backends.triton:TritonBackend",
}


class Backend(Protocol):
    """What a backend offers.

    Attributes:
        name: as in ``--backend``.
        targets: what ``map-tasks{target=...}`` may be for it, its default first.
        extension: of its source files, with the dot.
    """

    name: str
    targets: tuple[str, ...]
    extension: str

    def emit(self, kernel: KernelOp) -> str:
        """Return the source text of one kernel."""
        ...

    def emit_plan_sources(self, kernels: Sequence[KernelOp]) -> dict[str, str]:
        """Return what a plan's ``kernels/`` folder holds: file name to text."""
        ...


@dataclass(frozen=True)
class KernelReport:
    """What a compiler says of a kernel.

    Attributes:
        registers: per thread.
        spill_bytes: of registers kept in local memory, per thread (stores and loads).
        shared_bytes: of shared memory per block.
    """

    registers: int
    spill_bytes: int
    shared_bytes: int

    @staticmethod
    def of_ptxas(log: str, dynamic_shared: int = 0) -> KernelReport:
        r"""Read what ``ptxas -v`` says; it does not know shared memory that the launch asks for.

        >>> KernelReport.of_ptxas("0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n"
        ...                       "ptxas info : Used 40 registers, 512 bytes smem")
        KernelReport(registers=40, spill_bytes=12, shared_bytes=512)
        """
        registers = [int(n) for n in re.findall(r"Used (\d+) registers", log)]
        spills = [int(n) for n in re.findall(r"(\d+) bytes spill", log)]
        shared = [int(n) for n in re.findall(r"(\d+) bytes smem", log)]
        return KernelReport(
            max(registers, default=0), sum(spills), max(shared, default=0) + dynamic_shared
        )
