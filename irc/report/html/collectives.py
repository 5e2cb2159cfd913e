"""The collectives of a plan by line of the model: what they send, how long, and how much shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from irc.plan.schema import Plan
from irc.report.evidence import Evidence
from irc.report.html.element import Element, bar, code, e, rest, section, table
from irc.report.overlap import collectives
from irc.report.table import percent, seconds, size
from irc.report.traffic import Traffic
from irc.simulate.plan import Contention

SHOWN = 40


@dataclass
class LineTraffic:
    """Collectives of one kind over one axis that one line of the model asks for.

    Attributes:
        runs: in a call or step.
        num_bytes: what a rank holds before or after, the larger, all runs together.
        seconds: on the link, as priced, all runs together.
        exposed_s: for which compute stands still at their waits.
        whys: the placements that they lead from and to, and between which ops.
    """

    line: str
    kind: str
    axis: str
    runs: int = 0
    num_bytes: int = 0
    seconds: float = 0.0
    exposed_s: float = 0.0
    whys: dict[str, None] = field(default_factory=dict[str, None])


def line_traffic(
    plans: Sequence[tuple[Plan, int]], contention: Contention, whys: Mapping[str, str] | None = None
) -> list[LineTraffic]:
    """Return the collectives of some plans, the most exposed first.

    Args:
        plans: each with how often it runs.
        contention: what the streams of a rank share.
        whys: by id of a boxing, why it is there.
    """
    traffic: dict[tuple[str, str, str], LineTraffic] = {}
    for plan, runs in plans:
        for row in collectives(plan, contention):
            start = row.start
            kind, axis = start.op.removeprefix("comm."), str(start.attrs["axis"])
            line = "" if start.loc == "unknown" else start.loc
            own = traffic.setdefault((line, kind, axis), LineTraffic(line, kind, axis))
            held = max(plan.buffers[i].size_bytes for i in (*start.inputs, *start.outputs))
            own.runs += runs
            own.num_bytes += runs * held
            own.seconds += runs * (start.seconds or 0.0)
            own.exposed_s += runs * row.bare_s
            if whys and (why := whys.get(start.id.rpartition("/")[2].removesuffix(".start"))):
                own.whys[why] = None
    return sorted(traffic.values(), key=lambda row: (-row.exposed_s, -row.seconds, row.line))


def reasons(evidence: Evidence) -> dict[str, str]:
    """Return by id of a boxing from which placement to which it leads, and for whom."""
    return {
        row.id: f"{row.change}: {row.why}" if row.change else row.why
        for row in Traffic(evidence).rows()
    }


def collectives_section(rows: Sequence[LineTraffic], unit: str) -> Element:
    """Return the section."""
    exposed, total = sum(r.exposed_s for r in rows), sum(r.seconds for r in rows)
    if not rows:
        return section(
            "collectives", "Collectives", "Nothing is sent: the plan has no collectives."
        )
    lead = (
        f"In a {unit}, collectives of a rank take {seconds(total)} on their links, of which compute"
        f" waits for {seconds(exposed)} ({percent(exposed, total)}). The line that waits"
        " most comes first."
    )
    worst = max((row.seconds for row in rows), default=0.0)
    cells = [
        (
            e("div", code(row.line or "no line of the model"), _whys(row)),
            code(f"{row.kind}[{row.axis}]"),
            f"{row.runs:,}",
            size(row.num_bytes),
            seconds(row.seconds),
            seconds(row.exposed_s),
            e("div", bar(row.exposed_s, worst, "exposed", "exposed"),
              bar(max(0.0, row.seconds - row.exposed_s), worst, "comm", "hidden"), class_="bars"),
        )
        for row in rows[:SHOWN]
    ]  # fmt: skip
    heads = ("line of the model", "collective", "runs", "bytes", "time", "exposed", "")
    body = table(heads, cells, right="llrrrrl", label="Collectives by line of the model")
    return section("collectives", "Collectives", lead, body, rest(len(rows), SHOWN, "line"))


def _whys(row: LineTraffic) -> Element | None:
    if not row.whys:
        return None
    whys = list(row.whys)
    items = [e("li", why) for why in whys[:6]]
    if len(whys) > 6:
        items.append(e("li", f"and {len(whys) - 6} more"))
    return e("details", e("summary", "why"), e("ul", items))
