"""What this machine is: its processor, memory and GPUs, and the launch that it is part of."""

# pyright: basic
from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from irc.cluster.host import memory_bytes, num_cores, processor
from irc.cluster.presets import KINDS, node_cluster
from irc.tune.calibrate import threads
from irc.tune.timing import quiet_s

MATMUL = 512
COPY_BYTES = 32 << 20
LAUNCH_VARIABLES = (
    *(
        "SLURM_JOB_ID",
        "SLURM_JOB_NUM_NODES",
        "SLURM_NTASKS",
        "SLURM_NODELIST",
        "SLURM_GPUS_ON_NODE",
    ),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES"),
)


def detect(environment: Mapping[str, str] = os.environ, *, matmul: int = MATMUL) -> str:
    """Return what is known of this machine, as lines; it measures for a second."""
    rows = [
        ("processor", processor()),
        ("cores", f"{num_cores()} that this process may use"),
        ("memory", f"{memory_bytes() / 1e9:.1f} GB"),
        ("matmul", _matmul(matmul)),
        ("bandwidth", _bandwidth()),
    ]
    gpus = _gpus()
    rows += [("gpu", text) for text in gpus] or [("gpu", "none that torch can use")]
    rows += [(name, environment[name]) for name in LAUNCH_VARIABLES if environment.get(name)]
    rows.append(("cluster", suggested(_names(), environment)))
    return "\n".join(f"{name:<22}{text}" for name, text in rows)


def suggested(gpus: list[str], environment: Mapping[str, str]) -> str:
    """Return the name of the cluster that fits some GPUs, and how many nodes the launch has.

    >>> suggested(["NVIDIA H100 80GB HBM3"] * 8, {"SLURM_JOB_NUM_NODES": "4"})
    '4x8xH100'
    >>> suggested([], {})
    'this-host (irc cluster calibrate measures it)'
    """
    kinds = {next((k for k in KINDS if k in name), "") for name in gpus}
    nodes = environment.get("SLURM_JOB_NUM_NODES", "1")
    name = f"{len(gpus)}x{next(iter(kinds), '')}"
    if nodes.isascii() and nodes.isdigit() and int(nodes) > 1:
        name = f"{nodes}x{name}"
    if len(kinds) == 1 and node_cluster(name) is not None:
        return name
    if gpus:
        return "no preset fits these devices: write a file (irc cluster show --example)"
    return "this-host (irc cluster calibrate measures it)"


def _matmul(size: int) -> str:
    a = torch.full((size, size), 0.5)
    speeds: list[str] = []
    for count in dict.fromkeys((1, num_cores())):
        with threads(count):
            seconds = quiet_s(lambda: torch.mm(a, a), budget_s=0.15)
        plural = "s" * (count > 1)
        speeds.append(f"{2 * size**3 / seconds / 1e9:.1f} GF/s on {count} thread{plural}")
    return f"float32 {size} x {size} by torch: {', '.join(speeds)}"


def _bandwidth() -> str:
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8)
    target = torch.ones_like(source)
    with threads(num_cores()):
        seconds = quiet_s(lambda: target.copy_(source), budget_s=0.15)
    return f"{2 * COPY_BYTES / seconds / 1e9:.1f} GB/s, read and written"


def _names() -> list[str]:
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def _gpus() -> list[str]:
    found: list[str] = []
    for index, name in enumerate(_names()):
        known = torch.cuda.get_device_properties(index)
        others = range(torch.cuda.device_count())
        peers = [i for i in others if i != index and torch.cuda.can_device_access_peer(index, i)]
        found.append(
            f"{index}: {name}, {known.total_memory / 1e9:.0f} GB, sm_{known.major}{known.minor},"
            f" reaches {len(peers)} others directly"
        )
    return found
