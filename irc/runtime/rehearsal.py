"""Rehearsing one rank of a plan of any size, alone: its kernels, streams and memory are real.

The other ranks are fake (:mod:`irc.runtime.fake_peers`). What a plan's kernels are for decides
where: a GPU's run on the GPU at hand; where there is none, their loops are compiled for the host.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from irc.cluster.host import memory_bytes, processor
from irc.cluster.load import of_all_kinds
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.logs import PROGRESS
from irc.plan.load import LoadedPlan
from irc.plan.parts import PartsPlan
from irc.plan.schema import Plan
from irc.runtime.code import asked
from irc.runtime.drawn_weights import drawn_weights
from irc.runtime.executors import driver_of, memory_of
from irc.runtime.fake_peers import FakeCommunicator, FakePeers
from irc.runtime.host_kernels import host_segments
from irc.runtime.inputs import drawn_inputs, specs_of, specs_of_parts
from irc.runtime.links import Links, links_of
from irc.runtime.memory_needed import needed_bytes
from irc.runtime.pipeline import LR, PipelineExecutor
from irc.runtime.recorder import Recorder
from irc.runtime.rehearsal_report import Rehearsal
from irc.runtime.rehearsal_times import Times, times_of
from irc.runtime.rehearsed_memory import Resident, held_bytes, taken_beside
from irc.runtime.segments import DEVICE_BACKENDS
from irc.runtime.spread_parts import SpreadParts
from irc.runtime.torch_driver import TorchDriver
from irc.trace.rows import Recorded

BESIDE = "beside"
"""What libraries allocate in a step, of which a plan says nothing."""


@dataclass(frozen=True)
class Stage:
    """One rank that is ready to run.

    Attributes:
        step: runs a step, or a call.
        predicted: bytes by kind.
        held: tensors that it holds all the time, by the same kinds.
    """

    step: Callable[[], object]
    predicted: dict[str, int]
    held: Callable[[], dict[str, list[torch.Tensor]]]


def rehearse(
    plan: LoadedPlan | PartsPlan,
    rank: int,
    *,
    seed: int = 0,
    micro_batches: int | None = None,
    links: bool = False,
) -> tuple[Rehearsal, Recorded]:
    """Run one rank of a plan here, without the others.

    A step runs twice: once while memory is watched, once while each launch is timed.

    Args:
        plan: of any number of ranks; of fixed sizes.
        rank: which.
        seed: of random inputs.
        micro_batches: how many of a step's are run; by default all.
        links: collectives and messages take as long as on the links of the plan's cluster.

    Returns:
        What it took, and the notes of the timed step.

    Raises:
        IrcError: ``rehearsal-rank``, ``rehearsal-unsupported``, ``memory-exceeded``,
            ``option-value``; what loading its kernels raises.
    """
    mesh = plan.mesh if isinstance(plan, PartsPlan) else plan.plan.device_mesh
    check_rank(mesh, rank)
    device, is_host = place_of_kernels(_first(plan).backend)
    check_room(plan, rank, device)
    carried = links_of(plan) if links else None
    recorder = Recorder.on(device, rank, mesh)
    PROGRESS.info("weights and kernels")
    with Resident() as resident:
        if isinstance(plan, PartsPlan):
            own = _of_parts(plan, rank, device, is_host, recorder, carried, seed, micro_batches)
        else:
            if micro_batches is not None:
                raise _no_micro_batches()
            own = _of_program(plan, rank, device, is_host, recorder, carried, seed)
        PROGRESS.info("a step, whose memory is watched")
        beside = taken_beside(own.step, device)
    PROGRESS.info("a step, whose launches are timed")
    noted = recorder.record(own.step)
    measured = {kind: held_bytes(tensors) for kind, tensors in own.held().items()}
    times: Times = times_of(plan, rank, noted)
    first = _first(plan)
    run = None
    if isinstance(plan, PartsPlan):
        count = plan.num_micro_batches
        run = (min(micro_batches or count, count), count)
    report = Rehearsal(
        mesh=str(mesh),
        rank=rank,
        ranks=mesh.num_ranks,
        cluster=of_all_kinds(first.cluster),
        device=_name_of(device),
        is_host=is_host,
        layers=None,
        micro_batches=run,
        predicted=own.predicted,
        measured={**measured, BESIDE: beside},
        resident=resident.grown if device.type == "cpu" else None,
        functions=times.functions,
        actions=times.actions,
        exposed_s=times.exposed_s,
        links=links,
    )
    return report, noted


def check_rank(mesh: Mesh, rank: int) -> None:
    """Refuse a rank that a plan has not.

    Raises:
        IrcError: ``rehearsal-rank``.
    """
    if not 0 <= rank < mesh.num_ranks:
        raise IrcError(
            "rehearsal-rank",
            f"the plan has no rank {rank}",
            because=f"its mesh is {mesh or 'one device'}: ranks are 0 to {mesh.num_ranks - 1}",
            help="--rank 0 is on the first stage; irc explain plan says what each rank does",
        )


def place_of_kernels(backend: str) -> tuple[torch.device, bool]:
    """Return where a plan's kernels are rehearsed, and whether they are written for the host."""
    if backend not in DEVICE_BACKENDS:
        return torch.device("cpu"), False
    try:
        return memory_of(backend), False
    except IrcError as error:
        if error.code != "device-missing":
            raise
        return torch.device("cpu"), True


