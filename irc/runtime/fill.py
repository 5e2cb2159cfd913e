"""Weights as calls read them, written into memory of the caller's: a file that is mapped."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from math import prod

import torch

from irc.plan.load import LoadedPlan
from irc.plan.schema import Kernels
from irc.runtime.dtypes import dtypes
from irc.runtime.segments import Segment, SegmentCall
from irc.runtime.torch_driver import TorchDriver

HELD_BYTES = 64 << 20
"""What is written before its pages are given back: the file has them."""


def fill(
    region: mmap.mmap,
    layout: Mapping[int, int],
    loaded: LoadedPlan,
    tensors: Mapping[str, torch.Tensor],
) -> None:
    """Write weights, and what is prepared of them.

    Args:
        region: zeros of a file, shared with it, so that memory need not hold them all.
        layout: for each weight or prepared buffer, where it begins there.
        loaded: a plan for one device.
        tensors: the weights by name.
    """
    plan = loaded.plan
    memory = torch.frombuffer(region, dtype=torch.uint8)
    places: dict[int, torch.Tensor] = {}
    for index, start in layout.items():
        buffer = plan.buffers[index]
        dtype = dtypes()[buffer.dtype]
        part = memory[start : start + prod(buffer.shape) * dtype.itemsize]
        places[index] = part.view(dtype).view(buffer.shape)
    prepared = {i: p for i, p in places.items() if plan.buffers[i].storage == "prepared"}
    load = partial(_load_prepared, written=_Written(region))
    computed = TorchDriver(tensors, load=load).bind(loaded, prepared=prepared).prepare()
    written = _Written(region)
    for index, place in places.items():
        source = computed[index] if index in computed else tensors[plan.buffers[index].name]
        # Equal tensors are prepared once, and then the others lie elsewhere.
        if source.data_ptr() != place.data_ptr():
            place.copy_(source)
            written.add(place.nbytes)


class _Written:
    """Gives back the pages of a file's memory when much of it has been written."""

    def __init__(self, region: mmap.mmap) -> None:
        self._region, self._bytes = region, 0

    def add(self, num_bytes: int) -> None:
        """Count what was written."""
        self._bytes += num_bytes
        if self._bytes >= HELD_BYTES and hasattr(mmap, "MADV_DONTNEED"):
            self._region.madvise(mmap.MADV_DONTNEED)
            self._bytes = 0


@dataclass(frozen=True)
class _OneByOne:
    """Calls that are made one after the other, and what is known of the bytes that each writes."""

    calls: Sequence[tuple[Segment, int]]
    written: _Written

    def run(self, table: int) -> None:
        for segment, num_bytes in self.calls:
            segment.run(table)
            self.written.add(num_bytes)


@dataclass(frozen=True)
class _NotRun:
    """A segment of calls, which weights are not prepared by."""

    def run(self, table: int) -> None:
        raise AssertionError(f"a call's segment was run at {table:#x}")


def _load_prepared(
    loaded: LoadedPlan,
    segments: Sequence[Sequence[SegmentCall]],
    num_threads: int,
    *,
    written: _Written,
) -> list[Segment]:
    """Compile the kernels that prepare weights, and no others."""
    plan = loaded.plan
    count = sum(isinstance(action, Kernels) for action in plan.prepared)
    texts = list(loaded.kernel_sources().values())
    backend = import_module(f"irc.backends.{plan.backend}")
    needed = list(dict.fromkeys(call.kernel for calls in segments[:count] for call in calls))
    if needed:  # all in one module, where later ones find them
        backend.load_segment([texts[kernel] for kernel in needed], [], num_threads)

    def one(call: SegmentCall) -> tuple[Segment, int]:
        alone = SegmentCall(0, call.args, call.sizes)
        outputs = plan.kernels[call.kernel].args[plan.kernels[call.kernel].num_inputs :]
        num_bytes = sum(arg.elements * dtypes()[arg.dtype].itemsize for arg in outputs)
        return backend.load_segment([texts[call.kernel]], [alone], num_threads), num_bytes

    compiled = [_OneByOne([one(call) for call in calls], written) for calls in segments[:count]]
    return [*compiled, *(_NotRun() for _ in segments[count:])]
