"""Programs whose kernels run as Triton under its interpreter; all else runs as torch does it.

Triton reads ``TRITON_INTERPRET`` when it is imported: a process that uses this target sets it
before anything else (``python -m tests.fuzz`` does).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from xdsl.dialects.builtin import ModuleOp

from irc.dialects.launches import LaunchOp
from irc.interpret.spmd import run_spmd
from irc.interpret.task import run_memory
from irc.sharding.mesh import mesh_of
from tests.fuzz.launched import output_buffers
from tests.fuzz.program import Program
from tests.fuzz.targets import Results, kernels_of
from tests.fuzz.triton_casts import mend_casts

TARGET = "sm_90"


def run(
    program: Program, inputs: Sequence[torch.Tensor], change: Callable[[str], str] = str
) -> Results:
    """Run a program; kernels are emitted, loaded from a folder, and called on torch tensors.

    Args:
        program: what runs.
        inputs: its arguments.
        change: what happens to each source before it is loaded (a planted bug).
    """
    assert os.environ.get("TRITON_INTERPRET") == "1", "set TRITON_INTERPRET=1 before the start"
    from irc.backends.triton import emit, load

    mend_casts()
    module, kernels = kernels_of(program, TARGET)
    assert isinstance(module, ModuleOp)
    with tempfile.TemporaryDirectory(prefix="irc-fuzz-") as folder:
        launches: dict[str, Any] = {}
        for kernel in kernels:
            # Modules are kept by the name of their file: each program needs names of its own.
            path = Path(folder) / f"p{program.seed}_{id(program)}_{kernel.sym_name.data}.py"
            path.write_text(change(emit(kernel)))
            launches[kernel.sym_name.data] = load(path)

        def launch(op: Any, operands: list[torch.Tensor]) -> list[torch.Tensor]:
            if not isinstance(op, LaunchOp):
                return [run_memory(op, operands[0])]
            outputs = output_buffers(op)
            flat = [x.contiguous().reshape(-1) for x in operands]
            launches[op.kernel_name](*flat, *[out.view(-1) for out in outputs])
            return outputs

        return run_spmd(module, inputs, mesh_of(module), launch=launch)
