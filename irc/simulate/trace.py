"""A simulated schedule as a Chrome trace: its streams, without what its functions consist of.

Plans, whose steps have names and lines, are traced as :mod:`irc.trace.form` says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from irc.simulate.actions import SimAction, Timeline


def chrome_trace(actions: Sequence[SimAction], timeline: Timeline) -> str:
    """Print a timeline; each stream has a thread id of its own, since bars of one must not overlap.

    Instant actions (starts, waits that find their data) are left out. What is alive in each pool is
    a counter.
    """
    threads = {name: i for i, name in enumerate(dict.fromkeys(a.stream for a in actions))}
    events: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": tid, "args": {"name": name}}
        for name, tid in threads.items()
    ]
    for action, start, end in zip(actions, timeline.starts, timeline.ends, strict=True):
        if end > start:
            events.append({
                "name": action.name,
                "ph": "X",
                "pid": 0,
                "tid": threads[action.stream],
                "ts": start * 1e6,
                "dur": (end - start) * 1e6,
                "cat": "predicted",
            })  # fmt: skip
    events += (
        {"name": f"bytes of {pool}", "ph": "C", "pid": 0, "ts": at * 1e6, "args": {"bytes": alive}}
        for pool, at, alive in held_bytes(actions, timeline)
    )
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def held_bytes(
    actions: Sequence[SimAction], timeline: Timeline
) -> Iterator[tuple[str, float, float]]:
    """Yield what is alive in a pool after each moment in which that changes."""
    changes: dict[tuple[float, str], float] = {}
    for action, start, end in zip(actions, timeline.starts, timeline.ends, strict=True):
        for at, sign, sizes in ((start, 1.0, action.allocates), (end, -1.0, action.frees)):
            for pool, size in sizes:
                changes[at, pool] = changes.get((at, pool), 0.0) + sign * size
    alive: dict[str, float] = {}
    for (at, pool), change in sorted(changes.items()):
        if change:
            alive[pool] = alive.get(pool, 0.0) + change
            yield pool, at, alive[pool]
