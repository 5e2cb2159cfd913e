"""One process of a run: what torchrun starts, ``python -m irc.runtime.worker PLAN``.

All ranks compare the hash of their plan before anything else; then each loads its slices of the
weights, runs, and rank 0 reports. An error is printed by the rank that has it, without a traceback.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.errors import record

from irc.cluster.cpus import bind_crowded
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.frontends.torch.named import import_all
from irc.logs import PROGRESS
from irc.plan.load import LoadedPlan, load_plan
from irc.plan.parts import PartsPlan
from irc.plan.parts_files import is_parts, load_parts
from irc.plan.training import recipe_of_plan
from irc.runtime.arguments import held_parts
from irc.runtime.code import asked
from irc.runtime.collectives import Communicator, TorchCommunicator
from irc.runtime.compare import compare
from irc.runtime.executors import executor_of, memory_of
from irc.runtime.inputs import inputs_for, read_inputs
from irc.runtime.links import links_of
from irc.runtime.network_threads import local_place
from irc.runtime.processes import (
    agree,
    check_world,
    end_with_parent,
    gather_seconds,
    joined,
    place_of,
    threads_per_process,
)
from irc.runtime.recorder import Recorder
from irc.runtime.report import RunReport
from irc.runtime.segments import LoadSegments, load_segments
from irc.runtime.told import tell_parent
from irc.runtime.traced import traced
from irc.runtime.train_plan import train, train_parts
from irc.runtime.watch import tell_by
from irc.runtime.weights import load_weights

REPORT_VARIABLE = "IRC_REPORT"
"""A folder for reports and errors, where `irc run` reads them."""

TIMED_CALLS = 5
STEPS = 3
"""Of training, that are compared with eager's."""


def parser() -> argparse.ArgumentParser:
    """Return the options of a worker."""
    options = argparse.ArgumentParser(
        prog="irc.runtime.worker", description="Run one rank of a plan."
    )
    options.add_argument("plan", metavar="PLAN", help="the folder of the plan")
    options.add_argument("--inputs", metavar="F.npz", help="the inputs (default: random ones)")
    options.add_argument("--seed", type=int, default=0, help="of random inputs (default: 0)")
    options.add_argument(
        "--compare", action="store_true", help="compare with the model run eagerly"
    )
    options.add_argument("--save", metavar="F.safetensors", help="write the outputs (rank 0)")
    options.add_argument("--size", metavar="NAME=N", action="append", default=[])
    options.add_argument("--trust", action="store_true", help="run its code, whoever made it")
    options.add_argument("--verify", action="store_true", help="compare weights with their digests")
    options.add_argument("--import", metavar="FILE.py|MODULE", dest="imports", action="append",
                         default=[], help="import it before")  # fmt: skip
    options.add_argument("--steps", type=int, default=STEPS, help="of a plan of training")
    options.add_argument("--check", type=int, default=0, help="compare copies every so many steps")
    options.add_argument(
        "--trace", metavar="FILE", help="write what each rank does in a call (rank 0)"
    )
    options.add_argument(
        "--links", metavar="FOLDER", help="as slow as the cluster's; ranks share the folder"
    )
    return options


def run_rank(args: argparse.Namespace, load: LoadSegments = load_segments) -> RunReport | None:
    """Run this process's rank; rank 0 returns the report.

    Raises:
        IrcError: the plan, the processes or the inputs do not fit.
    """
    rank, world = place_of(os.environ)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    torch.set_num_threads(threads_per_process(local))
    # Of a launcher that does not say which ranks share this machine, they cannot divide it.
    if (own := local_place(os.environ)) is not None:
        bind_crowded(*own)
    import_all(args.imports)
    if world == 1:
        loaded = _load(args.plan, trust=args.trust)
        check_world(_mesh(loaded), world)
        args.digest = loaded.hash
        if isinstance(loaded, PartsPlan):
            return train_parts(args, loaded, rank)
        loaded = _sized(loaded, args)
        if recipe_of_plan(loaded) is not None:
            return train(args, loaded, rank, None, load)
        return _report(args, loaded, *_timed(args, loaded, rank, None, load))
    loaded, problem = _try_load(args.plan, trust=args.trust)
    # Before joining: with another number of processes, some would wait for ever.
    if loaded is not None:
        check_world(_mesh(loaded), world)
    with joined(rank, world):
        try:
            agree(None if loaded is None else loaded.hash)
        except IrcError:
            if problem is None:
                raise
        if loaded is None:
            raise problem or AssertionError("no plan and no problem")
        args.digest = loaded.hash
        if isinstance(loaded, PartsPlan):
            return train_parts(args, loaded, rank)
        communicator: Communicator = TorchCommunicator.of(loaded.plan.device_mesh, rank)
        if args.links:
            links = links_of(loaded, args.links)
            communicator = links.collectives(communicator, loaded.plan.device_mesh, rank)
        if recipe_of_plan(loaded) is not None:
            return train(args, loaded, rank, communicator, load)
        inputs, outputs, seconds, notes = _timed(args, loaded, rank, communicator, load)
        all_seconds = gather_seconds(seconds[0])
    # The comparison takes its time: nobody waits for it.
    return _report(args, loaded, inputs, outputs, all_seconds, notes) if rank == 0 else None


