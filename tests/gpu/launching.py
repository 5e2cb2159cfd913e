"""Kernels on the device: compiled, launched on random inputs, checked in float64, and timed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from irc.backends import cuda
from irc.backends.cuda import machine
from irc.backends.cuda.segment import CudaSegment, load_kernels
from irc.backends.triton import emit, is_interpreted
from irc.backends.triton.segment import launcher
from irc.backends.triton.timing import event_seconds
from irc.dialects.task import KernelOp
from irc.runtime.device import device_of
from irc.runtime.dtypes import dtypes
from irc.runtime.segments import SegmentCall
from tests.backends import gpu_kernels

DEVICE = "cuda"
"""Where the inputs of races are made."""
TOLERANCE = {"f64": 1e-9, "f32": 2e-5, "f16": 5e-3, "bf16": 3e-2}


@dataclass(frozen=True)
class Launch:
    """A kernel that is compiled for a device, and its buffers there."""

    launcher: Callable[[Sequence[int], Sequence[int]], None]
    buffers: list[torch.Tensor]
    sizes: tuple[int, ...] = ()

    def __call__(self) -> None:
        """Launch it on the current stream."""
        self.launcher([buffer.data_ptr() for buffer in self.buffers], self.sizes)


def prepare(
    kernel: KernelOp,
    inputs: list[torch.Tensor],
    backend: str = "triton",
    *,
    text_of: KernelOp | None = None,
    sizes: tuple[int, ...] = (),
) -> Launch:
    """Compile a kernel, and put its inputs and room for its outputs on the device.

    In Triton's interpreter the device is the host.

    Args:
        kernel: of numbers.
        inputs: of its own.
        backend: that compiles it.
        text_of: the kernel that is compiled in its place, which takes sizes.
        sizes: that it takes.
    """
    named = text_of or kernel
    place = device_of(backend)
    outputs = [
        torch.zeros(a.type.num_elements, dtype=dtypes()[a.type.dtype], device=place)
        for a in kernel.args[len(inputs) :]
    ]
    run = launcher(emit(named)) if backend == "triton" else _cuda_launcher(named, sizes)
    return Launch(run, [*(x.to(place) for x in inputs), *outputs], sizes)


def _cuda_launcher(
    kernel: KernelOp, sizes: tuple[int, ...]
) -> Callable[[Sequence[int], Sequence[int]], None]:
    on, count = machine.current(), len(kernel.args)
    loaded = load_kernels([cuda.emit(kernel)], on)
    call = SegmentCall(0, tuple((i, 0) for i in range(count)), sizes)
    segment = CudaSegment(loaded, [call], on)

    def launch(pointers: Sequence[int], _: Sequence[int]) -> None:
        table = (ctypes.c_int64 * count)(*pointers)
        segment.run(ctypes.addressof(table))

    return launch


def compile_together(kernels: Sequence[KernelOp]) -> None:
    """Compile CUDA kernels at once, on all cores; what cannot be emitted is left out."""
    texts: list[str] = []
    for kernel in kernels:
        try:
            texts.append(cuda.emit(kernel))
        except Exception:  # its own item says so
            continue
    load_kernels(texts, machine.current())


def error(kernel: KernelOp, launch: Launch, inputs: list[torch.Tensor]) -> float:
    """Run once and return the largest error over its tolerance: at most 1 is right."""
    launch()
    if not is_interpreted():
        torch.cuda.synchronize()
    worst = 0.0
    outputs = launch.buffers[len(inputs) :]
    for output, wanted in zip(outputs, gpu_kernels.meaning(kernel, inputs), strict=True):
        worst = max(worst, excess(output.cpu(), wanted, kernel))
    return worst


def excess(output: torch.Tensor, wanted: torch.Tensor, kernel: KernelOp) -> float:
    """Return the largest error of an output over what its dtypes allow."""
    if not output.dtype.is_floating_point:
        return 0.0 if torch.equal(output, wanted) else float("inf")
    names = {arg.type.dtype for arg in kernel.args}
    allowed = max(TOLERANCE.get(name, 0.0) for name in names)
    same = (output.double() == wanted) | (output.isnan() & wanted.isnan())
    difference = (output.double() - wanted).abs() / (allowed * (1 + wanted.abs()))
    difference = torch.where(same, 0.0, difference)
    worst = float(difference.max()) if output.numel() else 0.0
    return worst if worst == worst else float("inf")


def seconds(run: Callable[[], object], *, cold: bool = False, recorded: bool = False) -> float:
    """Return the median seconds of a call on the device.

    Args:
        run: enqueues work.
        cold: clear the cache in front of each call.
        recorded: time a CUDA graph of it, so that the host's part of a launch does not count.
    """
    if not recorded:
        return event_seconds(run, cold=cold)
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        kept = run()
    median_s = event_seconds(graph.replay, cold=cold)
    del kept
    return median_s
