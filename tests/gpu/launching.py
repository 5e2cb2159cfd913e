"""Kernels on the device: compiled, launched on random inputs, checked in float64, and timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from irc.backends.triton import emit, is_interpreted
from irc.backends.triton.segment import launcher
from irc.backends.triton.timing import event_seconds as seconds
from irc.dialects.task import KernelOp
from irc.runtime.device import device_of
from irc.runtime.library import dtypes
from tests.backends import gpu_kernels

__all__ = ["Launch", "error", "excess", "prepare", "seconds"]

DEVICE = "cuda"
"""Where the inputs of races are made."""
TOLERANCE = {"f64": 1e-9, "f32": 2e-5, "f16": 5e-3, "bf16": 3e-2}


@dataclass(frozen=True)
class Launch:
    """A kernel that is compiled for a device, and its buffers there."""

    launcher: Callable[[Sequence[int]], None]
    buffers: list[torch.Tensor]

    def __call__(self) -> None:
        """Launch it on the current stream."""
        self.launcher([buffer.data_ptr() for buffer in self.buffers])


def prepare(kernel: KernelOp, inputs: list[torch.Tensor]) -> Launch:
    """Compile a kernel, and put its inputs and room for its outputs on the device.

    In Triton's interpreter the device is the host.
    """
    place = device_of("triton")
    outputs = [
        torch.zeros(a.type.num_elements, dtype=dtypes()[a.type.dtype], device=place)
        for a in kernel.args[len(inputs) :]
    ]
    return Launch(launcher(emit(kernel)), [*(x.to(place) for x in inputs), *outputs])


def error(kernel: KernelOp, launch: Launch, inputs: list[torch.Tensor]) -> float:
    """Run once and return the largest error over its tolerance: at most 1 is right."""
    launch()
    if not is_interpreted():
        torch.cuda.synchronize()
    worst = 0.0
    found = launch.buffers[len(inputs) :]
    for made, wanted in zip(found, gpu_kernels.meaning(kernel, inputs), strict=True):
        worst = max(worst, excess(made.cpu(), wanted, kernel))
    return worst


def excess(made: torch.Tensor, wanted: torch.Tensor, kernel: KernelOp) -> float:
    """Return the largest error of an output over what its dtypes allow."""
    if not made.dtype.is_floating_point:
        return 0.0 if torch.equal(made, wanted) else float("inf")
    names = {arg.type.dtype for arg in kernel.args}
    allowed = max(TOLERANCE.get(name, 0.0) for name in names)
    same = (made.double() == wanted) | (made.isnan() & wanted.isnan())
    difference = (made.double() - wanted).abs() / (allowed * (1 + wanted.abs()))
    difference = torch.where(same, 0.0, difference)
    worst = float(difference.max()) if made.numel() else 0.0
    return worst if worst == worst else float("inf")
