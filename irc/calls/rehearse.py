"""Rehearsing a rank of a plan's folder, with as many of its layers as fit here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from irc.calls.smaller_plan import smaller_plan
from irc.errors import IrcError
from irc.frontends.torch.named import import_all
from irc.plan.host import is_host
from irc.plan.load import LoadedPlan, load_plan
from irc.plan.parts import PartsPlan
from irc.plan.parts_files import is_parts, load_parts
from irc.runtime.launch import check_writable
from irc.runtime.memory_needed import needed_bytes
from irc.runtime.rehearsal import check_rank, place_of_kernels, rehearse, room_on
from irc.trace.form import Trace
from irc.trace.rows import Recorded, events_of
from irc.trace.write import to_json, write_trace

if TYPE_CHECKING:
    from irc.runtime.rehearsal_report import Rehearsal


def rehearse_plan(
    folder: str | Path,
    rank: int = 0,
    *,
    layers: int | None = None,
    micro_batches: int | None = None,
    seed: int = 0,
    links: bool = False,
    trust: bool = False,
    imports: Sequence[str] = (),
    trace: str | None = None,
) -> Rehearsal:
    """Run one rank of a plan of any size on this machine, without the other ranks.

    Its kernels, streams, registers and arena are real. Collectives have the right shapes and give
    the rank its own data; weights that the folder has no values of are drawn. Kernels for a GPU run
    on the GPU at hand; where there is none, their loops are compiled for the host.

    Args:
        folder: of the plan.
        rank: which.
        layers: plan the model with so many equal layers (in each stage), laid out as in the plan.
        micro_batches: of a plan of several programs, how many of a step's are run; default all.
        seed: of random inputs.
        links: collectives and messages take as long as on the links of the plan's cluster.
        trust: run the plan's code as it is, whoever made it.
        imports: files and modules to import before.
        trace: a file for what the rank does in a step, as Chrome trace events.

    Raises:
        IrcError: ``rehearsal-rank`` for a rank that the plan has not; ``memory-exceeded`` with the
            layers that fit; ``rehearsal-layers``, ``rehearsal-unsupported``; what loading the plan
            raises.
    """
    for option, number in {"layers": layers, "micro-batches": micro_batches}.items():
        if number is not None and number < 1:
            raise IrcError("option-value", f"--{option} {number}: it is 1 or more")
    if trace is not None:
        check_writable(Path(trace))
    import_all(imports)
    whole = _loaded(folder, trust=trust)
    mesh = whole.mesh if isinstance(whole, PartsPlan) else whole.plan.device_mesh
    check_rank(mesh, rank)
    plan, left = (whole, None) if layers is None else smaller_plan(whole, layers)
    _check_room(whole, plan, rank, layers)
    report, noted = rehearse(plan, rank, seed=seed, micro_batches=micro_batches, links=links)
    if left is not None:
        report = replace(report, layers=left.layers)
    if trace is None:
        return report
    note = _write(trace, rank, noted, plan, str(mesh))
    return replace(report, notes=(*report.notes, note))


def _loaded(folder: str | Path, *, trust: bool) -> LoadedPlan | PartsPlan:
    if is_host(folder):
        raise IrcError(
            "rehearsal-unsupported",
            f"'{folder}' holds a host program, which is for one rank",
            help=f"rehearse a region: irc run {folder}/regions/NAME --comm fake; or run it whole",
        )
    if is_parts(folder):
        return load_parts(folder, trust=trust)
    return load_plan(folder, trust=trust)


def _check_room(
    whole: LoadedPlan | PartsPlan, plan: LoadedPlan | PartsPlan, rank: int, layers: int | None
) -> None:
    """Refuse what this machine has no memory for, and say how many layers it has memory for.

    Raises:
        IrcError: ``memory-exceeded``.
    """
    device, _ = place_of_kernels(_backend(plan))
    needed, room = needed_bytes(plan, rank), room_on(device)
    if sum(needed.values()) <= room:
        return
    raise IrcError(
        "memory-exceeded",
        f"rank {rank} holds {_gib(sum(needed.values()))}, and here are {_gib(room)}",
        because=[f"{kind}: {_gib(size)}" for kind, size in needed.items()],
        help=_advice(whole, rank, room, layers),
    )


def _advice(whole: LoadedPlan | PartsPlan, rank: int, room: int, layers: int | None) -> str:
    """Say how many layers fit: what a rank holds grows by the same for each."""
    if layers == 1:
        return "one layer is too much: rehearse it on a machine with more memory"
    try:
        one, two = (
            sum(needed_bytes(smaller_plan(whole, count)[0], rank).values()) for count in (1, 2)
        )
    except IrcError as error:
        return f"layers cannot be left out: {error.message}"
    if one > room:
        return "a single layer is too much: rehearse it on a machine with more memory"
    fits = 1 + (room - one) // max(two - one, 1)
    taken = _gib(one + (fits - 1) * (two - one))
    return f"leave out layers: {fits} fit (--layers {fits}), and take {taken}"


def _backend(plan: LoadedPlan | PartsPlan) -> str:
    return plan.backend if isinstance(plan, PartsPlan) else plan.plan.backend


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.3g} GiB"


def _write(path: str, rank: int, noted: Recorded, plan: LoadedPlan | PartsPlan, mesh: str) -> str:
    """Write the trace of one rank, and return what is said of it."""
    events, step_s = events_of({rank: noted}, pipeline=isinstance(plan, PartsPlan))
    notes = {"rehearsal": f"rank {rank} alone: the others are fake"}
    trace = Trace("measured", tuple(events), step_s, plan.hash, mesh, 1, notes=notes)
    write_trace(path, to_json(trace))
    return f"trace      {path}: {len(events)} events"
