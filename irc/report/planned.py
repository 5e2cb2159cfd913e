"""What `irc plan` prints: the chosen configuration, its runners-up, and what does not work."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from irc.cluster.topology import Cluster
from irc.report.table import counted, pairs, percent, seconds, size, table
from irc.search.configurations import Outline
from irc.search.everything import Judged, Outcome, smallest_budget

SHOWN = 6
"""So many configurations with a plan are printed, and so many without; all are in the JSON."""

TRAINED = 3.0
"""Products of a step for each of a forward pass; what is computed again does not count in MFU."""


@dataclass(frozen=True)
class Row:
    """A configuration, in numbers.

    Attributes:
        mesh: its axes.
        micro_batches: of a step.
        schedule: of a pipeline; empty where there is none.
        recompute: what backward computes again.
        layout: what the axes are for, where the user stated it.
        devices: the ranks of the mesh.
        pinned: stated by the user, not searched.
        step_s: seconds of a step; None where there is no plan, and so for what follows.
        items_per_s: samples, or tokens where inputs are tokens.
        mfu: the part of the vendor's peak that the model's own arithmetic takes; None: not stated.
        memory_bytes: of a device at the worst moment.
        bubble: the share of a step in which ranks wait for others.
        exposed: the share in which compute waits for collectives.
        needs_bytes: what would do, of one that does not fit; None: not known.
        why_not: why there is no plan.
    """

    mesh: str
    micro_batches: int
    schedule: str
    recompute: str
    layout: str
    devices: int
    pinned: bool
    step_s: float | None = None
    items_per_s: float | None = None
    mfu: float | None = None
    memory_bytes: int | None = None
    bubble: float | None = None
    exposed: float | None = None
    needs_bytes: int | None = None
    why_not: str = ""


@dataclass(frozen=True)
class Planned:
    """What a search chose, and what it was held against.

    Attributes:
        program: what was planned.
        cluster: by name.
        objective: of the search.
        items: what ``items_per_s`` counts: ``tokens`` or ``samples``.
        rows: configurations with a plan, best first, then those without one.
        considered: configurations that the closed form put in order.
        ended: why the search ended early; empty where it did not.
        note: what the user should know of the plan's kernels.
    """

    program: str
    cluster: str
    objective: str
    items: str
    rows: tuple[Row, ...]
    considered: int
    ended: str
    note: str = ""

    def as_json(self) -> dict[str, object]:
        """Return all of it as plain data."""
        return asdict(self)


def planned(
    outcome: Outcome,
    outline: Outline,
    cluster: Cluster,
    *,
    program: str,
    objective: str,
    tokens: int = 0,
    training: bool = True,
    note: str = "",
) -> Planned:
    """Put the outcome of a search into numbers.

    Args:
        outcome: of the search.
        outline: of the forward pass of the whole batch.
        cluster: the machines.
        program: what was planned.
        objective: of the search.
        tokens: of a batch; 0 where its samples are counted.
        training: a step of training, not a call.
        note: what is to be said of the plan's kernels.
    """
    flops = outline.flops * (TRAINED if training else 1.0)
    peak = cluster.device.stated_flops.get(outline.dtype, 0.0)
    items = tokens or outline.samples
    rows = tuple(_row(each, flops, peak, items) for each in outcome.judged)
    return Planned(
        program,
        cluster.name,
        objective,
        "tokens" if tokens else "samples",
        rows,
        outcome.considered,
        outcome.ended,
        note,
    )


def _row(judged: Judged, flops: float, peak: float, items: int) -> Row:
    own, verdict = judged.configuration, judged.verdict
    devices = own.mesh.num_ranks
    row = Row(
        str(own.mesh),
        own.micro_batches,
        own.schedule if own.pipe > 1 else "",
        own.recompute,
        own.layout,
        devices,
        judged.is_pinned,
        needs_bytes=smallest_budget(judged.error) if judged.error else None,
        why_not=judged.error.message if judged.error else "",
    )
    if verdict is None:
        return row
    step = verdict.step_s
    return replace(
        row,
        step_s=step,
        items_per_s=items / step if step else None,
        mfu=flops / (step * devices * peak) if peak and step else None,
        memory_bytes=verdict.num_bytes,
        bubble=verdict.bubble,
        exposed=verdict.exposed_s / step if step else 0.0,
    )


def plan_table(found: Planned) -> str:
    """Write the result of a search for people."""
    works = [row for row in found.rows if row.step_s is not None]
    lacks = [row for row in found.rows if row.step_s is None]
    lines = pairs([("program", found.program), ("cluster", found.cluster)])
    counts = f"{counted(len(found.rows), 'plan')} judged"
    if found.considered:
        counts += f", {counted(found.considered, 'configuration')} with stages or micro-batches"
        counts += " priced"
    lines += pairs([("search", f"{counts}; the best by {found.objective}")])
    if found.ended:
        lines += pairs([("ended", f"early, by {found.ended}: the best plan so far")])
    heads = (
        "", "mesh", "micro", "schedule", "recompute", "step", f"{found.items}/s", "MFU", "memory",
        "bubble", "exposed",
    )  # fmt: skip
    shown = works[:SHOWN] + [row for row in works[SHOWN:] if row.pinned]
    lines += [
        "",
        *table(heads, [_cells(row, row is works[0]) for row in shown], right="llrllrrrrrr"),
    ]
    if len(works) > len(shown):
        lines.append(f"  and {len(works) - len(shown)} more that are slower or larger (--json)")
    if lacks:
        lines += ["", "no plan"]
        lines += table(
            ("mesh", "micro", "recompute", "needs", "why not"),
            [
                (
                    row.mesh or "one device",
                    f"{row.micro_batches}",
                    row.recompute,
                    "" if row.needs_bytes is None else size(row.needs_bytes),
                    row.why_not,
                )
                for row in lacks[:SHOWN]
            ],
            right="lrlrl",
        )
        if len(lacks) > SHOWN:
            lines.append(f"  and {len(lacks) - SHOWN} more (--json)")
    if found.note:
        lines += ["", f"note: {found.note}"]
    return "\n".join(lines)


def _cells(row: Row, is_chosen: bool) -> tuple[str, ...]:
    assert row.step_s is not None and row.memory_bytes is not None
    mark = "chosen" if is_chosen else ""
    return (
        f"{mark} pinned".strip() if row.pinned else mark,
        (row.mesh or "one device") + (f" as {row.layout}" if row.layout else ""),
        f"{row.micro_batches}",
        row.schedule or "-",
        row.recompute,
        seconds(row.step_s),
        "-" if row.items_per_s is None else f"{row.items_per_s:,.0f}",
        "-" if row.mfu is None else percent(row.mfu, 1.0),
        size(row.memory_bytes),
        percent(row.bubble or 0.0, 1.0),
        percent(row.exposed or 0.0, 1.0),
    )
