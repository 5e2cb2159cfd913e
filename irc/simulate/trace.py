"""Chrome traces: a timeline as JSON that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from irc.simulate.actions import SimAction, Timeline


def chrome_trace(actions: Sequence[SimAction], timeline: Timeline) -> str:
    """Print a timeline; each stream has a thread id of its own, since bars of one must not overlap.

    Instant actions (starts, waits that find their data) are left out.
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
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