def room_on(device: torch.device) -> int:
    """Return the bytes of a device that are there for a rehearsal."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return memory_bytes()


def check_room(plan: LoadedPlan | PartsPlan, rank: int, device: torch.device) -> None:
    """Refuse a rank that the device has no memory for, before any is allocated.

    Raises:
        IrcError: ``memory-exceeded``.
    """
    needed, room = sum(needed_bytes(plan, rank).values()), room_on(device)
    if needed > room:
        raise IrcError(
            "memory-exceeded",
            f"rank {rank} of the plan holds {needed / 2**30:.3g} GiB, and here are "
            f"{room / 2**30:.3g} GiB",
            because=[f"{kind}: {n} bytes" for kind, n in needed_bytes(plan, rank).items()],
            help="leave out layers: --layers 1",
        )


def _of_program(
    loaded: LoadedPlan,
    rank: int,
    device: torch.device,
    is_host: bool,
    recorder: Recorder,
    links: Links | None,
    seed: int,
) -> Stage:
    if loaded.sized is not None:
        raise IrcError(
            "rehearsal-unsupported",
            "the plan has open sizes, and a rehearsal is of numbers",
            help="compile it with its sizes: irc compile --size NAME=N; or run it: irc run PLAN",
        )
    loaded = asked(loaded)
    plan = loaded.plan
    with torch.device(device):
        weights = drawn_weights(loaded, rank, device)
    alone: Any = FakeCommunicator(plan.device_mesh, rank)
    if links is not None:
        alone = links.collectives(alone, plan.device_mesh, rank)
    options: dict[str, Any] = {
        "rank": rank,
        "communicator": alone,
        "recorder": recorder,
    }
    driver = (
        TorchDriver(weights, load=host_segments, **options)
        if is_host
        else driver_of(plan.backend, weights, **options)
    )
    run = driver.bind(loaded)
    prepared = run.prepare()
    lease = run.new_lease()
    run.leases.append(lease)
    specs = specs_of(loaded)
    inputs = [
        (value if spec.known is None else spec.known).to(device)
        for spec, value in zip(specs, drawn_inputs(specs, seed), strict=True)
    ]

    def held() -> dict[str, list[torch.Tensor]]:
        kinds = {"weights": [*weights.values()], "prepared": [*prepared.values()]}
        kinds["arena"] = [lease.frame.arena]
        return {kind: tensors for kind, tensors in kinds.items() if tensors}

    return Stage(lambda: run(*inputs), needed_bytes(loaded, rank), held)


def _of_parts(
    plan: PartsPlan,
    rank: int,
    device: torch.device,
    is_host: bool,
    recorder: Recorder,
    links: Links | None,
    seed: int,
    most: int | None,
) -> Stage:
    plan = replace(plan, parts=tuple({k: asked(p) for k, p in part.items()} for part in plan.parts))
    parts = SpreadParts(plan, rank)
    with torch.device(device):
        for part in plan.parts_at(parts.place).values():
            for loaded in plan.parts[part].values():
                own = drawn_weights(loaded, parts.rank, device, parts.local)
                parts.hold(loaded.plan, own)
    run = PipelineExecutor(
        plan,
        parts,
        rank,
        FakePeers(plan, rank, links),
        load=host_segments if is_host else None,
        recorder=recorder,
        most=most,
    )
    specs = specs_of_parts(plan)
    inputs = [
        value if spec.known is None else spec.known
        for spec, value in zip(specs, drawn_inputs(specs, seed), strict=True)
    ]
    names = [spec.name for spec in specs]
    lr = inputs[names.index(LR)]
    return Stage(
        lambda: run([x.to(device) for x in inputs[:-1]], lr.to(device)),
        needed_bytes(plan, rank),
        lambda: {"weights": [*parts.local.values()], **run.held},
    )


def _no_micro_batches() -> IrcError:
    return IrcError(
        "option-value",
        "--micro-batches is of plans of several programs, and this one runs its step as a whole",
        help="leave it out",
    )


def _first(plan: LoadedPlan | PartsPlan) -> Plan:
    return plan.plan if isinstance(plan, LoadedPlan) else next(iter(plan.parts[0].values())).plan


def _name_of(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{processor() or platform.machine()}, {torch.get_num_threads()} threads"
