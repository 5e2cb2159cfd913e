"""The sections of a plan of one program."""

from __future__ import annotations

from typing import Any

from irc.plan.native import FOLDER, MANIFEST
from irc.report.axes import MEANING, axis_roles
from irc.report.evidence import Evidence
from irc.report.html.collectives import collectives_section, line_traffic, reasons
from irc.report.html.element import Child, Element
from irc.report.html.figures import cluster_of, figures_of
from irc.report.html.head import head
from irc.report.html.kernels import kernels_section, ran
from irc.report.html.memory import memory_section, tenants_table
from irc.report.html.placements import placements_section
from irc.report.html.timeline import rows_of, timeline_section
from irc.report.module_tree import module_tree, taken_by
from irc.report.sizes import open_line
from irc.report.table import counted, percent, seconds, size
from irc.report.tenants import arena_peak
from irc.report.weights import entry_arguments
from irc.simulate.call_trace import call_events
from irc.simulate.held import held_bytes
from irc.simulate.plan import Contention, predict

APART = "The cluster's file is not here: what runs at a time is drawn as if alone."


def one_sections(evidence: Evidence, title: str) -> list[Element]:
    """Return the sections of a plan."""
    plan, figures = evidence.plan, figures_of(evidence)
    cluster = cluster_of(plan.cluster)
    contention = Contention.of(cluster, plan.device_mesh) if cluster else Contention()
    predicted = predict(plan, contention=contention)
    total, unit = predicted.seconds, figures.unit
    rows = rows_of(call_events(plan, predicted))
    alike = f"All {counted(figures.ranks, 'rank')} do the same." if figures.ranks > 1 else ""
    note = alike if cluster else f"{alike} {APART}".strip()
    tree = module_tree(entry_arguments(evidence), taken_by(plan))
    roles = {axis: MEANING[role] for axis, role in axis_roles(evidence).items()}
    peak = arena_peak(plan)
    held = [
        (at, num)
        for pool, at, num in held_bytes(predicted.actions, predicted.timeline)
        if pool == "arena"
    ]
    base = figures.held_bytes - plan.arena_bytes
    return [
        head(figures, title, _facts(evidence)),
        placements_section(plan.device_mesh, roles, tree, unit),
        timeline_section(rows, total, unit, note=note),
        memory_section(
            held, base, total, _memory_lead(evidence, unit, base),
            tenants_table(peak.tenants, peak.num_bytes) if peak else None, figures.capacity,
        ),
        kernels_section(ran([(evidence.loaded, 1)]), unit, plan.backend),
        collectives_section(line_traffic([(plan, 1)], contention, reasons(evidence)), unit),
    ]  # fmt: skip


def _memory_lead(evidence: Evidence, unit: str, base: int) -> str:
    plan, peak = evidence.plan, arena_peak(evidence.plan)
    text = f"A rank holds {size(base)} all the time: weights, states, inputs and outputs."
    if peak is None:
        return f"{text} Nothing lies in an arena."
    return (
        f"{text} The arena of a {unit} has {size(plan.arena_bytes)} (at least"
        f" {size(plan.arena_lower_bytes)}); most of it is alive, {size(peak.num_bytes)}, while"
        f" {peak.at} runs" + (f" ({peak.line})." if peak.line else ".")
    )


def _facts(evidence: Evidence) -> list[tuple[str, Child]]:
    """Return what else the head says: what repeats, why it was chosen, open sizes, machine code."""
    loaded = evidence.loaded
    facts: list[tuple[str, Child]] = []
    blocks = {name: n for name, n in evidence.counts.items() if name != "forward" and n > 1}
    if blocks:
        text = ", ".join(f"{name} runs {counted(n, 'time')}" for name, n in blocks.items())
        facts.append(("repeated blocks", text))
    if evidence.search:
        facts.append(("why this plan", _why(evidence.search)))
    if loaded.sized is not None:
        facts.append(("open sizes", open_line(loaded.sized.sizes)))
    if (codes := native_codes(evidence)) is not None:
        facts.append(("without torch", codes))
    return facts


def _why(search: dict[str, Any]) -> str:
    gap = float(search.get("gap", 0.0))
    proof = "proven optimal" if gap <= 1e-6 else f"at most {percent(gap, 1.0)} above the optimum"
    columns = counted(int(search.get("columns", 0)), "placement")
    text = f"of {columns} of ops, these take the least time by the model of costs, {proof}"
    if (least := search.get("objective_s")) is not None:
        text += f" (objective {seconds(float(least))})"
    return text


def native_codes(evidence: Evidence) -> Child:
    """Name the processors that the plan holds machine code for; None where it holds none."""
    folder = evidence.loaded.folder
    if folder is None or not (folder / FOLDER / MANIFEST).is_file():
        return None
    names = sorted(path.stem for path in (folder / FOLDER).glob("*.so"))
    return ["machine code for ", ", ".join(names)] if names else None
