"""Runs Triton kernels in Triton's interpreter, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from irc.backends.triton import emit
from irc.dialects.task import KernelOp
from irc.runtime.dtypes import dtypes

RUNNER = """
import sys, torch
from pathlib import Path
from irc.backends.triton import load
for path in sorted(Path(sys.argv[1]).glob("*.py")):
    buffers = torch.load(path.with_suffix(".in"))
    try:
        load(path)(*buffers)
    except Exception as error:
        path.with_suffix(".error").write_text(f"{type(error).__name__}: {error}")
        continue
    torch.save(buffers, path.with_suffix(".out"))
"""


def interpret(
    folder: Path,
    runs: Sequence[tuple[KernelOp, list[torch.Tensor]]],
    texts: Mapping[str, str] | None = None,
) -> None:
    """Run kernels in one process, since the variable must be set before Triton is imported.

    Args:
        folder: of files named after the kernels.
        runs: kernels and their inputs.
        texts: sources by kernel, where not those that are emitted.
    """
    for kernel, inputs in runs:
        outputs = [
            torch.zeros(a.type.num_elements, dtype=dtypes()[a.type.dtype])
            for a in kernel.args[len(inputs) :]
        ]
        name = kernel.sym_name.data
        path = folder / f"{name}.py"
        path.write_text((texts or {}).get(name) or emit(kernel))
        torch.save([*inputs, *outputs], path.with_suffix(".in"))
    run_interpreted(["-c", RUNNER, str(folder)])


def run_interpreted(arguments: Sequence[str]) -> str:
    """Run Python in Triton's interpreter and return what it prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def outputs_of(folder: Path, kernel: KernelOp) -> list[torch.Tensor]:
    """Return the outputs of a kernel that ran in a folder."""
    path = folder / kernel.sym_name.data
    error = path.with_suffix(".error")
    assert not error.exists(), error.read_text()
    buffers: list[torch.Tensor] = torch.load(path.with_suffix(".out"))
    return buffers[kernel.num_inputs.value.data :]
