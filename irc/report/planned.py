"""What `irc plan` prints: the chosen configuration, its runners-up, and what does not work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from irc.cluster.topology import Cluster
from irc.cost.money import HOUR_S, per_hour
from irc.plan.held import smallest_budget
from irc.report.decisions import as_plain, difference_lines
from irc.report.left_alone import Alone, alone_of, alone_text
from irc.report.table import counted, pairs, percent, seconds, size, table
from irc.search.configurations import IN_PARTS, Outline
from irc.search.differences import Difference
from irc.search.everything import Outcome
from irc.search.judge import Judged

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
        micro_batch: samples of one on a rank of ``data``; times both it is the whole batch. None:
            there is no such batch.
        schedule: of a pipeline; empty where there is none.
        recompute: what backward computes again.
        layout: what the axes are for, where the user or a custom states it.
        within_bytes: that the plan was to hold at most, less than allowed; None: as allowed.
        in_parts: what lies in parts for the memory; empty: what is fastest.
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
        money_per_step: in the money of the price of devices; None where none is given.
        money_per_billion: for so many tokens, or samples.
        objection: what an expert would call wrong: nothing else has a plan, or the user stated it.
        priced_s: seconds of a step by pieces of the model, before it was planned whole; None where
            that was not asked.
        order: by rank, the device that it is to run on, where wires differ; empty: as they come.
    """

    mesh: str
    micro_batches: int
    micro_batch: int | None
    schedule: str
    recompute: str
    layout: str
    within_bytes: int | None
    in_parts: str
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
    money_per_step: float | None = None
    money_per_billion: float | None = None
    objection: str = ""
    priced_s: float | None = None
    order: tuple[int, ...] = ()


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
        differences: of what the user stated and the chosen plan, decision by decision.
        priced: configurations that pieces of the model priced and that were not planned whole, best
            first.
        bound_s: what no plan is faster than: products alone, on all devices at their peak.
        gap: by how much of its step the chosen plan may be off that; None where steps are not what
            is searched for.
        left: configurations that were neither priced nor planned since they are slower, shortest
            first.
    """

    program: str
    cluster: str
    objective: str
    items: str
    rows: tuple[Row, ...]
    considered: int
    ended: str
    note: str = ""
    differences: tuple[Difference, ...] = ()
    priced: tuple[Row, ...] = ()
    bound_s: float = 0.0
    gap: float | None = None
    left: tuple[Alone, ...] = ()

    def as_json(self) -> dict[str, object]:
        """Return all of it as plain data."""
        plain = asdict(replace(self, differences=()))
        return {**plain, "differences": [as_plain(each) for each in self.differences]}


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
    price_per_hour: float | None = None,
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
        price_per_hour: of a device, in the place of what the cluster states.
    """
    flops = outline.flops * (TRAINED if training else 1.0)
    peak = cluster.device.stated_flops.get(outline.dtype, 0.0)
    items = tokens or outline.samples

    def row(each: Judged) -> Row:
        hourly = per_hour(cluster, each.configuration.mesh.num_ranks, price_per_hour)
        return _with_money(_row(each, flops, peak, items, outline.samples), hourly, items)

    verdict, gap = outcome.best.verdict, None
    if verdict and verdict.step_s and outcome.bound_s and objective in ("throughput", "latency"):
        # A step below the bound would show that it is none.
        gap = 1 - outcome.bound_s / verdict.step_s if verdict.step_s >= outcome.bound_s else None
    return Planned(
        program,
        cluster.name,
        objective,
        "tokens" if tokens else "samples",
        tuple(map(row, outcome.judged)),
        outcome.considered,
        outcome.ended,
        note,
        outcome.differences,
        tuple(map(row, outcome.priced)),
        outcome.bound_s,
        gap,
        alone_of(outcome),
    )


def _row(judged: Judged, flops: float, peak: float, items: int, samples: int) -> Row:
    own, verdict = judged.configuration, judged.verdict
    devices = own.mesh.num_ranks
    data = own.mesh.size("data") if "data" in own.mesh.names else 1
    micro_batch, left = divmod(samples, own.micro_batches * data)
    row = Row(
        str(own.mesh),
        own.micro_batches,
        None if left else micro_batch,
        own.schedule if own.pipe > 1 else "",
        own.recompute,
        own.layout,
        own.memory_bytes,
        IN_PARTS[own.in_parts] if own.in_parts else "",
        devices,
        judged.is_pinned,
        needs_bytes=smallest_budget(judged.error) if judged.error else None,
        why_not=judged.error.message if judged.error else "",
        objection=judged.objection,
        priced_s=judged.priced_s,
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
        order=verdict.order,
    )


