"""The sections of a plan of several programs: stages of a pipeline, their schedule and channels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from irc.cluster.load import of_all_kinds
from irc.cluster.topology import Cluster
from irc.plan.load import LoadedPlan
from irc.plan.parts import PartsPlan
from irc.report.html.collectives import collectives_section, line_traffic
from irc.report.html.element import Child, Element, bar, code, e, rest, section, table
from irc.report.html.figures import cluster_of, figures_of_parts
from irc.report.html.head import head
from irc.report.html.kernels import kernels_section, ran
from irc.report.html.memory import memory_section
from irc.report.html.placements import placements_section
from irc.report.html.schedule import schedule_rows
from irc.report.html.timeline import rows_of, timeline_section
from irc.report.module_tree import Module, Taken, module_tree, plan_arguments, taken_by
from irc.report.parts_facts import (
    PartFacts,
    PartsFactsReport,
    gather_parts,
    runs_of,
    simulated_step,
)
from irc.report.table import counted, percent, seconds, size
from irc.report.weights import Argument
from irc.simulate.held import held_bytes
from irc.simulate.parts import contention_of, held_at
from irc.simulate.parts_trace import step_trace
from irc.simulate.plan import Contention, steps
from irc.simulate.schedule import Simulation, stream_of

SHOWN = 60
MOST_TEXT = 20_000
"""Characters of a schedule's text that are shown."""
OF_STAGES = (
    "Times are of all stages together, each on its own ranks; the mesh is that of one stage."
)
MOST_OPENED = 100_000
"""Steps of functions, all runs together: of more, a picture has no room for any of them."""


def parts_sections(plan: PartsPlan, title: str) -> list[Element]:
    """Return the sections of a plan.

    Raises:
        IrcError: ``cluster-unknown`` or ``file-missing``: of its cluster nothing is known here.
    """
    step = simulated_step(plan)
    facts = gather_parts(plan, step)
    figures = figures_of_parts(plan, facts, step)
    cluster = cluster_of(of_all_kinds(next(iter(plan.parts[0].values())).plan.cluster))
    runs = list(_functions(plan))
    contention = contention_of(plan, cluster.fit(plan.mesh)) if cluster else Contention()
    sections = [
        head(figures, title, _facts(plan, facts)),
        _stages(facts),
        placements_section(plan.part_mesh, {}, _tree(plan), "step", OF_STAGES),
        _memory(facts),
        _channels(facts),
        kernels_section(ran(runs), "step", plan.backend),
        collectives_section(line_traffic([(f.plan, n) for f, n in runs], contention), "step"),
    ]
    if cluster is not None:
        sections.insert(2, _timeline(plan, step, cluster.fit(plan.mesh)))
        sections.insert(5, _memory_over_time(plan, step, figures.capacity))
    return sections


def _tree(plan: PartsPlan) -> Module:
    """Return the modules of all stages, with what their functions take in a step."""
    arguments: dict[str, Argument] = {}
    taken: dict[str, Taken] = {}
    for part in plan.parts:
        for kind, loaded in part.items():
            arguments |= {one.name: one for one in plan_arguments(loaded.plan)}
            for module, own in taken_by(loaded.plan).items():
                taken.setdefault(module, Taken()).add(own, runs_of(plan, kind))
    return module_tree(list(arguments.values()), taken)


def _memory_over_time(plan: PartsPlan, of: Simulation, capacity: int | None) -> Element:
    """Draw the rank that holds most."""
    fullest = max(range(len(plan.ranks)), key=of.peak_bytes)
    own = stream_of(fullest, 0, of.columns)
    held = [(at, n) for pool, at, n in held_bytes(of.actions, of.timeline) if pool == own]
    always = float(held_at(plan, fullest).weights)
    lead = (
        f"Of rank {plan.ranks[fullest][0]}, which holds most: {size(always)} all the time, of"
        " weights, states and gradients. Values in registers, and the arena of the function that"
        " runs, come and go."
    )
    return memory_section(held, always, of.seconds, lead, None, capacity, "over-time")


def _functions(plan: PartsPlan) -> Iterator[tuple[LoadedPlan, int]]:
    for part in plan.parts:
        for kind, loaded in part.items():
            yield loaded, runs_of(plan, kind)


def _facts(plan: PartsPlan, facts: PartsFactsReport) -> list[tuple[str, Child]]:
    text = plan.schedule_text
    shown = text[:MOST_TEXT]
    more = "" if shown == text else "\n... the rest stands in schedule.txt"
    return [
        ("schedule", [facts.schedule, e("details", e("summary", "its text"),
                      e("pre", code(f"{shown}{more}"), tabindex=0))]),
        ("micro-batches", f"{facts.micro_batches}"),
        ("trained on", facts.loss),
        *([("shared by stages", ", ".join(facts.shared))] if facts.shared else []),
    ]  # fmt: skip


