"""Functions in traces of simulated steps: where they belong, and what ranks wait for before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from irc.schedule.actions import Action
from irc.simulate.actions import SimAction, Timeline
from irc.trace.form import BUBBLE, COMPUTE, Label, TraceEvent, Where

PHASES = {"F": "forward", "S": "forward"}
"""By kind of a function of a micro-batch; all others are of the backward."""
UPDATE = "update"


def phase_of_kind(kind: str) -> str:
    """Return the phase of a function of a micro-batch.

    >>> phase_of_kind("F.smaller"), phase_of_kind("W")
    ('forward', 'backward')
    """
    return PHASES.get(kind[0], "backward")


def where_of(name: str, runs: Mapping[str, Action]) -> Where:
    """Return where a function of a rank belongs.

    Args:
        name: of its action.
        runs: by name, what the schedule has the rank run.
    """
    if (run := runs.get(name)) is not None:
        return Where(phase_of_kind(run.kind), run.micro_batch, run.stage)
    if name.endswith(UPDATE):
        return Where(UPDATE, None, int(name.removesuffix(UPDATE)))
    return Where()


def waited(
    actions: Sequence[SimAction],
    timeline: Timeline,
    index: int,
    before_s: float,
    where: Where,
    kind_of: Callable[[str], str | None],
) -> Iterator[TraceEvent]:
    """Yield what a rank waits for before a function, as rank 0: of what arrives, the last.

    As long as that is not on its way the schedule has no work for the rank.

    Args:
        actions: of the step.
        timeline: of the actions.
        index: the function's.
        before_s: when the rank's last function ended.
        where: the function belongs.
        kind_of: of the time in which something on a stream is on its way; None where nothing is.
    """
    action, begin = actions[index], timeline.starts[index]
    if begin <= before_s:
        return

    def arrival(i: int) -> float:
        return timeline.ends[i] + actions[i].lag

    moved = (i for i in action.after if kind_of(actions[i].stream) is not None)
    last = max(moved, key=arrival, default=None)
    on_way = begin if last is None or arrival(last) < begin else timeline.starts[last]
    middle = min(max(before_s, on_way), begin)
    if middle > before_s:
        label = Label(f"before {action.name}")
        yield TraceEvent(0, COMPUTE, BUBBLE, label, before_s, middle, where)
    if begin > middle and last is not None and (kind := kind_of(actions[last].stream)):
        label = Label(actions[last].name)
        yield TraceEvent(0, COMPUTE, kind, label, middle, begin, where)