def _with_money(row: Row, hourly: float | None, items: int) -> Row:
    if hourly is None or row.step_s is None:
        return row
    money = row.step_s * hourly / HOUR_S
    return replace(row, money_per_step=money, money_per_billion=money / items * 1e9)


def plan_table(search: Planned) -> str:
    """Write the result of a search for people."""
    works = [row for row in search.rows if row.step_s is not None]
    lacks = [row for row in search.rows if row.step_s is None]
    lines = pairs([("program", search.program), ("cluster", search.cluster)])
    counts = f"{counted(len(search.rows), 'plan')} judged"
    if off := [abs(row.priced_s / row.step_s - 1) for row in works if row.priced_s and row.step_s]:
        priced = counted(len(search.priced) + len(off), "configuration")
        counts = f"{priced} priced from layers of the model, the best {len(off)} planned whole"
        counts += f" ({percent(max(off), 1.0)} off)"
    if search.considered:
        counts += f", {counted(search.considered, 'configuration')} with stages or micro-batches"
        counts += " priced"
    lines += pairs([("search", f"{counts}; the best by {search.objective}")])
    if search.gap is not None:
        lines += pairs(
            [("gap", f"{percent(search.gap, 1.0)} at most: products alone take "
              f"{seconds(search.bound_s)} on all devices at their peak")]
        )  # fmt: skip
    if search.left:
        lines += pairs([("left alone", alone_text(search.left))])
    if search.ended:
        lines += pairs([("ended", f"early, by {search.ended}: the best plan so far")])
    heads = (
        "", "mesh", "micro", "schedule", "recompute", "step", f"{search.items}/s", "MFU", "memory",
        "bubble", "exposed",
    )  # fmt: skip
    shown = works[:SHOWN] + [row for row in works[SHOWN:] if row.pinned]
    # Of unequal devices some may have no price.
    has_money = any(row.money_per_step is not None for row in shown)
    if has_money:
        heads += ("money/step", f"1e9 {search.items}")
    lines += [
        "",
        *table(
            heads,
            [_cells(row, row is works[0], has_money=has_money) for row in shown],
            right="llrllrrrrrrrr"[: len(heads)],
        ),
    ]
    if len(works) > len(shown):
        lines.append(f"  and {len(works) - len(shown)} more that are slower or larger (--json)")
    for each in search.differences:
        lines += ["", *difference_lines(each)]
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
    notes = [*_objections(works), *_order(works), *([search.note] if search.note else [])]
    lines += [text for note in notes for text in ("", f"note: {note}")]
    return "\n".join(lines)


def _order(works: Sequence[Row]) -> list[str]:
    """Say on which devices the ranks of the chosen plan are, where another order is faster."""
    if not works or not works[0].order:
        return []
    devices = ", ".join(map(str, works[0].order))
    last = len(works[0].order) - 1
    return [f"the wires differ: ranks 0 to {last} are to run on the devices {devices}"]


def _objections(works: Sequence[Row]) -> list[str]:
    """Say what is wrong with the chosen plan, and with what the user stated."""
    wrong = [row for row in works if row.objection and (row.pinned or row is works[0])]
    return [
        f"{row.objection}, "
        + ("as it was stated" if row.pinned else "and of all that was tried nothing else fits")
        for row in wrong
    ]


def _cells(row: Row, is_chosen: bool, *, has_money: bool) -> tuple[str, ...]:
    assert row.step_s is not None and row.memory_bytes is not None
    money: tuple[str, ...] = ("-", "-") if has_money else ()
    if row.money_per_step is not None and row.money_per_billion is not None:
        money = f"{row.money_per_step:.4g}", f"{row.money_per_billion:,.2f}"
    mark = "chosen" if is_chosen else ""
    return (
        f"{mark} pinned".strip() if row.pinned else mark,
        (row.mesh or "one device")
        + (f" as {row.layout}" if row.layout else "")
        + (f", {row.in_parts}" if row.in_parts else "")
        + (f" within {size(row.within_bytes)}" if row.within_bytes else ""),
        f"{row.micro_batches} x {row.micro_batch}" if row.micro_batch else f"{row.micro_batches}",
        row.schedule or "-",
        row.recompute,
        seconds(row.step_s),
        "-" if row.items_per_s is None else f"{row.items_per_s:,.0f}",
        "-" if row.mfu is None else percent(row.mfu, 1.0),
        size(row.memory_bytes),
        percent(row.bubble or 0.0, 1.0),
        percent(row.exposed or 0.0, 1.0),
        *money,
    )
