"""``irc.compile(mesh=...)`` under torchrun: one rank compiles, the others receive the plan."""

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
from irc.runtime.processes import check_world, place_of, share_plan, threads_per_process
from irc.runtime.weights import slice_weights


def join(
    compile_plan: Callable[[], LoadedPlan], tensors: Mapping[str, torch.Tensor], mesh: Mesh
) -> Executor:
    """Return this rank's executor; every rank of the mesh calls it.

    Args:
        compile_plan: makes the plan; called on rank 0 only.
        tensors: whole weights by name; the rank keeps its slices.
        mesh: must have as many ranks as there are processes.

    Raises:
        IrcError: ``world-size`` where the processes do not fit the mesh.
    """
    if not dist.is_initialized():
        _, world = place_of(os.environ)
        check_world(mesh, world)
        dist.init_process_group("gloo")
    check_world(mesh, dist.get_world_size())
    if dist.get_backend() != "gloo":
        raise IrcError(
            "world-size",
            f"the process group is of '{dist.get_backend()}'; plans for CPUs run on gloo",
            help='call init_process_group("gloo"), or leave it to irc',
        )
    rank = dist.get_rank()
    torch.set_num_threads(threads_per_process(int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    loaded = unpack(share_plan(pack(compile_plan()) if rank == 0 else None))
    return Executor(
        loaded,
        slice_weights(loaded.plan, tensors, rank),
        rank=rank,
        communicator=TorchCommunicator.of(mesh, rank),
    )
