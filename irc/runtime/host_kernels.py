"""Kernels of a plan for another machine, written for the processor at hand.

A plan's ``ir/`` holds each kernel as loops over its buffers, whatever the device; its sources are
of that device. Where a plan for GPUs is rehearsed on a host, the same loops are compiled for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast, get_args

from irc.kernels.schedule import Template, schedule
from irc.plan.load import LoadedPlan
from irc.runtime.code import check_calls, read_kernels
from irc.runtime.segments import Segment, SegmentCall

if TYPE_CHECKING:
    from irc.dialects.task import KernelOp


def host_segments(
    loaded: LoadedPlan, segments: Sequence[Sequence[SegmentCall]], num_threads: int
) -> Sequence[Segment]:
    """Load segments (:data:`irc.runtime.segments.LoadSegments`) whose kernels run on the host.

    Raises:
        IrcError: ``plan-untrusted`` where the plan does not hold the loops of its kernels;
            ``plan-corrupt``.
    """
    if not segments:
        return []
    kernels = read_kernels(loaded)
    check_calls(loaded.plan, kernels, str(loaded.folder))
    backend: Any = import_module("irc.backends.cpu")  # which stands above the runtime
    texts = [backend.emit(_scheduled(kernels[kernel.name])) for kernel in loaded.plan.kernels]
    return [backend.load_segment(texts, calls, num_threads) for calls in segments]


def _scheduled(kernel: KernelOp) -> KernelOp:
    """Return a kernel that is divided as the host's are; attention is as it was mapped."""
    from irc.dialects.mapping_attr import MappingAttr

    template = kernel.template.data
    if kernel.part_lengths or template not in get_args(Template):
        return kernel
    own = kernel.clone()
    chosen = schedule(cast("Template", template), kernel.space_extents, kernel.num_parallel, "cpu")
    own.properties["mapping"] = MappingAttr(chosen.mapping)
    return own
