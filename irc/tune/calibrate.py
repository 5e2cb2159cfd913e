"""Calibration: measures this machine, or the machines of a launch, and states them as a cluster."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from irc.cluster.cpus import on_all_cpus
from irc.cluster.device import Device
from irc.cluster.host import memory_bytes, num_cores, processor
from irc.cluster.links import COLLECTIVES, Collective, Fit, Link
from irc.cluster.text import as_facts
from irc.cluster.topology import Cluster
from irc.cost.collectives import Line, lines
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.logs import PROGRESS, tell_share
from irc.runtime.launch import torchrun_command, worker_environment
from irc.tune.disk import disk_bytes_per_s
from irc.tune.exchange import QUICK_SIZES, SIZES, Curves
from irc.tune.fit import Point, fit_collective
from irc.tune.others import UNKNOWN, Others, others_since
from irc.tune.timing import quiet_s

Multiply: TypeAlias = Callable[[torch.Tensor, torch.Tensor], object]
Compile: TypeAlias = Callable[[torch.Tensor, torch.Tensor], Multiply]
"""Makes a matmul of two tensors: torch's, or generated kernels."""

DTYPES: Mapping[str, torch.dtype] = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f64": torch.float64,
}
MATMULS = (64, 128, 256, 512, 768, 1024)
QUICK_MATMULS = (128, 512)
COPY_BYTES = 64 << 20
EXCHANGE_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        matmuls: sizes of square matrices.
        copy_bytes: of the tensor that is copied for the memory's bandwidth.
        sizes: bytes of collectives.
        budget_s: for each median.
        ranks: how many processes exchange, one number after another; each at least two.
    """

    matmuls: tuple[int, ...] = MATMULS
    copy_bytes: int = COPY_BYTES
    sizes: tuple[int, ...] = SIZES
    budget_s: float = 0.25
    ranks: tuple[int, ...] = (2, 4)


QUICK = Effort(QUICK_MATMULS, 32 << 20, QUICK_SIZES, 0.03)


@dataclass(frozen=True)
class Calibration:
    """What was measured.

    Attributes:
        cluster: the machines, as `find_cluster` reads them.
        matmuls: GF/s of one core by dtype and size, as generated.
        library: the same, by torch.
        curves: collectives by level.
        others: what other programs computed meanwhile.
    """

    cluster: Cluster
    matmuls: Mapping[tuple[str, int], float]
    library: Mapping[tuple[str, int], float]
    curves: Sequence[Curves]
    others: Others = UNKNOWN

    def __str__(self) -> str:
        device = self.cluster.device
        rows = [f"{'matmul, one core':<20}{'generated':>16}{'torch':>16}"]
        for (dtype, size), flops in self.matmuls.items():
            other = self.library[dtype, size]
            rows.append(f"{dtype:>5} {size:>6}{flops / 1e9:>19.1f} GF/s{other / 1e9:>11.1f} GF/s")
        rows.append(f"memory bandwidth {device.bytes_per_s / 1e9:.1f} GB/s")
        rows.append(f"small op         {device.launch_s * 1e6:.2f} us")
        rows.append(f"scratch file     {device.disk_bytes_per_s / 1e9:.1f} GB/s")
        for level, curves in enumerate(self.curves):
            rows += ["", f"{f'collectives, level {level}':<34}{'measured':>14}{'fitted':>14}"]
            rows += self._fitted(level, curves)
        return "\n".join(rows)

    def facts(self) -> dict[str, Any]:
        """Return what was measured, the cluster by the keys of its file."""
        return {
            "cluster": as_facts(self.cluster),
            "matmuls": [
                {
                    "dtype": dtype,
                    "size": size,
                    "generated_flops_per_s": flops,
                    "torch_flops_per_s": self.library[dtype, size],
                }
                for (dtype, size), flops in self.matmuls.items()
            ],
            "collectives": [
                {"level": level, "kind": kind, **point._asdict()}
                for level, curves in enumerate(self.curves)
                for kind, points in curves.items()
                for point in points
            ],
            "others_cores": self.others.cores,
        }

    def _fitted(self, level: int, curves: Curves) -> Iterator[str]:
        link = self.cluster.links[level]
        for kind, points in curves.items():
            for point in points:
                alone = Cluster("fit", self.cluster.device, (replace(link, devices=point.ranks),))
                axis = alone.axis_link(Mesh.of({"all": point.ranks}), "all")
                (line,) = lines(kind, axis, self.cluster.device.bytes_per_s)
                yield _row(kind, point, line)


def _row(kind: str, point: Point, line: Line) -> str:
    return (
        f"{kind:<15}{point.ranks:>5} x{point.num_bytes:>10} B"
        f"{point.seconds * 1e6:>13.0f} us{line.seconds(point.num_bytes) * 1e6:>11.0f} us"
    )


def calibrate_host(effort: Effort = Effort(), compile_: Compile | None = None) -> Calibration:
    """Measure this machine: one core, its memory, and gloo between processes.

    Args:
        effort: how much to measure.
        compile_: makes a generated matmul; torch's stands for it where none is given.

    Raises:
        IrcError: ``run-failed`` where the processes did not talk to each other.
    """
    others = others_since()
    curves: dict[Collective, list[Point]] = {kind: [] for kind in COLLECTIVES}
    for ranks in effort.ranks:
        PROGRESS.info("collectives between %d processes", ranks)
        for kind, points in _exchange(effort, ranks).items():
            curves[kind] += points
    fits: dict[Collective, Fit] = {
        kind: fit_collective(kind, curves[kind], num_cores()) for kind in COLLECTIVES
    }
    device, generated, library = measure_device(effort, compile_)
    # Messages of stages, and permutes, are priced as steps of an all-reduce.
    summed = fit_collective("all_reduce", curves["all_reduce"])
    devices = max(2, num_cores())
    link = Link(devices, summed.latency_s, summed.bytes_per_s, summed.launch_s, fits=fits)
    cluster = Cluster("this-host", device, (link,))
    return Calibration(cluster, generated, library, (curves,), others())


def measure_device(
    effort: Effort, compile_: Compile | None = None, *, processes: int = 1
) -> tuple[Device, dict[tuple[str, int], float], dict[tuple[str, int], float]]:
    """Return this machine as a device, and GF/s of one core's matmuls, generated and by torch.

    Args:
        effort: how much to measure.
        compile_: makes a generated matmul; torch's stands for it where none is given.
        processes: how many of this machine measure at the same time: the memory's bandwidth is
            then what is left for one.
    """
    generated: dict[tuple[str, int], float] = {}
    library: dict[tuple[str, int], float] = {}
    with threads(1):
        pairs = [(dtype, size) for dtype in DTYPES for size in effort.matmuls]
        for number, (dtype, size) in enumerate(pairs, 1):
            tell_share("matmul", number, len(pairs))
            a, b = (torch.full((size, size), 0.5, dtype=DTYPES[dtype]) for _ in range(2))
            library[dtype, size] = _flops(torch.mm, a, b, effort)
            multiply = compile_(a, b) if compile_ else torch.mm
            generated[dtype, size] = _flops(multiply, a, b, effort)
        one = torch.ones(1)
        launch = quiet_s(lambda: one.add_(1), budget_s=effort.budget_s)
    PROGRESS.info("memory and disk")
    with threads(max(1, num_cores() // processes)):
        source = torch.zeros(effort.copy_bytes, dtype=torch.uint8)
        target = torch.ones_like(source)
        copy = quiet_s(lambda: target.copy_(source), budget_s=effort.budget_s)
    best = {d: max(f for (dtype, _), f in generated.items() if dtype == d) for d in DTYPES}
    # What no kernel of ours computes in half precision computes in single precision.
    peaks = {"f32": best["f32"], "bf16": best["bf16"], "f16": best["bf16"], "f64": best["f64"]}
    speed = 2 * effort.copy_bytes / copy
    device = Device(
        processor(), peaks, speed, memory_bytes(), launch, cores=num_cores(),
        disk_bytes_per_s=disk_bytes_per_s(effort.copy_bytes),
    )  # fmt: skip
    return device, generated, library


def _flops(multiply: Multiply, a: torch.Tensor, b: torch.Tensor, effort: Effort) -> float:
    return 2 * a.shape[0] ** 3 / quiet_s(lambda: multiply(a, b), budget_s=effort.budget_s)


@contextmanager
def threads(count: int) -> Generator[None]:
    """Run torch, and what asks it, on some threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _exchange(effort: Effort, ranks: int) -> Curves:
    """Start processes on this machine that time collectives, and return what they found."""
    with tempfile.TemporaryDirectory(prefix="irc-calibrate-") as name:
        folder = Path(name)
        output = folder / "curves.json"
        words = [str(output), *map(str, effort.sizes)]
        command = torchrun_command(ranks, folder, "irc.tune.exchange", words)
        with (folder / "log.txt").open("wb") as log, on_all_cpus():
            try:
                ended = subprocess.run(
                    command,
                    env=worker_environment(folder, ranks),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    timeout=EXCHANGE_TIMEOUT_S,
                    check=False,
                )
                status = f"status {ended.returncode}"
            except subprocess.TimeoutExpired:
                status = f"no end after {EXCHANGE_TIMEOUT_S:.0f} s"
        if not output.exists():
            said = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")
            raise IrcError(
                "run-failed",
                f"the processes that time collectives ended early ({status})",
                because=["the last they printed:", *said.splitlines()[-8:]],
            )
        data = json.loads(output.read_text(encoding="utf-8"))
    return {kind: [Point(*point) for point in data[kind]] for kind in COLLECTIVES}
