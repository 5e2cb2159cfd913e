"""One process of a calibration: times collectives between the processes of its run.

Started by `irc cluster calibrate` on one machine, or the calibration itself under torchrun or srun.
"""

# pyright: basic
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

from irc.cluster.links import COLLECTIVES, Collective
from irc.runtime.direct import all_gather, all_reduce, reduce_scatter
from irc.runtime.network_threads import defer_network_threads
from irc.runtime.processes import end_with_parent, joined, place_of
from irc.tune.fit import Point

Curves = Mapping[Collective, Sequence[Point]]

SIZES = (64, 4096, 65536, 1 << 20, 4 << 20)
QUICK_SIZES = (64, 65536, 1 << 20)
BATCHES, REPEATS = 3, 5


def curves(group: Any, ranks: int, sizes: Sequence[int], device: str = "cpu") -> Curves:
    """Time all collectives of a group; every rank of the group calls it.

    Args:
        group: a process group.
        ranks: its size.
        sizes: bytes that a rank holds in full.
        device: where the tensors are.
    """
    return {
        kind: [
            Point(
                ranks, held, _slowest(_seconds(_prepared(kind, ranks, held, device, group)), group)
            )
            for held in (_even(size, ranks) for size in sizes)
        ]
        for kind in COLLECTIVES
    }


def _even(size: int, ranks: int) -> int:
    """Return the next size that divides evenly among the ranks, in float32."""
    return -(-size // (4 * ranks)) * 4 * ranks


def _prepared(
    kind: Collective, ranks: int, num_bytes: int, device: str, group: Any
) -> Callable[[], object]:
    whole = torch.zeros(num_bytes // 4, device=device)
    part = torch.zeros(num_bytes // 4 // ranks, device=device)
    other = torch.zeros_like(whole)
    given: Mapping[Collective, tuple[Any, tuple[torch.Tensor, ...]]] = {
        "all_reduce": (partial(all_reduce, fn="sum"), (whole,)),
        "all_gather": (all_gather, (whole, part)),
        "reduce_scatter": (partial(reduce_scatter, fn="sum"), (part, whole)),
        "all_to_all": (dist.all_to_all_single, (other, whole)),
    }
    start: Any = given[kind][0]
    tensors = given[kind][1]

    def run() -> None:
        start(*tensors, group=group, async_op=True).wait()
        if device != "cpu":
            torch.cuda.synchronize()

    return run


def _seconds(run: Callable[[], object]) -> float:
    """Return the least of the medians of some batches, as `quiet_s` does."""
    # The number of repetitions must be the same on every rank, so no clock decides it.
    for _ in range(2):
        run()
    return min(median(_timed(run) for _ in range(REPEATS)) for _ in range(BATCHES))


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _slowest(seconds: float, group: Any) -> float:
    found = torch.tensor([seconds], dtype=torch.float64)
    if dist.get_backend(group) == "nccl":
        found = found.cuda()
    dist.all_reduce(found, op=dist.ReduceOp.MAX, group=group)
    return float(found)


def local_curves(sizes: Sequence[int]) -> Curves:
    """Time collectives of all ranks and of pairs, on one machine; every process calls it.

    All pairs exchange at the same time, as the groups of a mesh axis do.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    found: dict[Collective, list[Point]] = {
        kind: [*points] for kind, points in curves(dist.group.WORLD, world, sizes).items()
    }
    if world > 2 and world % 2 == 0:
        pairs = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
        defer_network_threads()
        dist.barrier()
        for kind, points in curves(pairs[rank // 2], 2, sizes).items():
            found[kind] += points
        dist.barrier()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Time collectives; rank 0 writes them as JSON."""
    parser = argparse.ArgumentParser(prog="irc.tune.exchange", description=__doc__)
    parser.add_argument("output", help="the file that rank 0 writes")
    parser.add_argument("sizes", type=int, nargs="+", help="bytes that a rank holds in full")
    args = parser.parse_args(argv)
    end_with_parent()
    torch.set_num_threads(1)
    rank, world = place_of(os.environ)
    with joined(rank, world):
        found = local_curves(args.sizes)
    if rank == 0:
        place = Path(args.output)
        part = place.with_suffix(".part")
        part.write_text(json.dumps({k: [*map(list, v)] for k, v in found.items()}), "utf-8")
        part.rename(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
