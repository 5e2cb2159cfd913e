"""What the places of a pipeline do: their functions whole, numbered by micro-batch."""

from __future__ import annotations

from itertools import groupby

from irc.plan.parts import PartsPlan
from irc.report.html.spans import Row
from irc.report.html.timeline import rows_of
from irc.simulate.schedule import Simulation
from irc.simulate.schedule_trace import schedule_trace
from irc.trace.form import COMPUTE


def schedule_rows(plan: PartsPlan, simulated: Simulation, *, links: bool = True) -> list[Row]:
    """Return the rows of one rank of each place in the pipeline, without the kernels in them.

    Args:
        plan: in stages.
        simulated: its step.
        links: a row for each stream of messages and sums too.
    """
    # Of ranks of one place that links serve differently, those of the first class are drawn.
    classes = len(simulated.columns)
    names = {place * classes: f"rank {ranks[0]}" for place, ranks in enumerate(plan.ranks)}
    events = [
        event
        for event in schedule_trace(simulated).events
        if event.rank in names and (links or event.track == COMPUTE)
    ]
    events.sort(key=lambda event: event.rank)
    rows: list[Row] = []
    for rank, own in groupby(events, key=lambda event: event.rank):
        rows += rows_of(own, names[rank], numbered=True)
    return rows
