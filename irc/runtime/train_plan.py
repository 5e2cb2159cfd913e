"""Running a plan of training: some steps on all ranks, then their numbers held against eager's."""

from __future__ import annotations

import argparse
import math
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from irc.cluster.load import THIS_HOST, find_cluster, of_all_kinds
from irc.dialects.builder import arguments, entry
from irc.dialects.placement import Mesh
from irc.logs import PROGRESS, tell_share
from irc.plan.load import LoadedPlan
from irc.plan.parts import PartsPlan
from irc.plan.training import FORWARD, check_recipe, forward_text
from irc.plan.weights import write_safetensors
from irc.runtime.code import load_program
from irc.runtime.collectives import Communicator
from irc.runtime.compare import Comparison
from irc.runtime.compare_training import compare_training
from irc.runtime.eager_training import LR, Trained, TrainingPlan, scale_of_plan
from irc.runtime.executors import executor_of, memory_of
from irc.runtime.inputs import InputSpec, given_inputs, specs_of, specs_of_parts
from irc.runtime.links import links_of
from irc.runtime.parts import Parts
from irc.runtime.pipeline import SEED, PipelineExecutor
from irc.runtime.processes import gather_seconds
from irc.runtime.recorder import Recorder
from irc.runtime.replicas import check_copies
from irc.runtime.report import RunReport, TrainingReport
from irc.runtime.segments import LoadSegments
from irc.runtime.spread_parts import SpreadParts
from irc.runtime.traced import traced
from irc.runtime.weights import load_weights, whole_weights
from irc.simulate.parts import predict_step
from irc.training.loss_scale import INVERSE, OVERFLOWS, SCALE

TIMED_STEPS = 3

Step: TypeAlias = Callable[[Sequence[torch.Tensor], int], tuple[torch.Tensor, bool]]


@dataclass(frozen=True)
class _Rank:
    """One rank that trains.

    Attributes:
        plan: what it trains with.
        specs: of the inputs of a step.
        run: a step on inputs and the number of the step; its loss, and whether it was skipped.
        recorded: makes the same, whose steps a recorder notes.
        device: where the functions run.
        parts: what the rank holds.
        bytes: what that and the functions' own memory take, by kind.
        weights: reads all weights whole, for eager training.
        mesh, predicted_s, cluster: for the report.
    """

    plan: TrainingPlan
    specs: Sequence[InputSpec]
    run: Step
    recorded: Callable[[Recorder], Step]
    device: torch.device
    parts: Parts
    bytes: Mapping[str, int]
    weights: Callable[[], dict[str, torch.Tensor]]
    mesh: str
    predicted_s: float | None
    cluster: str


