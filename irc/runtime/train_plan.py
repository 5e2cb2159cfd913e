"""Running a plan of training: some steps on all ranks, then their numbers held against eager's."""

# pyright: basic
from __future__ import annotations

import argparse
import math
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from irc.plan.load import LoadedPlan
from irc.plan.weights import write_safetensors
from irc.runtime.collectives import TorchCommunicator
from irc.runtime.compare import Comparison
from irc.runtime.eager_training import LR, Trained, compare_training
from irc.runtime.executor import Executor
from irc.runtime.executors import executor_of
from irc.runtime.inputs import inputs_for
from irc.runtime.parts import Parts
from irc.runtime.processes import gather_seconds
from irc.runtime.report import RunReport, TrainingReport
from irc.runtime.segments import LoadSegments
from irc.runtime.weights import load_weights

TIMED_STEPS = 3


def train(
    args: argparse.Namespace,
    loaded: LoadedPlan,
    rank: int,
    communicator: TorchCommunicator | None,
    load: LoadSegments,
) -> RunReport | None:
    """Run the steps of this rank; rank 0 returns the report.

    Args:
        args: of the worker: inputs, seed, steps, compare, save.
        loaded: a plan of training.
        rank: of this process.
        communicator: None on one device.
        load: compiles the kernels.
    """
    plan = loaded.plan
    own = load_weights(loaded, rank, verify=args.verify)
    run = executor_of(loaded, own, rank=rank, communicator=communicator, load=load)
    parts = Parts(plan.device_mesh, rank)
    parts.hold(plan, own)
    batches = [inputs_for(loaded, args.inputs, args.seed + step) for step in range(args.steps)]
    losses = torch.stack([run(*batch)[0] for batch in batches])
    wholes = {name: parts.whole(name, everywhere=False) for name in parts.local}
    seconds, resident = _timed(loaded, run, batches[-1]), _resident_bytes()
    if communicator is not None and dist.is_initialized():
        all_seconds, all_resident = gather_seconds(seconds), gather_seconds(float(resident))
    else:
        all_seconds, all_resident = [seconds], [float(resident)]
    if rank:
        return None
    after = {name: whole for name, whole in wholes.items() if whole is not None}
    trained = Trained(losses, after)
    if args.save:
        write_safetensors(Path(args.save), {**after, "losses": losses})
    training = TrainingReport(
        tuple(f"{float(loss):.6g}" for loss in losses),
        parts.num_bytes(),
        plan.arena_bytes,
        tuple(int(size) for size in all_resident),
    )
    return RunReport(
        plan.mesh,
        torch.get_num_threads(),
        tuple(all_seconds),
        plan.predicted_s,
        _compared(loaded, batches, trained) if args.compare else None,
        plan.cluster,
        training,
    )


def _timed(loaded: LoadedPlan, run: Executor, batch: Sequence[torch.Tensor]) -> float:
    """Return the seconds of a step; a learning rate of zero keeps its numbers small."""
    names = [loaded.plan.buffers[i].name for i in loaded.plan.inputs]
    still = [torch.zeros_like(x) if name == LR else x for name, x in zip(names, batch, strict=True)]
    best = math.inf
    for _ in range(TIMED_STEPS):
        start = time.perf_counter()
        run(*still)
        best = min(best, time.perf_counter() - start)
    return best


def _compared(
    loaded: LoadedPlan, batches: Sequence[Sequence[torch.Tensor]], trained: Trained
) -> Comparison:
    names = [loaded.plan.buffers[i].name for i in loaded.plan.inputs]
    named = [dict(zip(names, batch, strict=True)) for batch in batches]
    return compare_training(loaded, load_weights(loaded, None), named, trained)


def _resident_bytes() -> int:
    """Return the most memory that this process has had."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
