"""What the time of a trace goes to: by kind, and by line of the user's model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from irc.trace.form import BUBBLE, HOST, SPENT, Trace, TraceEvent

NO_WORK = "(the schedule)"
HOST_ALONE = "(the host)"


@dataclass(frozen=True)
class Spent:
    """Seconds of a step of which one line or op is the reason, in one way.

    Attributes:
        seconds: on a rank, in the mean over ranks.
        events: on all ranks that are drawn.
    """

    seconds: float
    events: int


def by_rank(trace: Trace) -> dict[int, dict[str, float]]:
    """Return for each rank the seconds of each of :data:`SPENT`; they add up to the step."""
    ranks: dict[int, dict[str, float]] = {rank: dict.fromkeys(SPENT, 0.0) for rank in trace.drawn}
    for event in trace.events:
        if event.kind in SPENT:
            ranks[event.rank][event.kind] += event.seconds
    return ranks


def by_kind(trace: Trace) -> dict[str, float]:
    """Return the seconds of each of :data:`SPENT`, in the mean over ranks."""
    ranks = by_rank(trace).values()
    count = max(len(ranks), 1)
    return {kind: sum(rank[kind] for rank in ranks) / count for kind in SPENT}


def by_line(trace: Trace) -> Mapping[tuple[str, str], Spent]:
    """Return what each line of the model takes of each kind, by line and kind.

    What has no line goes by its op's name; a bubble is the schedule's, whoever waits in it.
    """
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for event in trace.events:
        if event.kind in SPENT:
            key = _reason(event), event.kind
            seconds[key] += event.seconds
            counts[key] += 1
    ranks = max(len(trace.drawn), 1)
    return {key: Spent(total / ranks, counts[key]) for key, total in seconds.items()}


def _reason(event: TraceEvent) -> str:
    if event.kind == BUBBLE:
        return NO_WORK
    if event.kind == HOST and not event.label.line:
        return HOST_ALONE
    # A value that crosses stages does so for each micro-batch.
    return event.label.line or event.label.name.partition(" of micro-batch ")[0]
