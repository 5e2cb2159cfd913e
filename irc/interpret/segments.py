"""Segments whose kernels are interpreted: plans for GPUs run on the host, slowly, as they lie.

An executor with them runs a plan's own actions on its own memory, so that what is planned for a
cluster is checked on a laptop.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from irc.dialects.task import KernelOp
from irc.interpret.task import run_kernel
from irc.plan.json_text import corrupt
from irc.plan.load import LoadedPlan
from irc.runtime.code import load_program
from irc.runtime.dtypes import dtypes
from irc.runtime.segments import SegmentCall

IR = "ir/"


class InterpretedSegment:
    """Runs launches one after the other.

    Args:
        loaded: the plan.
        kernels: level task, by name.
        calls: the launches.
    """

    def __init__(
        self, loaded: LoadedPlan, kernels: dict[str, KernelOp], calls: Sequence[SegmentCall]
    ) -> None:
        self._plan, self._kernels, self._calls = loaded.plan, kernels, calls

    def run(self, table: int) -> None:
        """Run them on the memory that a base table at this address names."""
        bases = (ctypes.c_int64 * (1 + len(self._plan.bases))).from_address(table)
        for call in self._calls:
            kernel = self._plan.kernels[call.kernel]
            flat = [
                _flat(bases[base] + offset, arg.elements, arg.dtype)
                for (base, offset), arg in zip(call.args, kernel.args, strict=True)
            ]
            count = kernel.num_inputs
            run_kernel(self._kernels[kernel.name], flat[:count], flat[count:])


def interpreted_segments(
    loaded: LoadedPlan, segments: Sequence[Sequence[SegmentCall]], num_threads: int
) -> Sequence[InterpretedSegment]:
    """Load segments (:data:`irc.runtime.segments.LoadSegments`) from a plan's text of level task.

    Raises:
        IrcError: ``plan-corrupt`` where the plan has no text of its kernels.
    """
    del num_threads
    if not segments:
        return []
    name = max((n for n in loaded.texts if n.startswith(IR)), default="")
    if not name:
        raise corrupt("the plan has no text of its kernels")
    module = load_program(loaded, loaded.texts[name].decode("utf-8", "replace"), name)
    kernels = {op.sym_name.data: op for op in module.ops if isinstance(op, KernelOp)}
    return [InterpretedSegment(loaded, kernels, calls) for calls in segments]


def _flat(address: int, elements: int, dtype: str) -> torch.Tensor:
    kind = dtypes()[dtype]
    if not elements:
        return torch.empty(0, dtype=kind)
    memory = (ctypes.c_char * (elements * kind.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=kind)
