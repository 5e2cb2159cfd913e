"""Traces as Chrome trace events, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from irc.errors import IrcError
from irc.trace.form import Trace, TraceEvent, track_order

FORM = 1
"""Of the fields of events."""


def to_json(trace: Trace) -> str:
    """Print a trace: times are in microseconds, a rank is a process, a track a thread."""
    said = {
        "irc": FORM,
        "source": trace.source,
        "plan": trace.plan,
        "mesh": trace.mesh,
        "ranks": trace.ranks,
        "step_s": trace.step_s,
        "notes": dict(trace.notes),
    }
    pids = {rank: rank for rank in trace.drawn}
    names = {rank: f"rank {rank}" for rank in pids}
    return _dump(_events([(trace, pids, names)]), said)


def side_by_side(predicted: Trace, measured: Trace) -> str:
    """Print two traces as one: of each rank, what was predicted stands above what was measured.

    Both begin at 0.
    """
    pairs: list[tuple[Trace, dict[int, int], dict[int, str]]] = []
    sides = ("predicted", "measured")
    if predicted.source == measured.source:
        sides = (f"{predicted.source} (first)", f"{measured.source} (second)")
    for place, (trace, side) in enumerate(zip((predicted, measured), sides, strict=True)):
        pids = {rank: 2 * rank + place for rank in trace.drawn}
        pairs.append((trace, pids, {rank: f"rank {rank} {side}" for rank in pids}))
    return _dump(_events(pairs), {"plan": predicted.plan or measured.plan, "side_by_side": sides})


def write_trace(path: str | Path, text: str) -> None:
    """Write the text of a trace; packed, where the name ends in ``.gz``.

    Raises:
        IrcError: ``output-write``.
    """
    data = text.encode()
    place = Path(path)
    try:
        # Equal traces are equal files: no time of writing in them.
        place.write_bytes(gzip.compress(data, mtime=0) if place.suffix == ".gz" else data)
    except OSError as error:
        raise IrcError(
            "output-write", f"cannot write '{path}'", because=error.strerror or str(error)
        ) from None


def _dump(events: list[dict[str, Any]], said: dict[str, Any]) -> str:
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": said})


def _events(
    traces: Sequence[tuple[Trace, dict[int, int], dict[int, str]]],
) -> list[dict[str, Any]]:
    """Return the events of traces, each with its processes by rank and their names."""
    tracks = sorted({e.track for trace, _, _ in traces for e in trace.events}, key=track_order)
    tids = {track: tid for tid, track in enumerate(tracks)}
    rows: list[dict[str, Any]] = []
    for trace, pids, names in traces:
        own = sorted({(event.rank, event.track) for event in trace.events})
        for rank, pid in pids.items():
            rows.append(_said(pid, 0, "process_name", name=names[rank]))
            rows.append(_said(pid, 0, "process_sort_index", sort_index=pid))
        for rank, track in own:
            rows.append(_said(pids[rank], tids[track], "thread_name", name=track))
            rows.append(_said(pids[rank], tids[track], "thread_sort_index", sort_index=tids[track]))
        rows += (_bar(event, pids[event.rank], tids[event.track]) for event in trace.events)
        rows += (
            {
                "name": f"bytes of {held.pool}", "ph": "C", "pid": pids[held.rank],
                "ts": held.at_s * 1e6, "args": {"bytes": held.num_bytes},
            }
            for held in trace.held if held.rank in pids
        )  # fmt: skip
    return rows


def _said(pid: int, tid: int, what: str, /, **args: object) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _bar(event: TraceEvent, pid: int, tid: int) -> dict[str, Any]:
    label, where = event.label, event.where
    args = {
        "id": label.id,
        "line": label.line,
        "bytes": label.num_bytes or None,
        "phase": event.phase,
        "micro_batch": where.micro_batch,
        "stage": where.stage,
    }
    return {
        "name": label.name,
        "cat": event.kind,
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": event.begin_s * 1e6,
        "dur": event.seconds * 1e6,
        "args": {name: value for name, value in args.items() if value not in ("", None)},
    }
