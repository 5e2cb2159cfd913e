"""Programs whose kernels run as CUDA C++ on the host shim; all else runs as torch does it.

All kernels of many programs are compiled as one library (starting g++ costs more than a kernel):
give :meth:`Shim.prepare` the programs first.
"""

from __future__ import annotations

import ctypes
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from xdsl.dialects.builtin import StringAttr

from irc.dialects.launches import LaunchOp
from irc.dialects.task import KernelOp
from irc.errors import IrcError
from irc.interpret.spmd import run_spmd
from irc.interpret.task import run_memory
from irc.sharding.mesh import mesh_of
from tests.backends.cuda.host import build, run_in_all_orders
from tests.fuzz.launched import output_buffers
from tests.fuzz.program import Program
from tests.fuzz.targets import Results, kernels_of

TARGET = "sm_80"


class Lowered:
    """A program on level task; its kernels by the names that its launches use."""

    def __init__(self, program: Program) -> None:
        self.module, kernels = kernels_of(program, TARGET)
        self.kernels = {kernel.sym_name.data: kernel for kernel in kernels}


class Shim:
    """Programs on level task, and the library that holds their kernels.

    Args:
        change: what happens to each source before it is compiled (a planted bug).
    """

    def __init__(self, change: Callable[[str], str] = str) -> None:
        self._change = change
        self._known: dict[int, tuple[Lowered | IrcError, ctypes.CDLL | None]] = {}
        self._kept: list[Program] = []

    def prepare(self, programs: Sequence[Program]) -> None:
        """Lower programs and compile all their kernels."""
        every: dict[str, KernelOp] = {}
        lowered: dict[int, Lowered | IrcError] = {}
        for program in programs:
            try:
                lowered[id(program)] = self._lowered(program, every)
            except IrcError as error:
                lowered[id(program)] = error
        library = None
        if every:
            folder = tempfile.TemporaryDirectory(prefix="irc-fuzz-")
            with folder as place:
                library = build(Path(place), every, self._change)
        self._known |= {key: (one, library) for key, one in lowered.items()}
        self._kept += programs  # their ids must stay theirs

    def _lowered(self, program: Program, every: dict[str, KernelOp]) -> Lowered:
        from irc.backends.cuda import emit

        lowered = Lowered(program)
        for kernel in lowered.kernels.values():
            emit(kernel)  # what cannot be emitted is this program's failure, not the library's
        for kernel in lowered.kernels.values():
            kernel.sym_name = StringAttr(f"p{len(every)}_{kernel.sym_name.data}")
            every[kernel.sym_name.data] = kernel
        return lowered

    def __call__(self, program: Program, inputs: Sequence[torch.Tensor]) -> Results:
        """Run a program; each kernel in several orders of its threads, which must not matter."""
        if id(program) not in self._known:
            self.prepare([program])
        lowered, library = self._known[id(program)]
        if isinstance(lowered, IrcError):
            raise lowered

        def launch(op: Any, operands: list[torch.Tensor]) -> list[torch.Tensor]:
            if not isinstance(op, LaunchOp):
                return [run_memory(op, operands[0])]
            assert library is not None
            kernel = lowered.kernels[op.kernel_name]
            flat = [x.contiguous().reshape(-1) for x in operands]
            results = run_in_all_orders(library, kernel, flat)
            return [
                x.reshape(out.shape) for x, out in zip(results, output_buffers(op), strict=True)
            ]

        return run_spmd(lowered.module, inputs, mesh_of(lowered.module), launch=launch)


def is_available() -> bool:
    """True where there is a compiler for the shim."""
    return shutil.which("g++") is not None
