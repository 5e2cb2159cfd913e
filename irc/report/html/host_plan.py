"""The sections of a host program: what the host runs, and the regions that are compiled."""

from __future__ import annotations

from irc.errors import printable
from irc.plan.host import HostPlan
from irc.plan.open_sizes import shown
from irc.report.host import host_ops, region_lines
from irc.report.html.element import Child, Element, bar, code, e, section, table
from irc.report.html.figures import figures_of_host
from irc.report.html.head import head
from irc.report.html.kernels import kernels_section, ran
from irc.report.table import counted


def host_sections(plan: HostPlan, title: str) -> list[Element]:
    """Return the sections of a plan."""
    symbols = ", ".join(symbol.name for symbol in plan.facts.symbols)
    facts: list[tuple[str, Child]] = [("open sizes", symbols or "none")]
    kernels = ran([(region, 1) for region in plan.regions.values()])
    return [
        head(figures_of_host(plan), title, facts),
        _regions(plan),
        _host(plan),
        kernels_section(kernels, "run of each region", "cpu"),
    ]


def _regions(plan: HostPlan) -> Element:
    rows = [(code(row.name), row.called_by, row.kernels, row.sizes) for row in region_lines(plan)]
    lead = (
        "Values of a call decide what runs. The host program takes these decisions, and calls"
        " regions between them, each of which is compiled as a program of its own."
    )
    heads = ("region", "called by", "kernels", "sizes")
    alone = [(name, each.reason) for name, each in plan.facts.regions.items() if each.reason]
    kept = e("ul", (e("li", code(name), f": {printable(why)}") for name, why in alone))
    return section(
        "regions", "Regions", lead, table(heads, rows, label="Regions of the program"),
        [e("h3", "Run op by op, for want of a plan"), kept] if alone else None,
    )  # fmt: skip


def _host(plan: HostPlan) -> Element:
    counts = host_ops(plan).most_common()
    most = counts[0][1] if counts else 0
    rows = [(code(name), f"{n:,}", bar(n, most, "host")) for name, n in counts]
    conditions = [shown(each) for each in plan.facts.conditions]
    held = e("ul", (e("li", code(text)) for text in conditions)) if conditions else None
    lead = f"{counted(sum(n for _, n in counts), 'op')} that the host runs itself."
    return section(
        "host", "Host program", lead,
        table(("op", "times", ""), rows, right="lrl", label="Ops of the host"),
        [e("h3", "Holds for the sizes of inputs that the plan serves"), held] if held is not None
        else None,
    )  # fmt: skip
