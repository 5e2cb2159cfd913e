"""A program that runs under torchrun and compiles as it goes: one plan for all its processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.plan.load import LoadedPlan, pack, unpack
from irc.runtime.collectives import TorchCommunicator
from irc.runtime.executor import Executor
from irc.runtime.processes import (
    agree,
    check_world,
    place_of,
    share_plan,
    start_processes,
    threads_per_process,
)
from irc.runtime.segments import LoadSegments, load_segments
from irc.runtime.weights import slice_weights


def join(
    make: Callable[[], LoadedPlan],
    tensors: Mapping[str, torch.Tensor],
    mesh: Mesh,
    *,
    load: LoadSegments = load_segments,
) -> Executor:
    """Compile on rank 0, send the plan to all, and return this rank's executor.

    Every process of the run calls it. The processes join here unless the program has joined them.

    Args:
        make: compiles; runs on rank 0 only. Where it fails there, the other ranks fail too.
        tensors: whole weights by name, of which this rank takes its slices.
        mesh: over all processes.
        load: compiles the kernels.

    Raises:
        IrcError: ``world-size``; what ``make`` raises.
    """
    rank, world = _place()
    check_world(mesh, world)
    if not dist.is_initialized():
        start_processes(rank, world)
        torch.set_num_threads(threads_per_process(int(os.environ.get("LOCAL_WORLD_SIZE", world))))
    plan = _shared(make, rank)
    agree(plan.hash)
    communicator = TorchCommunicator.of(mesh, rank)
    own = slice_weights(plan.plan, tensors, rank)
    return Executor(plan, own, rank=rank, communicator=communicator, load=load)


def _place() -> tuple[int, int]:
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return place_of(os.environ)


def _shared(make: Callable[[], LoadedPlan], rank: int) -> LoadedPlan:
    if rank != 0:
        data = share_plan(None)
        if not data:
            raise IrcError(
                "run-failed", "rank 0 could not compile the plan", help="its own message says why"
            )
        return unpack(data)
    try:
        plan = make()
    except BaseException:
        # The others wait for a plan: an empty one tells them that there is none.
        share_plan(b"")
        raise
    share_plan(pack(plan))
    return plan
