"""A plan, or what was compiled of a module, as a notebook shows it: one compact piece of HTML.

The piece brings its own stylesheet, whose rules hold inside of it alone, loads nothing and has no
scripts. Names of the model are text of its elements, and cannot become markup.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files

from irc.cluster.load import THIS_HOST
from irc.dialects.placement import Mesh
from irc.plan.any_plan import AnyPlan
from irc.plan.host import HostPlan
from irc.plan.load import LoadedPlan
from irc.plan.parts import PartsPlan
from irc.plan.schema import Call
from irc.report.calls import ModuleReport
from irc.report.html.element import Child, Element, code, e, table, text_of
from irc.report.html.figures import Figures, figures_of_host, figures_of_one, figures_of_parts
from irc.report.html.head import memory_figure, sentence, time_figure
from irc.report.html.placements import placed_on, ranks_picture
from irc.report.html.schedule import schedule_rows
from irc.report.html.timeline import drawn
from irc.report.module_tree import ROLES, plan_arguments
from irc.report.parts_facts import gather_parts, simulated_step
from irc.report.sizes import open_line
from irc.report.table import counted, size
from irc.report.weights import Argument, alike, merged_names
from irc.simulate.plan import steps
from irc.simulate.schedule import Simulation

SHOWN = {"input": 6, "weight": 14, "output": 6}
"""Rows of the table of placements, by what they are of."""
MOST_REGIONS = 12
MOST_RANKS = 32
"""Ranks of a mesh that are drawn one by one."""
OPEN_STAGES = 8
"""A schedule of so many ranks or fewer is open at once."""
MOST_SPANS = 1200


def in_notebook(drawing: Callable[[], str], text: str) -> str:
    """Return what a drawing gives, and where it fails the text and why, for the reader to see.

    A notebook would print the traceback over a cell that has done what it should.
    """
    try:
        return drawing()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        return f"<div><pre>{html.escape(text)}</pre><p>Not drawn: {html.escape(why)}</p></div>"


def shown_plan(plan: AnyPlan) -> str:
    """Return a plan as ``_repr_html_`` does, which never raises."""
    return in_notebook(lambda: plan_html(plan), f"plan {plan.hash[:16]}")


def shown_module(report: Callable[[], ModuleReport], text: str) -> str:
    """Return what was compiled, and behind it the object's own text; never raises.

    Args:
        report: gives what was compiled so far.
        text: what ``repr`` gives, such as the tree of a module's layers.
    """

    def drawing() -> str:
        own = e("details", e("summary", "as Python prints it"), e("pre", text))
        return f"<div>{report().html()}{text_of(own)}</div>"

    return in_notebook(drawing, text)


def plan_html(plan: AnyPlan) -> str:
    """Return a plan as a piece of HTML.

    Raises:
        IrcError: ``cluster-unknown`` or ``file-missing`` of a plan in stages whose cluster is not
            known here.
    """
    match plan:
        case PartsPlan():
            inside = _of_parts(plan)
        case HostPlan():
            inside = _of_host(plan)
        case LoadedPlan():
            inside = _of_one(plan)
    style = e("style")
    style.text = _stylesheet()  # not as text of a user: a stylesheet is not escaped
    return text_of(e("div", style, inside, class_="irc-plan"))


@cache
def _stylesheet() -> str:
    return files("irc.report.html").joinpath("notebook.css").read_text(encoding="utf-8")


def _of_one(loaded: LoadedPlan) -> list[Child]:
    plan = loaded.plan
    figures = figures_of_one(loaded, plan.cluster or THIS_HOST)
    arguments = {
        "input": plan_arguments(plan, plan.inputs),
        "weight": [one for one in plan_arguments(plan) if one.role in ROLES],
        "output": plan_arguments(plan, plan.outputs),
    }
    calls = sum(isinstance(step, Call) for _, step in steps(plan))
    launches = "1 launch" if calls == 1 else f"{calls:,} launches"
    facts: list[tuple[str, Child]] = [
        ("kernels", f"{len(plan.kernels)} for {plan.backend}, {launches} a {figures.unit}")
    ]
    if loaded.sized is not None:
        facts.append(("open sizes", open_line(loaded.sized.sizes)))
    return [*_head(figures, facts), _placements(plan.device_mesh, arguments)]


def _of_parts(plan: PartsPlan) -> list[Child]:
    step = simulated_step(plan)
    facts = gather_parts(plan, step)
    weights = {
        one.name: one
        for part in plan.parts
        for loaded in part.values()
        for one in plan_arguments(loaded.plan)
        if one.role in ROLES
    }
    first = plan.parts[0]["F"].plan
    arguments = {"input": plan_arguments(first, first.inputs), "weight": list(weights.values())}
    kernels = sum(len(loaded.plan.kernels) for part in plan.parts for loaded in part.values())
    rows: list[tuple[str, Child]] = [
        ("kernels", f"{kernels} for {plan.backend}, in {counted(len(plan.parts), 'stage')}"),
        ("schedule", f"{facts.schedule}, micro-batches: {facts.micro_batches}"),
    ]
    figures = figures_of_parts(plan, facts, step)
    return [*_head(figures, rows), _schedule(plan, step), _placements(plan.part_mesh, arguments)]


def _schedule(plan: PartsPlan, simulated: Simulation) -> Element:
    """Draw what one rank of each place in the pipeline does, as predicted."""
    rows = schedule_rows(plan, simulated, links=False)
    picture = drawn(rows, simulated.seconds, "Schedule of a step", MOST_SPANS)
    is_open = len(plan.ranks) <= OPEN_STAGES
    return e("details", e("summary", "Schedule of a step, as predicted"), picture, open=is_open)


def _of_host(plan: HostPlan) -> list[Child]:
    from irc.report.host import region_lines  # reads the program, which others do not need

    lines = region_lines(plan)
    rows = [(code(row.name), row.called_by, row.kernels, row.sizes) for row in lines[:MOST_REGIONS]]
    heads = ("region", "called by", "kernels", "sizes")
    facts: list[tuple[str, Child]] = [
        ("inputs", ", ".join(plan.facts.inputs)),
        ("outputs", ", ".join(plan.facts.outputs)),
    ]
    return [
        *_head(figures_of_host(plan), facts),
        table(heads, rows, label="Regions of the program"),
        _more(len(lines) - len(rows), "region"),
    ]


def _head(figures: Figures, facts: Sequence[tuple[str, Child]]) -> list[Child]:
    held = f"a rank holds {size(figures.held_bytes)}"
    if figures.capacity:
        held += f" of {size(figures.capacity)}"
    rows = [*facts, ("memory", held), ("plan", code(figures.hash[:16]))]
    return [
        e("p", e("strong", sentence(figures))),
        time_figure(figures),
        memory_figure(figures),
        e("table", (e("tr", e("th", name, scope="row"), e("td", what)) for name, what in rows)),
    ]


def _placements(mesh: Mesh, arguments: dict[str, list[Argument]]) -> Element:
    """Return how inputs, weights and outputs lie on the mesh, alike ones in one row."""
    rows: list[Sequence[Child]] = []
    left: list[Element | None] = []
    for role, of_role in arguments.items():
        groups = alike(of_role)
        shown = groups[: SHOWN[role]]
        rows += [_row(role, group, mesh) for group in shown]
        left.append(_more(sum(map(len, groups[SHOWN[role] :])), role))
    every = [one for of_role in arguments.values() for one in of_role]
    heads = ("", "name", "type", *mesh.names, "a rank holds")
    right = "lll" + "l" * len(mesh.names) + "r"
    lying = table(heads, rows, right=right, label="Placements")
    drawn_mesh = ranks_picture(mesh) if 1 < mesh.num_ranks <= MOST_RANKS else None
    title = f"{', '.join(counted(len(of_role), role) for role, of_role in arguments.items())}"
    if mesh.num_ranks > 1:
        split = sum(one.placement is not None and not one.placement.is_replicated for one in every)
        title += f", of which {split} lie in parts on a mesh of {mesh}"
    inside = e("div", lying, drawn_mesh, class_="beside")
    return e("details", e("summary", title), inside, left, open=True)


def _row(role: str, group: list[Argument], mesh: Mesh) -> Sequence[Child]:
    first = group[0]
    return (
        role,
        code(merged_names([one.name for one in group])),
        code(f"{first.dtype}{list(first.shape)}"),
        *placed_on(first.placement, len(first.shape), mesh),
        size(sum(one.bytes_per_rank for one in group)),
    )


def _more(number: int, noun: str) -> Element | None:
    return e("p", f"{counted(number, noun)} more") if number else None