def _stages(facts: PartsFactsReport) -> Element:
    slowest = max((_work(part) for part in facts.parts), default=0.0)
    rows = [
        (
            _numbers(part.stages),
            _numbers(part.ranks),
            [e("div", ", ".join(part.layers)), _runs(part)],
            f"{part.num_parameters:,}",
            seconds(_work(part)),
            bar(_work(part), slowest, "compute"),
            percent(part.idle, 1.0),
        )
        for part in facts.parts
    ]
    heads = ("stage", "ranks", "layers", "parameters", "work a step", "", "idle")
    lead = (
        f"The model is cut into {counted(len(facts.parts), 'part')}, each on ranks of its own."
        f" Micro-batches of a step, of which there are {facts.micro_batches}, pass through them."
    )
    return section(
        "stages", "Stages", lead, table(heads, rows, right="rllrrlr", label="Stages of the model")
    )


def _work(part: PartFacts) -> float:
    return sum(each.runs * (each.predicted_s or 0.0) for each in part.functions)


def _runs(part: PartFacts) -> Element:
    rows = [
        (code(f.kind), f"{f.runs}", seconds(f.predicted_s or 0.0), f"{f.kernels}",
         f"{f.collectives}", size(f.arena_bytes))
        for f in part.functions
    ]  # fmt: skip
    heads = ("function", "runs a step", "each", "kernels", "collectives", "arena")
    inside = table(heads, rows, right="lrrrrr", label="Functions of a stage")
    return e("details", e("summary", "its functions"), inside)


def _memory(facts: PartsFactsReport) -> Element:
    most = max((_held(part) for part in facts.parts), default=0)
    rows = [
        (
            _numbers(part.stages), size(part.parameter_bytes), size(part.state_bytes),
            size(part.accumulator_bytes), [size(part.register_bytes), _registers(part)],
            size(part.arena_bytes), size(_held(part)), bar(_held(part), most, "weight"),
        )
        for part in facts.parts
    ]  # fmt: skip
    heads = ("stage", "parameters", "states", "gradients", "registers", "arena", "in all", "")
    lead = (
        "What a rank of each stage holds. Registers hold what one function leaves for another:"
        " saved activations, and values of other stages; each has as many places as"
        " micro-batches need at a time."
    )
    label = "Memory of a rank of each stage"
    return section("memory", "Memory", lead, table(heads, rows, right="rrrrrrr", label=label))


def _held(part: PartFacts) -> int:
    stored = part.parameter_bytes + part.state_bytes + part.accumulator_bytes
    return stored + part.register_bytes + part.arena_bytes


def _registers(part: PartFacts) -> Element | None:
    if not part.registers:
        return None
    rows = sorted(part.registers, key=lambda r: -r.slots * r.bytes)
    cells = [
        (code(r.name), code(f"{r.dtype}{list(r.shape)}"), f"{r.slots}", size(r.slots * r.bytes))
        for r in rows[:SHOWN]
    ]
    inside = table(("register", "type", "places", "bytes"), cells, right="llrr", label="Registers")
    return e("details", e("summary", "each"), inside, rest(len(rows), SHOWN, "register"))


def _timeline(plan: PartsPlan, simulated: Simulation, cluster: Cluster) -> Element:
    """Draw one rank of each place in the pipeline: the others of a place do the same."""
    alike = len(plan.ranks[0])
    note = f"One of {alike} ranks of each place in the pipeline is drawn." if alike > 1 else ""
    if sum(runs * len(steps(loaded.plan)) for loaded, runs in _functions(plan)) > MOST_OPENED:
        rows = schedule_rows(plan, simulated)
        note += " The functions of stages are drawn whole, without the kernels in them."
    else:
        names = {ranks[0]: f"rank {ranks[0]}" for ranks in plan.ranks}
        events = [e for e in step_trace(plan, simulated, cluster).events if e.rank in names]
        events.sort(key=lambda event: event.rank)
        rows = [
            row
            for rank, own in groupby(events, key=lambda event: event.rank)
            for row in rows_of(own, names[rank])
        ]
    return timeline_section(rows, simulated.seconds, "step", note=note.strip())


def _channels(facts: PartsFactsReport) -> Element:
    rows = [
        (code(c.name), f"{c.producer} to {c.consumer}", code(f"{c.dtype}{list(c.shape)}"),
         code(c.before), code(c.after), size(c.bytes))
        for c in sorted(facts.channels, key=lambda c: -c.bytes)[:SHOWN]
    ]  # fmt: skip
    heads = ("value", "stages", "type", "lies there as", "is wanted as", "bytes of a micro-batch")
    lead = "Values that go from a stage to another; bytes are of all ranks together."
    return section(
        "channels", "Channels", lead,
        table(heads, rows, right="lllllr", label="Channels between stages"),
        rest(len(facts.channels), SHOWN, "channel"),
    )  # fmt: skip


def _numbers(numbers: tuple[int, ...]) -> str:
    if len(numbers) > 4:
        return f"{numbers[0]}, {numbers[1]}, ... {numbers[-1]} ({len(numbers)})"
    return ", ".join(map(str, numbers))
