"""One process of a calibration: times collectives between the processes of its run.

Started by `irc cluster calibrate` on one machine, or the calibration itself under torchrun or srun.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from irc.cluster.cpus import bind_crowded
from irc.cluster.links import COLLECTIVES, Collective
from irc.runtime.direct import all_gather, all_reduce, all_to_all, reduce_scatter
from irc.runtime.processes import end_with_parent, joined, place_of
from irc.tune.fit import Point

_library: Any = dist
"""torch's collectives, whose types are unknown in part."""

Curves = Mapping[Collective, Sequence[Point]]

SIZES = (64, 4096, 65536, 1 << 20, 4 << 20)
QUICK_SIZES = (64, 65536, 1 << 20)
BATCHES, REPEATS = 3, 5
PAIRS, LOOP = 5, 20
SIDE, WORK_S = 256, 1e-3


def curves(group: Any, ranks: int, sizes: Sequence[int], device: str = "cpu") -> Curves:
    """Time all collectives of a group; every rank of the group calls it.

    Args:
        group: a process group.
        ranks: its size.
        sizes: bytes that a rank holds in full.
        device: where the tensors are.
    """
    work = _work(group) if device == "cpu" else None

    def seconds(kind: Collective, held: int) -> float:
        run, written = _prepared(kind, ranks, held, device, group)
        alone = _slowest(_alone_s(run), group)
        if work is None:
            return alone
        return max(alone, _between_s(run, written, work, group))

    return {
        kind: [
            Point(ranks, held, seconds(kind, held))
            for held in (_even(size, ranks) for size in sizes)
        ]
        for kind in COLLECTIVES
    }


def _even(size: int, ranks: int) -> int:
    """Return the next size that divides evenly among the ranks, in float32."""
    return -(-size // (4 * ranks)) * 4 * ranks


def _prepared(
    kind: Collective, ranks: int, num_bytes: int, device: str, group: Any
) -> tuple[Callable[[], object], torch.Tensor]:
    """Return what runs a collective, and the tensor that it writes."""
    whole = torch.zeros(num_bytes // 4, device=device)
    part = torch.zeros(num_bytes // 4 // ranks, device=device)
    other = torch.zeros_like(whole)
    operands: Mapping[Collective, tuple[Any, tuple[torch.Tensor, ...]]] = {
        "all_reduce": (partial(all_reduce, fn="sum"), (whole,)),
        "all_gather": (all_gather, (whole, part)),
        "reduce_scatter": (partial(reduce_scatter, fn="sum"), (part, whole)),
        "all_to_all": (all_to_all, (other, whole)),
    }
    start: Any = operands[kind][0]
    tensors = operands[kind][1]

    def run() -> None:
        start(*tensors, group=group, async_op=True).wait()
        if device != "cpu":
            torch.cuda.synchronize()

    return run, tensors[0]


def _alone_s(run: Callable[[], object]) -> float:
    """Return the least of the medians of some batches, as `quiet_s` does."""
    # The number of repetitions must be the same on every rank, so no clock decides it.
    for _ in range(2):
        run()
    return min(median(_timed(run) for _ in range(REPEATS)) for _ in range(BATCHES))


def _between_s(
    run: Callable[[], object], written: torch.Tensor, work: Callable[[], object], group: Any
) -> float:
    """Return what a collective adds to a loop that computes, on the slowest rank.

    Ranks of a step arrive one after another, find their peers computing, and read what arrived
    from memory: behind another collective, none of that shows. The median over pairs of loops,
    with the collective and without it.
    """

    def loop(collective: Callable[[], object] | None) -> float:
        _library.barrier(group)
        start = time.perf_counter()
        for _ in range(LOOP):
            work()
            if collective is not None:
                collective()
            written.sum()
        return time.perf_counter() - start

    loop(run)
    pairs = [(loop(run), loop(None)) for _ in range(PAIRS)]
    slowest: Any = torch.tensor(pairs, dtype=torch.float64)
    _library.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    return median((with_ - without) / LOOP for with_, without in slowest.tolist())


def _work(group: Any) -> Callable[[], object]:
    """Return products that take about ``WORK_S`` on one core, as many on every rank."""
    a = torch.full((SIDE, SIDE), 1 / SIDE)
    out = torch.empty_like(a)
    once = min(_timed(lambda: torch.mm(a, a, out=out)) for _ in range(50))
    fastest = torch.tensor([once], dtype=torch.float64)
    _library.all_reduce(fastest, op=dist.ReduceOp.MIN, group=group)
    count = max(1, round(WORK_S / float(fastest)))

    def work() -> None:
        for _ in range(count):
            torch.mm(a, a, out=out)

    return work


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _slowest(seconds: float, group: Any) -> float:
    slowest = torch.tensor([seconds], dtype=torch.float64)
    if dist.get_backend(group) == "nccl":
        slowest = slowest.cuda()
    _library.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    return float(slowest)


def main(argv: Sequence[str] | None = None) -> int:
    """Time collectives; rank 0 writes them as JSON."""
    parser = argparse.ArgumentParser(prog="irc.tune.exchange", description=__doc__)
    parser.add_argument("output", help="the file that rank 0 writes")
    parser.add_argument("sizes", type=int, nargs="+", help="bytes that a rank holds in full")
    args = parser.parse_args(argv)
    end_with_parent()
    torch.set_num_threads(1)
    rank, world = place_of(os.environ)
    bind_crowded(rank, world)
    with joined(rank, world):
        times = curves(dist.group.WORLD, world, args.sizes)
    if rank == 0:
        place = Path(args.output)
        part = place.with_suffix(".part")
        part.write_text(json.dumps({k: [*map(list, v)] for k, v in times.items()}), "utf-8")
        part.rename(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
