"""What this machine is: its processor, memory and GPUs, and the launch that it is part of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from irc.cluster.host import memory_bytes, num_cores, processor
from irc.cluster.load import THIS_HOST
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


@dataclass(frozen=True)
class Machine:
    """What is known of a machine; its text is a line for each.

    Attributes:
        processor: its name.
        cores: that this process may use.
        memory_bytes: of the machine.
        matmul: rows and columns of the float32 products by torch that were timed.
        matmul_flops_per_s: of them, by threads.
        memory_bytes_per_s: of a copy, what is read and what is written.
        gpus: a line about each that torch can use.
        launch: variables of the launch that it is part of.
        cluster: the name that fits as ``--cluster``; empty where no preset does.
    """

    processor: str
    cores: int
    memory_bytes: int
    matmul: int
    matmul_flops_per_s: Mapping[int, float]
    memory_bytes_per_s: float
    gpus: tuple[str, ...]
    launch: Mapping[str, str]
    cluster: str

    def __str__(self) -> str:
        speeds = ", ".join(
            f"{speed / 1e9:.1f} GF/s on {count} thread{'s' * (count > 1)}"
            for count, speed in self.matmul_flops_per_s.items()
        )
        notes = {
            "": "no preset fits these devices: write a file (irc cluster show --example)",
            THIS_HOST: f"{THIS_HOST} (irc cluster calibrate measures it)",
        }
        rows = [
            ("processor", self.processor),
            ("cores", f"{self.cores} that this process may use"),
            ("memory", f"{self.memory_bytes / 1e9:.1f} GB"),
            ("matmul", f"float32 {self.matmul} x {self.matmul} by torch: {speeds}"),
            ("bandwidth", f"{self.memory_bytes_per_s / 1e9:.1f} GB/s, read and written"),
            *([("gpu", text) for text in self.gpus] or [("gpu", "none that torch can use")]),
            *self.launch.items(),
            ("cluster", notes.get(self.cluster, self.cluster)),
        ]
        return "\n".join(f"{name:<22}{text}" for name, text in rows)


def detect(environment: Mapping[str, str] = os.environ, *, matmul: int = MATMUL) -> Machine:
    """Return what is known of this machine; it measures for a second."""
    return Machine(
        processor(),
        num_cores(),
        memory_bytes(),
        matmul,
        _matmul(matmul),
        _bandwidth(),
        tuple(_gpus()),
        {name: environment[name] for name in LAUNCH_VARIABLES if environment.get(name)},
        suggested(_names(), environment),
    )


def suggested(gpus: list[str], environment: Mapping[str, str]) -> str:
    """Return the name of the cluster that fits some GPUs, and how many nodes the launch has.

    >>> suggested(["NVIDIA H100 80GB HBM3"] * 8, {"SLURM_JOB_NUM_NODES": "4"})
    '4x8xH100'
    >>> suggested([], {})
    'this-host'
    """
    kinds = {next((k for k in KINDS if k in name), "") for name in gpus}
    nodes = environment.get("SLURM_JOB_NUM_NODES", "1")
    name = f"{len(gpus)}x{next(iter(kinds), '')}"
    if nodes.isascii() and nodes.isdigit() and int(nodes) > 1:
        name = f"{nodes}x{name}"
    if len(kinds) == 1 and node_cluster(name) is not None:
        return name
    return "" if gpus else THIS_HOST


def _matmul(size: int) -> dict[int, float]:
    a = torch.full((size, size), 0.5)
    speeds: dict[int, float] = {}
    for count in dict.fromkeys((1, num_cores())):
        with threads(count):
            seconds = quiet_s(lambda: torch.mm(a, a), budget_s=0.15)
        speeds[count] = 2 * size**3 / seconds
    return speeds


def _bandwidth() -> float:
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8)
    target = torch.ones_like(source)
    with threads(num_cores()):
        seconds = quiet_s(lambda: target.copy_(source), budget_s=0.15)
    return 2 * COPY_BYTES / seconds


def _names() -> list[str]:
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def _gpus() -> list[str]:
    gpus: list[str] = []
    cuda: Any = torch.cuda  # what it says of a GPU has no types
    for index, name in enumerate(_names()):
        known = cuda.get_device_properties(index)
        others = range(torch.cuda.device_count())
        peers = [i for i in others if i != index and torch.cuda.can_device_access_peer(index, i)]
        gpus.append(
            f"{index}: {name}, {known.total_memory / 1e9:.0f} GB, sm_{known.major}{known.minor},"
            f" reaches {len(peers)} others directly"
        )
    return gpus
