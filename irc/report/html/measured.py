"""A measured call or step beside the predicted one: by kind of time, and by line of the model."""

from __future__ import annotations

from pathlib import Path

from irc.cluster.load import THIS_HOST, find_cluster
from irc.errors import IrcError
from irc.plan.host import is_host
from irc.plan.load import load_plan
from irc.plan.parts_files import is_parts, load_parts
from irc.report.compare import MOST_LINES, compare
from irc.report.html.element import Element, bar, code, e, rest, section, table
from irc.report.table import percent, seconds
from irc.simulate.call_trace import call_trace
from irc.simulate.parts import predict_step
from irc.simulate.parts_trace import step_trace
from irc.simulate.plan import Contention, predict
from irc.trace.form import Trace
from irc.trace.read import read_trace


def measured_section(folder: str | Path, run: str | Path) -> Element:
    """Return the section.

    Args:
        folder: of the plan.
        run: the trace of ``irc run PLAN --trace``, or of torch.profiler.

    Raises:
        IrcError: ``trace-unreadable``; ``trace-mismatch`` where the trace is of another plan;
            ``option-value`` of a host program, which has no predicted time.
    """
    predicted = predicted_trace(folder)
    measured = read_trace(run, like=predicted)
    if (predicted.plan, predicted.ranks) != (measured.plan, measured.ranks):
        raise IrcError(
            "trace-mismatch",
            f"'{run}' was not measured of '{folder}'",
            help=f"irc run {folder} --trace FILE",
        )
    comparison = compare(predicted, measured)
    most = max(comparison.predicted_s, comparison.measured_s)
    rows = [
        ("in all", seconds(comparison.predicted_s), seconds(comparison.measured_s),
         _bars(comparison.predicted_s, comparison.measured_s, most)),
        *((row.kind, seconds(row.predicted_s), seconds(row.measured_s),
           _bars(row.predicted_s, row.measured_s, most)) for row in comparison.kinds),
    ]  # fmt: skip
    lost = [
        (code(row.line or "no line of the model"), row.kind, seconds(row.predicted_s),
         seconds(row.measured_s), seconds(row.lost_s))
        for row in comparison.lines[:MOST_LINES]
    ]  # fmt: skip
    lead = (
        f"Measured {seconds(comparison.measured_s)}, predicted {seconds(comparison.predicted_s)}:"
        f" the prediction is {percent(comparison.predicted_s, comparison.measured_s)} of what was"
        " measured. What is lost is what was measured beyond what was predicted, in the mean over"
        " the ranks."
    )
    return section(
        "measured", "Measured beside predicted", lead,
        table(("time", "predicted", "measured", ""), rows, right="lrrl", label="By kind of time"),
        table(("line of the model", "kind", "predicted", "measured", "lost"), lost, right="llrrr",
              label="By line of the model"),
        rest(len(comparison.lines), MOST_LINES, "line"),
        e("ul", (e("li", note) for note in comparison.notes)) if comparison.notes else None,
    )  # fmt: skip


def _bars(predicted_s: float, measured_s: float, most: float) -> Element:
    return e(
        "div", bar(predicted_s, most, "compute", "predicted"),
        bar(measured_s, most, "exposed", "measured"), class_="bars",
    )  # fmt: skip


def predicted_trace(folder: str | Path) -> Trace:
    """Return what a plan's simulation says that its ranks do.

    Raises:
        IrcError: ``option-value`` of a host program; errors of plans and clusters.
    """
    if is_host(folder):
        raise IrcError(
            "option-value",
            f"'{folder}' is a host program: values decide what runs, so its time is not predicted",
            help="leave out --run",
        )
    if is_parts(folder):
        parts = load_parts(folder)
        name = next(iter(parts.parts[0].values())).plan.cluster or THIS_HOST
        cluster = find_cluster(name).fit(parts.mesh)
        return step_trace(parts, predict_step(parts, cluster), cluster)
    loaded = load_plan(folder)
    cluster = find_cluster(loaded.plan.cluster or THIS_HOST)
    simulation = predict(loaded.plan, contention=Contention.of(cluster, loaded.plan.device_mesh))
    return call_trace(loaded.plan, simulation, loaded.hash)
