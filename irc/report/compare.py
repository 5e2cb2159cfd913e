"""``irc compare``: where a measured step differs from the predicted one, by kind and by line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from irc.errors import IrcError
from irc.report.table import counted, pairs, seconds, signed, table
from irc.trace.form import SPENT, Source, Trace
from irc.trace.read import read_trace
from irc.trace.spent import Spent, by_kind, by_line, by_rank

MOST_LINES = 20
"""Rows of the table of lines, unless all are asked for."""


@dataclass(frozen=True)
class KindRow:
    """Seconds of a rank in a step, in the mean over the ranks that were measured."""

    kind: str
    predicted_s: float
    measured_s: float


@dataclass(frozen=True)
class LineRow:
    """Seconds of which a line of the model is the reason, in one way.

    They are the mean over the ranks that were measured.

    Attributes:
        line: of the model; where there is none, the op.
        kind: one of :data:`irc.trace.form.SPENT`.
        lost_s: by how much more was measured than predicted; all of them add up to what the whole
            step lost.
        events: on all ranks, as measured.
    """

    line: str
    kind: str
    predicted_s: float
    measured_s: float
    lost_s: float
    events: int


@dataclass(frozen=True)
class TraceComparison:
    """Two traces of a plan; JSON has these fields.

    Attributes:
        plan: the hash of the plan.
        mesh: its mesh, as text.
        ranks: drawn by the predicted trace, and by the measured one.
        predicted_s, measured_s: of the step.
        ratio: predicted to measured.
        kinds: what the step goes to; on both sides they add up to it.
        lines: what is lost most comes first.
        slowest: of the measured ranks, the one that has kernels for longest, and its seconds.
        notes: what the files say of themselves.
        sources: ``predicted`` or ``measured``, of either trace.
    """

    plan: str
    mesh: str
    ranks: tuple[int, int]
    predicted_s: float
    measured_s: float
    ratio: float
    kinds: tuple[KindRow, ...]
    lines: tuple[LineRow, ...]
    slowest: tuple[int, float]
    notes: tuple[str, ...]
    sources: tuple[Source, Source] = ("predicted", "measured")

    @property
    def sides(self) -> tuple[str, str]:
        """What the traces are called: two predictions, or two runs, are a first and a second."""
        return ("first", "second") if self.sources[0] == self.sources[1] else self.sources


def read_both(predicted: str | Path, measured: str | Path) -> tuple[Trace, Trace]:
    """Read two traces of one plan; the second may be a profile of torch.profiler.

    Raises:
        IrcError: ``trace-unreadable``, ``trace-mismatch``.
    """
    first = read_trace(predicted)
    second = read_trace(measured, like=first)
    if (first.plan, first.mesh, first.ranks) != (second.plan, second.mesh, second.ranks):
        raise IrcError(
            "trace-mismatch",
            f"'{predicted}' and '{measured}' are of different plans",
            because=[f"'{predicted}': {_plan(first)}", f"'{measured}': {_plan(second)}"],
            help="simulate and run the same folder",
        )
    if (first.source, second.source) == ("measured", "predicted"):
        raise IrcError(
            "trace-mismatch",
            f"'{predicted}' was measured, and '{measured}' is what was predicted",
            help=f"the prediction comes first: irc compare {measured} {predicted}",
        )
    return first, second


def _plan(trace: Trace) -> str:
    return f"plan {trace.plan[:16]} of {counted(trace.ranks, 'rank')}" + (
        f", {trace.mesh}" if trace.mesh else ""
    )


def compare(predicted: Trace, measured: Trace) -> TraceComparison:
    """Compare two traces of one plan.

    Where only some of the predicted ranks were measured, as in a profile of one rank, these alone
    are compared: the other stages of a pipeline do something else.
    """
    on_both = _on_ranks_of(measured, predicted)
    before, after = by_kind(on_both), by_kind(measured)
    kinds = tuple(KindRow(kind, before[kind], after[kind]) for kind in SPENT)
    kernels = {rank: own["kernel"] for rank, own in by_rank(measured).items()}
    slowest = max(kernels, key=lambda rank: kernels[rank])
    said = ((side, *note) for side in (predicted, measured) for note in side.notes.items())
    return TraceComparison(
        predicted.plan,
        predicted.mesh,
        (len(predicted.drawn), len(measured.drawn)),
        predicted.step_s,
        measured.step_s,
        predicted.step_s / measured.step_s if measured.step_s else 0.0,
        kinds,
        tuple(_lines(on_both, measured)),
        (slowest, kernels[slowest]),
        tuple(f"{side.source}: {name}: {text}" for side, name, text in said),
        (predicted.source, measured.source),
    )


def _on_ranks_of(measured: Trace, predicted: Trace) -> Trace:
    """Return the prediction of the measured ranks, where all of them are drawn."""
    if not set(measured.drawn) < set(predicted.drawn):
        return predicted
    own = tuple(event for event in predicted.events if event.rank in measured.drawn)
    return replace(predicted, events=own)


def _lines(predicted: Trace, measured: Trace) -> list[LineRow]:
    before, after = by_line(predicted), by_line(measured)
    none = Spent(0.0, 0)
    rows = [
        LineRow(
            line,
            kind,
            (was := before.get((line, kind), none)).seconds,
            (now := after.get((line, kind), none)).seconds,
            now.seconds - was.seconds,
            now.events,
        )
        for line, kind in dict.fromkeys((*before, *after))
    ]
    return sorted(rows, key=lambda row: (-row.lost_s, row.line, row.kind))


def write(comparison: TraceComparison, *, most: int | None = MOST_LINES) -> str:
    """Lay out a comparison for a terminal.

    Args:
        comparison: of two traces.
        most: lines to show; None for all.
    """
    sections = (
        _heading(comparison),
        _kinds(comparison),
        _lost(comparison, most),
        list(comparison.notes),
    )
    return "\n\n".join("\n".join(section) for section in sections if section)


def _heading(of: TraceComparison) -> list[str]:
    first, second = of.sides
    step = f"{first} {seconds(of.predicted_s)}, {second} {seconds(of.measured_s)}"
    ratio = f"{of.ratio:.2f}" if of.ratio >= 0.1 else f"{of.ratio:.2g}"
    rows = [
        ("step", f"{step}, ratio {ratio}"),
        ("ranks", f"{of.ranks[1]} {of.sources[1]}" + (f", {of.mesh}" if of.mesh else "")),
    ]
    if of.ranks[1] > 1:
        rank, busy = of.slowest
        rows.append(("slowest", f"rank {rank}, {seconds(busy)} in kernels"))
    return pairs(rows)


def _kinds(of: TraceComparison) -> list[str]:
    rows = [
        (row.kind, *_times(row.predicted_s, row.measured_s))
        for row in of.kinds
        if row.predicted_s or row.measured_s
    ]
    rows.append(("step", *_times(of.predicted_s, of.measured_s)))
    return table(("of a rank, in the mean", *of.sides, "lost"), rows, right="lrrr")


def _lost(of: TraceComparison, most: int | None) -> list[str]:
    """Return a table of what took longer than in the first trace, and what the rest adds up to."""
    rows, (first, second) = of.lines, of.sides
    than = "predicted" if first == "predicted" else "in the first"
    lost = [row for row in rows if row.lost_s > 0]
    cells = [
        (signed(row.lost_s), seconds(row.predicted_s), seconds(row.measured_s), row.kind, row.line)
        for row in lost[:most]
    ]
    heads = ("lost", first, second, "as", "line")
    lines = ["Lost, by line of the model", *table(heads, cells, right="rrr")]
    if not lost:
        lines = [f"No line took longer than {than}"]
    if len(lost) > len(cells):
        lines.append(f"and {counted(len(lost) - len(cells), 'row')} more: --all shows them")
    gained = sum(row.lost_s for row in rows if row.lost_s < 0)
    if gained:
        lines.append(f"Other lines took {seconds(-gained)} less than {than}, in all")
    return lines


def _times(predicted: float, measured: float) -> tuple[str, str, str]:
    return seconds(predicted), seconds(measured), signed(measured - predicted)
