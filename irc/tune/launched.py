"""Calibration under torchrun or srun: the processes of the launch measure their machines together.

Every process computes and exchanges at the same time, as it will in a run. Level 0 joins the
processes of a node, level 1 those of the same place on all nodes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from irc.cluster.device import Device
from irc.cluster.links import COLLECTIVES, Fit, Link
from irc.cluster.topology import Cluster
from irc.errors import IrcError
from irc.runtime.processes import gather_seconds, joined, place_of
from irc.tune.calibrate import Calibration, Compile, Effort, measure_device
from irc.tune.exchange import Curves, curves
from irc.tune.fit import fit_collective
from irc.tune.others import Others, others_since

_library: Any = dist
"""torch's collectives, whose types are unknown in part."""
PORT = 29511


def launch_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what torchrun sets, also where srun started the processes; empty where nobody did.

    >>> variables = launch_environment({"SLURM_PROCID": "3", "SLURM_NTASKS": "4",
    ...     "SLURM_NODEID": "1", "SLURM_STEP_NUM_NODES": "2",
    ...     "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"})
    >>> variables["RANK"], variables["LOCAL_WORLD_SIZE"], variables["MASTER_ADDR"]
    ('3', '2', '10.0.0.1')
    """
    if environment.get("WORLD_SIZE", "1") != "1":
        names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        variables = {name: environment[name] for name in names if name in environment}
        return {"LOCAL_WORLD_SIZE": variables["WORLD_SIZE"], **variables}
    tasks = environment.get("SLURM_NTASKS", "1")
    if tasks == "1" or "SLURM_PROCID" not in environment or not tasks.isdigit():
        return {}
    nodes = environment.get("SLURM_STEP_NUM_NODES", environment.get("SLURM_JOB_NUM_NODES", "1"))
    job = environment.get("SLURM_JOB_ID", "0")
    host = environment.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": tasks,
        "LOCAL_WORLD_SIZE": str(max(1, int(tasks) // max(1, int(nodes) if nodes.isdigit() else 1))),
        "MASTER_ADDR": environment.get("MASTER_ADDR", host),
        "MASTER_PORT": environment.get("MASTER_PORT", str(PORT + int(job) % 1000)),
    }


def calibrate_launched(effort: Effort, compile_: Compile | None = None) -> Calibration | None:
    """Measure with the processes that were started together; rank 0 returns what all found.

    Raises:
        IrcError: ``world-size`` where nodes have unequal numbers of processes.
    """
    variables = launch_environment(os.environ)
    os.environ.update(variables)
    rank, world = place_of(variables)
    local = int(variables["LOCAL_WORLD_SIZE"])
    if world % local:
        raise IrcError(
            "world-size",
            f"{world} processes, {local} of them on this node: nodes must have equal numbers",
        )
    node = slice(rank // local * local, rank // local * local + local)
    with joined(rank, world):
        others = others_since(total=lambda own: sum(gather_seconds(own)[node]))
        device, generated, library = measure_device(effort, compile_, processes=local)
        device = _slowest(device, local)
        levels = _levels(rank, world, local, effort)
        beside = _busiest(others())
    if rank:
        return None
    links = tuple(_link(size, level_curves) for size, level_curves in levels)
    cluster = Cluster(f"calibrated-{world}", device, links)
    return Calibration(
        cluster, generated, library, tuple(level_curves for _, level_curves in levels), beside
    )


def _levels(rank: int, world: int, local: int, effort: Effort) -> list[tuple[int, Curves]]:
    """Return the devices of each level with the curves that this rank's group found."""
    nodes = world // local
    levels: list[tuple[int, Curves]] = []
    if local > 1:
        inside = [_library.new_group([*range(n * local, (n + 1) * local)]) for n in range(nodes)]
        levels.append((local, curves(inside[rank // local], local, effort.sizes)))
    if nodes > 1:
        across = [_library.new_group([*range(place, world, local)]) for place in range(local)]
        _library.barrier()
        levels.append((world, curves(across[rank % local], nodes, effort.sizes)))
    return levels


def _link(devices: int, level_curves: Curves) -> Link:
    fits: dict[Any, Fit] = {kind: fit_collective(kind, level_curves[kind]) for kind in COLLECTIVES}
    summed = fits["all_reduce"]
    return Link(devices, summed.latency_s, summed.bytes_per_s, summed.launch_s, fits=fits)


def _busiest(own: Others) -> Others:
    """Return what others computed on the node where that was most; the nodes may differ."""
    cores = max(gather_seconds(-1.0 if own.cores is None else own.cores))
    return Others(None if cores < 0 else cores)


def _slowest(device: Device, local: int) -> Device:
    """Return the worst of all ranks' figures; each has its part of its node's cores and memory."""
    cores = device.threads(local)
    flops = {
        dtype: cores * min(gather_seconds(value)) for dtype, value in device.peak_flops.items()
    }
    return replace(
        device,
        peak_flops=flops,
        bytes_per_s=min(gather_seconds(device.bytes_per_s)),
        memory_bytes=int(min(gather_seconds(device.memory_bytes / local))),
        launch_s=max(gather_seconds(device.launch_s)),
        cores=0,
        disk_bytes_per_s=min(gather_seconds(device.disk_bytes_per_s)),
    )