def _sized(loaded: LoadedPlan, args: argparse.Namespace) -> LoadedPlan:
    """Return the plan for the sizes of the run.

    Raises:
        IrcError: ``size-unknown``, ``size-outside``, ``input-mismatch``.
    """
    sizes = {name: int(n) for name, _, n in (text.rpartition("=") for text in args.size)}
    if loaded.sized is None:
        if sizes:
            raise IrcError(
                "size-unknown", "all sizes of the plan are fixed", help="leave out --size"
            )
        return loaded
    from irc.runtime.open_executor import BoundPlans

    bound = BoundPlans(loaded)
    if args.inputs is None:
        return bound.with_program(bound.values_of(sizes))
    shapes = [tuple(tensor.shape) for tensor in read_inputs(loaded, args.inputs)]
    return bound.with_program(bound.values(shapes))


def _load(folder: str, *, trust: bool) -> LoadedPlan | PartsPlan:
    if not is_parts(folder):
        return asked(load_plan(folder, trust=trust))
    plan = load_parts(folder, trust=trust)
    parts = ({kind: asked(loaded) for kind, loaded in part.items()} for part in plan.parts)
    return replace(plan, parts=tuple(parts))


def _mesh(loaded: LoadedPlan | PartsPlan) -> Mesh:
    return loaded.mesh if isinstance(loaded, PartsPlan) else loaded.plan.device_mesh


def _try_load(folder: str, *, trust: bool) -> tuple[LoadedPlan | PartsPlan | None, IrcError | None]:
    try:
        return _load(folder, trust=trust), None
    except IrcError as error:
        return None, error


def _timed(
    args: argparse.Namespace,
    loaded: LoadedPlan,
    rank: int,
    communicator: Communicator | None,
    load: LoadSegments,
) -> tuple[list[torch.Tensor], tuple[torch.Tensor, ...], list[float], tuple[str, ...]]:
    """Return inputs, the outputs of the first call, the seconds of a later, notes on a trace."""
    inputs = inputs_for(loaded, args.inputs, args.seed)
    PROGRESS.info("weights and kernels")
    weights = load_weights(loaded, rank, verify=args.verify)
    options: dict[str, Any] = {"rank": rank, "communicator": communicator, "load": load}
    run = executor_of(loaded, weights, **options)
    PROGRESS.info("the first call")
    outputs = run(*held_parts(loaded.plan, inputs, rank))
    PROGRESS.info("timing calls")
    best = math.inf
    for _ in range(TIMED_CALLS):
        parts = held_parts(loaded.plan, inputs, rank)
        start = time.perf_counter()
        run(*parts)
        best = min(best, time.perf_counter() - start)
    if not args.trace:
        return inputs, outputs, [best], ()
    PROGRESS.info("a trace")
    plan = loaded.plan
    recorder = Recorder.on(memory_of(plan.backend), rank, plan.device_mesh)
    recorded = executor_of(loaded, weights, **options, recorder=recorder)
    parts = held_parts(plan, inputs, rank)
    notes = traced(
        args.trace, recorder, lambda: recorded(*parts), args.digest, pipeline=False, best_s=best,
        sizes=args.size,
    )  # fmt: skip
    return inputs, outputs, [best], notes


def _report(
    args: argparse.Namespace,
    loaded: LoadedPlan,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    seconds: Sequence[float],
    notes: tuple[str, ...] = (),
) -> RunReport:
    if args.save:
        from irc.plan.weights import write_safetensors

        named = [loaded.plan.buffers[i].name for i in loaded.plan.outputs]
        write_safetensors(Path(args.save), dict(zip(named, outputs, strict=True)))
    comparison = None
    if args.compare:
        PROGRESS.info("the model, eagerly")
        comparison = compare(loaded, load_weights(loaded, None), inputs, outputs)
    plan = loaded.plan
    threads = torch.get_num_threads()
    return RunReport(
        plan.mesh, threads, tuple(seconds), plan.predicted_s, comparison, plan.cluster, notes=notes,
        links=args.links is not None,
    )  # fmt: skip


def main(argv: Sequence[str] | None = None, load: LoadSegments = load_segments) -> int:
    """Run a rank and return the exit status."""
    args = parser().parse_args(argv)
    end_with_parent()
    folder = os.environ.get(REPORT_VARIABLE)
    if folder and os.environ.get("RANK") == "0":
        tell_parent(Path(folder))
    tell_by(lambda error: _tell(error, folder))
    try:
        report = record(run_rank)(args, load)
    except IrcError as error:
        _tell(error, folder)
        return error.exit_code
    if report is None:
        return 0
    if folder:
        Path(folder, "report.json").write_text(report.to_json(), encoding="utf-8")
    else:
        print(report)
    return report.exit_code


def _tell(error: IrcError, folder: str | None) -> None:
    rank = os.environ.get("RANK", "0")
    if not folder:
        print(f"[rank {rank}] {error.render()}", file=sys.stderr)
        return
    parts = [error.code, error.message, error.where, list(error.because), error.help]
    place = Path(folder, f"error-{rank}.json")
    # A reader must never see half of it.
    temporary = place.with_suffix(".part")
    temporary.write_text(json.dumps(parts), encoding="utf-8")
    temporary.rename(place)


if __name__ == "__main__":
    sys.exit(main())
