"""How long each stream of a predicted step is busy: ranks, links, disks, memory of hosts."""

from __future__ import annotations

from collections import Counter

from irc.report.table import percent, seconds, table
from irc.simulate.schedule import Simulation


def streams_text(found: Simulation) -> str:
    """Return a row for each stream: what it does in a step, for how long, and its share of that.

    A stream whose share is near to all of the step is what the step waits for.
    """
    counts = Counter(action.stream for action in found.actions if action.seconds)
    busy = found.timeline.busy(found.actions)
    rows = [
        (stream, f"{count}", seconds(busy[stream]), percent(busy[stream], found.seconds))
        for stream, count in sorted(counts.items())
    ]
    return "\n".join(table(("stream", "actions", "busy", "of the step"), rows, right="lrrr"))
