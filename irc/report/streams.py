"""How long each stream of a predicted step is busy: ranks, links, disks, memory of hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from irc.report.table import percent, seconds, table
from irc.simulate.schedule import Simulation


@dataclass(frozen=True)
class StreamFacts:
    """A stream of a predicted step.

    Attributes:
        name: ``rank 0`` computes, ``link from rank 0 to rank 1`` sends, ``disk of rank 0``, ``d2h
            of rank 0`` and ``h2d of rank 0`` move values out of their slots and back.
        actions: that take time.
        busy_s: for how long it does them. Near to all of a step, it is what the step waits for.
    """

    name: str
    actions: int
    busy_s: float


def streams_of(simulation: Simulation) -> tuple[StreamFacts, ...]:
    """Return what each stream of a step does, by name."""
    counts = Counter(action.stream for action in simulation.actions if action.seconds)
    busy = simulation.timeline.busy(simulation.actions)
    return tuple(StreamFacts(name, count, busy[name]) for name, count in sorted(counts.items()))


def streams_table(streams: Sequence[StreamFacts], step_s: float) -> list[str]:
    """Return a row for each stream, with its share of the step."""
    rows = [
        (each.name, f"{each.actions}", seconds(each.busy_s), percent(each.busy_s, step_s))
        for each in streams
    ]
    return table(("stream", "actions", "busy", "of the step"), rows, right="lrrr")
