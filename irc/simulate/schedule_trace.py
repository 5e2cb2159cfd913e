"""A simulated schedule as a trace: its functions, messages and sums, without what these consist of.

A class of columns is simulated once, so that each rank of the schedule is drawn once for each
class.
"""

from __future__ import annotations

from collections.abc import Iterator

from irc.schedule.actions import computed
from irc.simulate.held import held_bytes
from irc.simulate.schedule import Simulation
from irc.simulate.step_events import waited, where_of
from irc.simulate.update import gradients_of, link_between, stream_of
from irc.trace.form import (
    BUBBLE,
    COLLECTIVE,
    COMPUTE,
    KERNEL,
    SCHEDULE,
    TRANSFER,
    Held,
    Label,
    Trace,
    TraceEvent,
)


def schedule_trace(simulation: Simulation, mesh: str = "") -> Trace:
    """Return a simulated step; a unit of time is a second.

    Rank ``r`` of the schedule in class ``c`` of ``n`` is rank ``r * n + c`` of the trace; where
    there are several classes, the notes say so.

    Args:
        simulation: of a schedule.
        mesh: of each rank of the schedule, as text.
    """
    columns = simulation.columns
    pools = list(held_bytes(simulation.actions, simulation.timeline))
    events: list[TraceEvent] = []
    held: list[Held] = []
    for place in range(len(simulation.schedule.ranks)):
        for column in range(len(columns)):
            rank, stream = place * len(columns) + column, stream_of(place, column, columns)
            events += (
                event._replace(rank=rank)
                for event in _events(simulation, place, column)
                if event.end_s > event.begin_s
            )
            held += (
                Held(rank, "registers and arena", at, size)
                for pool, at, size in pools
                if pool == stream
            )
    classes = ", ".join(f"columns {i} (x{own.count})" for i, own in enumerate(columns))
    notes = {"ranks": f"each of the schedule is drawn for {classes}"} if len(columns) > 1 else {}
    num_ranks = len(simulation.schedule.ranks) * len(columns)
    return Trace(
        "predicted", tuple(events), simulation.seconds, "", mesh, num_ranks, tuple(held), notes
    )


def _events(of: Simulation, place: int, column: int) -> Iterator[TraceEvent]:
    """Yield the events of a rank of the schedule in a class, as rank 0."""
    runs = {str(action): action for action in computed(of.schedule.ranks[place])}
    own, sums = stream_of(place, column, of.columns), gradients_of(place)
    links = {
        link_between(stream_of(source, column, of.columns), place): f"link from rank {source}"
        for source in range(len(of.schedule.ranks))
    }
    before = 0.0
    for index, action in enumerate(of.actions):
        span = of.timeline.starts[index], of.timeline.ends[index]
        if action.stream == own:
            where = where_of(action.name, runs)
            yield from waited(of.actions, of.timeline, index, before, where, _kind_of)
            before = span[1]
            yield TraceEvent(0, SCHEDULE, "function", Label(action.name), *span, where)
            # All micro-batches of a function are of one name, by which time is added up.
            run = runs.get(action.name)
            label = Label(action.name if run is None else f"{run.stage}{run.kind}")
            yield TraceEvent(0, COMPUTE, KERNEL, label, *span, where)
        elif action.stream == sums:
            yield TraceEvent(0, "comm gradients", "collective", Label(action.name), *span)
        elif (track := links.get(action.stream)) is not None:
            yield TraceEvent(0, track, "transfer", Label(action.name), *span)
    yield TraceEvent(0, COMPUTE, BUBBLE, Label("end of the step"), before, of.seconds)


def _kind_of(stream: str) -> str | None:
    if stream.startswith("link"):
        return TRANSFER
    return COLLECTIVE if stream.endswith("gradients") else None
