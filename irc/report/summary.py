"""What ``irc compile`` prints: the plan in ten lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Protocol

from irc.cluster.load import find_cluster
from irc.dialects.types import ITEM_BYTES
from irc.ops.custom import assumed
from irc.plan.libraries import fall_backs, falls_back, library_steps, name_of
from irc.plan.load import LoadedPlan
from irc.plan.schema import Kernels, Plan, Start
from irc.report.kernels_for import kernels_note
from irc.report.sizes import open_line
from irc.report.unsplit import idle_lines


class Source(Protocol):
    """Where the program came from."""

    source: str


def summary(loaded: LoadedPlan, cluster: str, program: Source) -> str:
    """Describe a plan.

    Args:
        loaded: the plan.
        cluster: the name of the machines that it was priced for.
        program: says what was compiled.
    """
    plan = loaded.plan
    ranks = plan.device_mesh.num_ranks
    launches = [call for a in plan.actions if isinstance(a, Kernels) for call in a.calls]
    segments = sum(isinstance(a, Kernels) for a in plan.actions)
    lines = [
        ("program", program.source),
        (
            "mesh",
            f"{plan.mesh or 'one device'} ({ranks} rank{'s' * (ranks > 1)}), priced for {cluster}",
        ),
        *([] if ranks == 1 else [("split", _split(plan))]),
        *(("", line) for line in idle_lines(plan)),
        (
            "kernels",
            f"{len(plan.kernels)} for {plan.backend}, {len(launches)} launches"
            f" in {segments} segments",
        ),
        *_note(plan.backend, cluster),
        (
            "library",
            _counted(name_of(a) for a in library_steps(plan) if not falls_back(a)),
        ),
        ("fall-back", _fallbacks(plan)),
        ("assumed", _assumed(plan)),
        ("collectives", _collectives(plan)),
        *([] if loaded.sized is None else [("open sizes", open_line(loaded.sized.sizes))]),
        ("weights", f"{_megabytes(weight_bytes(plan))} a rank"),
        (
            "arena",
            f"{_megabytes(plan.arena_bytes)} a rank"
            f" (at least {_megabytes(plan.arena_lower_bytes)})",
        ),
        (
            "predicted",
            "unknown" if plan.predicted_s is None else f"{plan.predicted_s * 1e3:.3f} ms a call",
        ),
        ("hash", loaded.hash[:16]),
    ]
    return "\n".join(f"{name:<12}{text}" for name, text in lines)


def _note(backend: str, cluster: str) -> list[tuple[str, str]]:
    text = kernels_note(backend, find_cluster(cluster))
    return [("note", text)] if text else []


def _split(plan: Plan) -> str:
    """Say how much of what a plan is given and gives lies in parts on the ranks."""
    named = [plan.buffers[i] for i in (*plan.inputs, *plan.weights, *plan.outputs)]
    parts = sum(bool(buffer.placement) for buffer in named)
    # Small models cost less so than the exchange of parts would.
    none = "nothing: each rank has and computes the whole"
    return f"{parts} of {len(named)} inputs, weights and outputs" if parts else none


def _fallbacks(plan: Plan) -> str:
    """Name the ops without a form of irc's own that a library runs, and how they are placed."""
    steps = [step for step in library_steps(plan) if falls_back(step)]
    alone = sorted({name_of(step) for step in steps if "rule" in assumed(step.attrs)})
    note = f" (replicated, without a sharding rule: {', '.join(alone)})" if alone else ""
    return _counted(fall_backs(plan).elements()) + note


def _assumed(plan: Plan) -> str:
    """Name the library ops whose work nobody declared: the cost model estimates it."""
    steps = [step for step in library_steps(plan) if falls_back(step)]
    missing = [(name_of(step), set(assumed(step.attrs)) - {"rule"}) for step in steps]
    return _counted(f"{target} ({', '.join(sorted(what))})" for target, what in missing if what)


def weight_bytes(plan: Plan) -> int:
    """Return the bytes of weights that one rank holds."""
    held = [plan.buffers[i] for i in plan.weights]
    return sum(prod(b.shape) * ITEM_BYTES[b.dtype] for b in held)


def _collectives(plan: Plan) -> str:
    starts = [a for a in plan.actions if isinstance(a, Start)]
    sent = sum(plan.buffers[a.source].size_bytes for a in starts)
    names = _counted(f"{a.op.removeprefix('comm.')}[{a.attrs['axis']}]" for a in starts)
    return names + (f", {_megabytes(sent)} in all" if starts else "")


def _counted(names: Iterable[str]) -> str:
    counts = Counter(names)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.2f} MiB"
