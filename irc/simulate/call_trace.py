"""A predicted call of a plan as a trace: every rank does the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from irc.plan.schema import Plan, Start, Wait
from irc.simulate.actions import SimAction, Timeline
from irc.simulate.held import held_bytes
from irc.simulate.labels import Labels
from irc.simulate.plan import Prediction, steps
from irc.trace.form import COLLECTIVE, COMPUTE, KERNEL, Held, Label, Trace, TraceEvent, Where

MOST_EVENTS = 200_000
"""Of a file: of more, ranks that do the same are drawn once."""


def call_trace(plan: Plan, predicted: Prediction, digest: str) -> Trace:
    """Return a predicted call.

    Args:
        plan: of one program.
        predicted: its simulation.
        digest: the hash of the plan.
    """
    own = call_events(plan, predicted)
    ((ranks,), notes) = drawn_of([range(predicted.ranks)], [len(own)])
    events = tuple(event._replace(rank=rank) for rank in ranks for event in own)
    held = tuple(
        Held(rank, pool, at, size)
        for rank in ranks
        for pool, at, size in held_bytes(predicted.actions, predicted.timeline)
    )
    return Trace(
        "predicted", events, predicted.seconds, digest, plan.mesh, predicted.ranks, held, notes
    )


def drawn_of(
    places: Sequence[Sequence[int]], events: Sequence[int]
) -> tuple[list[tuple[int, ...]], dict[str, str]]:
    """Return which ranks of each place are drawn, and what the trace says of it.

    All ranks of all places, or one of each: means over ranks would count some places more often.

    Args:
        places: the ranks that do the same, of each place of a pipeline; as many of each.
        events: of a rank, of each place.
    """
    total = sum(len(ranks) * own for ranks, own in zip(places, events, strict=True))
    most = max(map(len, places))
    if total <= MOST_EVENTS or most == 1:
        return [tuple(ranks) for ranks in places], {}
    return [(ranks[0],) for ranks in places], {"drawn": f"one rank of {most} that do the same"}


def call_events(
    plan: Plan,
    predicted: Prediction,
    begin_s: float = 0.0,
    where: Where | None = None,
    slow: float = 1.0,
) -> list[TraceEvent]:
    """Return the events of rank 0 in a predicted call; they fill its time without a gap.

    Args:
        plan: of one program, or a function of one of several.
        predicted: its simulation.
        begin_s: when it begins.
        where: in a pipeline.
        slow: how many times as long everything takes.
    """
    return [
        event._replace(
            begin_s=begin_s + slow * event.begin_s,
            end_s=begin_s + slow * event.end_s,
            where=where or Where(),
        )
        for event in _events(plan, predicted.actions, predicted.timeline)
        if event.end_s > event.begin_s
    ]


def _events(plan: Plan, actions: tuple[SimAction, ...], timeline: Timeline) -> Iterator[TraceEvent]:
    labels = Labels(plan)
    # A collective stands right behind the action of its start, which is the one that it follows.
    links = {a.after[0]: i for i, a in enumerate(actions) if a.stream != COMPUTE}
    computes = (i for i, action in enumerate(actions) if action.stream == COMPUTE)
    before = 0.0
    for (_, step), index in zip(steps(plan), computes, strict=True):
        begin, end = timeline.starts[index], timeline.ends[index]
        label = labels(step)
        if isinstance(step, Wait):
            yield TraceEvent(0, COMPUTE, COLLECTIVE, label, before, begin)
        elif isinstance(step, Start):
            link = links[index]
            track = f"comm {step.attrs['axis']}"
            span = timeline.starts[link], timeline.ends[link]
            yield TraceEvent(0, track, "collective", label, *span)
        else:
            yield TraceEvent(0, COMPUTE, KERNEL, label, begin, end)
        before = end
    # A collective that nobody waits for: the call has ended when it has.
    yield TraceEvent(0, COMPUTE, COLLECTIVE, Label("end of the call"), before, timeline.seconds)
