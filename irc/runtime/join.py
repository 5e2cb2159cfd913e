"""A program that runs under torchrun and compiles as it goes: one plan for all its processes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.plan.load import LoadedPlan, pack, unpack
from irc.runtime.collectives import TorchCommunicator
from irc.runtime.executor import Executor
from irc.runtime.executors import executor_of
from irc.runtime.processes import (
    agree,
    check_world,
    leave_at_exit,
    place_of,
    share_plan,
    start_processes,
    threads_per_process,
)
from irc.runtime.same_program import Marks, agree_on_program
from irc.runtime.segments import LoadSegments, load_segments
from irc.runtime.watch import naming_lost_ranks, watch_ranks
from irc.runtime.weights import slice_weights

COMPILE_TIMEOUT_S = 1800
"""How long ranks wait for the one that compiles; one that dies ends the others at once."""


def join(
    make: Callable[[], LoadedPlan],
    tensors: Mapping[str, torch.Tensor],
    mesh: Mesh,
    *,
    own: Marks,
    load: LoadSegments = load_segments,
) -> Executor:
    """Compile on rank 0, send the plan to all, and return this rank's executor.

    Every process of the run calls it. The processes join here unless the program has joined them.

    Args:
        make: compiles; runs on rank 0 only. Where it fails there, the other ranks fail too.
        tensors: whole weights by name, of which this rank takes its slices.
        mesh: over all processes.
        own: of what this rank would compile; those of all ranks are compared.
        load: compiles the kernels.

    Raises:
        IrcError: ``world-size``, ``ranks-differ``; what ``make`` raises.
    """
    rank = join_processes(mesh)
    plan = shared_plan(make, rank, own)
    parts = slice_weights(plan.plan, tensors, rank)
    communicator = TorchCommunicator.of(mesh, rank)
    return executor_of(plan, parts, rank=rank, communicator=communicator, load=load)


def join_processes(mesh: Mesh) -> int:
    """Join the processes of the run, unless the program has joined them; return this one's rank.

    Raises:
        IrcError: ``world-size``.
    """
    rank, world = _place()
    check_world(mesh, world)
    if not dist.is_initialized():
        start_processes(rank, world, timeout_s=COMPILE_TIMEOUT_S)
        leave_at_exit()
        torch.set_num_threads(threads_per_process(int(os.environ.get("LOCAL_WORLD_SIZE", world))))
    watch_ranks()
    return rank


def has_peers() -> bool:
    """Return whether a launcher has started this process as one of several."""
    return _place()[1] > 1


def num_processes() -> int:
    """Return how many processes the launcher has started, whether they have joined or not."""
    return _place()[1]


def own_rank() -> int:
    """Return the number of this process in its run, whether the processes have joined or not."""
    return _place()[0]


def _place() -> tuple[int, int]:
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return place_of(os.environ)


def shared_plan(make: Callable[[], LoadedPlan], rank: int, own: Marks) -> LoadedPlan:
    """Return the plan that rank 0 makes, on every rank; each calls it.

    Args:
        make: compiles; runs on rank 0 only.
        rank: of this process.
        own: of what this rank would compile.

    Raises:
        IrcError: ``ranks-differ``; what ``make`` raises; on the other ranks ``run-failed``;
            ``rank-lost``.
    """
    with naming_lost_ranks():
        agree_on_program(own)
        plan = _shared(make, rank)
        agree(plan.hash)
    return plan


def _shared(make: Callable[[], LoadedPlan], rank: int) -> LoadedPlan:
    plans: list[LoadedPlan] = []

    def packed() -> bytes:
        plans.append(make())
        return pack(plans[0])

    data = _sent(packed, rank)
    # Rank 0 runs what it made: its code is its own.
    return plans[0] if plans else unpack(data)


def shared_bytes(make: Callable[[], bytes], rank: int, own: Marks) -> bytes:
    """Return what rank 0 makes, on every rank; each calls it.

    Args:
        make: compiles and packs; runs on rank 0 only.
        rank: of this process.
        own: of what this rank would compile.

    Raises:
        IrcError: as :func:`shared_plan`.
    """
    with naming_lost_ranks():
        agree_on_program(own)
        data = _sent(make, rank)
        agree(hashlib.sha256(data).hexdigest())
    return data


def _sent(make: Callable[[], bytes], rank: int) -> bytes:
    if rank != 0:
        data = share_plan(None)
        if not data:
            raise IrcError(
                "run-failed", "rank 0 could not compile the plan", help="its own message says why"
            )
        return data
    try:
        data = make()
    except BaseException:
        # The others wait for a plan: an empty one tells them that there is none.
        share_plan(b"")
        raise
    share_plan(data)
    return data