def train(
    args: argparse.Namespace,
    loaded: LoadedPlan,
    rank: int,
    communicator: Communicator | None,
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
    specs, scale = specs_of(loaded), scale_of_plan(loaded)
    names = [spec.name for spec in specs]
    output_names = [plan.buffers[index].name for index in plan.outputs]

    def executed(recorder: Recorder | None) -> Step:
        options: dict[str, Any] = {"communicator": communicator, "load": load}
        run = executor_of(loaded, own, rank=rank, recorder=recorder, **options)

        def step(batch: Sequence[torch.Tensor], _: int) -> tuple[torch.Tensor, bool]:
            if scale is None:
                return run(*batch)[0], False
            inputs = dict(zip(names, batch, strict=True))
            inputs[SCALE], inputs[INVERSE] = scale.read()
            results = run(*inputs.values())
            overflows = results[output_names.index(OVERFLOWS)]
            scale.update(overflows)
            return results[0], bool(overflows)

        return step

    parts = Parts(plan.device_mesh, rank)
    parts.hold(plan, own)
    return _trained(
        args,
        _Rank(
            loaded,
            specs,
            executed(None),
            executed,
            memory_of(plan.backend),
            parts,
            {"stored": parts.num_bytes(), "arena": plan.arena_bytes},
            lambda: load_weights(loaded, None),
            plan.mesh,
            plan.predicted_s,
            plan.cluster,
        ),
        rank,
    )


def train_parts(args: argparse.Namespace, plan: PartsPlan, rank: int) -> RunReport | None:
    """Run the steps of this rank of a plan of several programs; rank 0 returns the report.

    Raises:
        IrcError: ``plan-corrupt`` where the folder does not say how the model is trained.
    """
    check_recipe(plan)
    specs = specs_of_parts(plan)
    parts = SpreadParts(plan, rank)
    for part in plan.parts_at(parts.place).values():
        for loaded in plan.parts[part].values():
            own = load_weights(loaded, parts.rank, verify=args.verify, held=parts.local)
            parts.hold(loaded.plan, own)
    links = links_of(plan, args.links) if args.links else None
    run, scale = PipelineExecutor(plan, parts, rank, links=links), scale_of_plan(plan)
    names = [spec.name for spec in specs]

    def step_of(run: PipelineExecutor) -> Step:
        def step(batch: Sequence[torch.Tensor], number: int) -> tuple[torch.Tensor, bool]:
            scales = None if scale is None else scale.read()
            loss = run(batch[:-1], batch[names.index(LR)], number, scales)
            if scale is None:
                return loss, False
            scale.update(run.overflows)
            return loss, bool(run.overflows)

        return step

    def recorded(recorder: Recorder) -> Step:
        return step_of(PipelineExecutor(plan, parts, rank, links=links, recorder=recorder))

    held = {
        "parameters": parts.num_bytes("parameter"),
        "states": parts.num_bytes("state"),
        "gradients": parts.num_bytes("accumulator"),
        "registers": run.register_bytes,
        "arena": run.arena_bytes,
    }
    cluster = plan.parts[0]["F"].plan.cluster
    predicted = predict_step(plan, find_cluster(cluster or THIS_HOST).fit(plan.mesh)).seconds
    return _trained(
        args,
        _Rank(
            plan, specs, step_of(run), recorded, memory_of(plan.backend), parts, held,
            lambda: _start(plan), plan.facts.mesh, predicted, of_all_kinds(cluster),
        ),
        rank,
    )  # fmt: skip


def _start(plan: PartsPlan) -> dict[str, torch.Tensor]:
    """Return what eager training starts from: all weights, and the seed where numbers are drawn."""
    tensors = whole_weights(plan)
    model = load_program(plan, forward_text(plan), FORWARD)
    if any(name == SEED for _, name, _ in arguments(entry(model))):
        tensors[SEED] = torch.zeros((), dtype=torch.int64)
    return tensors


def _trained(args: argparse.Namespace, own: _Rank, rank: int) -> RunReport | None:
    PROGRESS.info("batches of %d steps", args.steps)
    batches = [
        given_inputs(own.specs, args.inputs, args.seed + step, own.bytes["arena"])
        for step in range(args.steps)
    ]
    steps: list[tuple[torch.Tensor, bool]] = []
    for number, batch in enumerate(batches):
        tell_share("step", number + 1, len(batches))
        steps.append(_stepped(args, own, batch, number))
    PROGRESS.info("timing steps")
    losses = torch.stack([loss for loss, _ in steps])
    wholes = {name: own.parts.whole(name, everywhere=False) for name in own.parts.names}
    seconds = _timed(own, batches[-1])
    if args.trace:
        PROGRESS.info("a trace")
    notes = _traced(args, own, batches[-1], rank, seconds) if args.trace else ()
    held = {**own.bytes, "resident": _resident_bytes()}
    several = dist.is_initialized()
    all_seconds = gather_seconds(seconds) if several else [seconds]
    rows = {w: gather_seconds(float(n)) if several else [float(n)] for w, n in held.items()}
    if rank:
        return None
    after = {name: whole for name, whole in wholes.items() if whole is not None}
    trained = Trained(losses, after, [skipped for _, skipped in steps])
    if args.save:
        write_safetensors(Path(args.save), {**after, "losses": losses})
    training = TrainingReport(
        tuple(f"{float(loss):.6g}" for loss in losses),
        tuple({w: int(row[r]) for w, row in rows.items()} for r in range(len(all_seconds))),
    )
    return RunReport(
        own.mesh,
        torch.get_num_threads(),
        tuple(all_seconds),
        own.predicted_s,
        _compared(own, batches, trained) if args.compare else None,
        own.cluster,
        training,
        notes,
        args.links is not None,
    )


def _stepped(
    args: argparse.Namespace, own: _Rank, batch: Sequence[torch.Tensor], number: int
) -> tuple[torch.Tensor, bool]:
    """Make a step; compare copies where that is asked for."""
    result = own.run(batch, number)
    if args.check and (number + 1) % args.check == 0 and dist.is_initialized():
        check_copies(own.parts.copies(), f"after step {number + 1}")
    return result


def _traced(
    args: argparse.Namespace, own: _Rank, batch: Sequence[torch.Tensor], rank: int, seconds: float
) -> tuple[str, ...]:
    """Write the trace of a step, and return what is said of it."""
    mesh = Mesh.parse(own.mesh)
    recorder = Recorder.on(own.device, rank, mesh)
    step, still = own.recorded(recorder), _still(own, batch)
    return traced(
        args.trace,
        recorder,
        lambda: step(still, 0),
        args.digest,
        pipeline=isinstance(own.plan, PartsPlan),
        best_s=seconds,
    )


def _still(own: _Rank, batch: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return inputs of a step whose learning rate is zero, which keeps its numbers small."""
    pairs = zip(own.specs, batch, strict=True)
    return [torch.zeros_like(x) if spec.name == LR else x for spec, x in pairs]


def _timed(own: _Rank, batch: Sequence[torch.Tensor]) -> float:
    """Return the seconds of a step."""
    still = _still(own, batch)
    best = math.inf
    for _ in range(TIMED_STEPS):
        start = time.perf_counter()
        own.run(still, 0)
        best = min(best, time.perf_counter() - start)
    return best


def _compared(
    own: _Rank, batches: Sequence[Sequence[torch.Tensor]], trained: Trained
) -> Comparison:
    names = [spec.name for spec in own.specs]
    named = [dict(zip(names, batch, strict=True)) for batch in batches]
    return compare_training(own.plan, own.weights(), named, trained)


def _resident_bytes() -> int:
    """Return the most memory that this process has had."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
