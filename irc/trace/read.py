"""Reading traces: irc's own, and those of torch.profiler."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from irc.trace.chrome import (
    LATEST_US,
    WRITES,
    ChromeFile,
    Object,
    as_object,
    read_chrome,
    unreadable,
)
from irc.trace.form import Held, Label, Trace, TraceEvent, Where
from irc.trace.torch_profiler import profiled
from irc.trace.write import FORM


def read_trace(path: str | Path, like: Trace | None = None) -> Trace:
    """Read a trace.

    Args:
        path: a file of Chrome trace events, packed or not.
        like: the prediction that a profile of torch is held against, whose names and lines its
            events get; None to take irc's own traces alone.

    Raises:
        IrcError: ``trace-unreadable`` where the file is no trace, or an empty one;
            ``trace-mismatch`` where a profile shows nothing of ``like``.
    """
    file = read_chrome(path)
    said = as_object(file.data.get("otherData"))
    if "side_by_side" in said:
        raise unreadable(path, "it holds two traces side by side", WRITES)
    if "irc" in said:
        return _own(file, said)
    if like is None:
        raise unreadable(path, "irc has not written it", WRITES)
    return profiled(file, like)


def _own(file: ChromeFile, said: Object) -> Trace:
    if said["irc"] != FORM:
        raise unreadable(file.path, f"its form is {said['irc']!r}, and this irc reads {FORM}")
    try:
        tracks = {
            (row["pid"], row["tid"]): str(row["args"]["name"])
            for row in file.rows
            if row.get("name") == "thread_name"
        }
        events = tuple(_event(bar, tracks) for bar in file.bars)
        held = tuple(_held(row) for row in file.rows if row.get("ph") == "C")
        source = said["source"]
        if source not in ("predicted", "measured"):
            raise ValueError(f"its source is {source!r}")
        if not 0 <= said["step_s"] < LATEST_US:
            raise ValueError(f"its step takes {said['step_s']} s")
        notes = {str(name): str(text) for name, text in as_object(said["notes"]).items()}
        return Trace(
            source, events, float(said["step_s"]), str(said["plan"]), str(said["mesh"]),
            int(said["ranks"]), held, notes,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise unreadable(file.path, f"it lacks what irc writes: {error}") from None


def _held(row: Object) -> Held:
    pool = str(row["name"]).removeprefix("bytes of ")
    return Held(int(row["pid"]), pool, row["ts"] / 1e6, float(row["args"]["bytes"]))


def _event(bar: Object, tracks: Mapping[tuple[Any, Any], str]) -> TraceEvent:
    args = as_object(bar.get("args"))
    begin = bar["ts"] / 1e6
    label = Label(
        bar["name"], str(args.get("id", "")), str(args.get("line", "")), int(args.get("bytes", 0)),
        str(args.get("phase", "")),
    )  # fmt: skip
    where = Where(label.phase, args.get("micro_batch"), args.get("stage"))
    track, end = tracks[bar["pid"], bar["tid"]], begin + bar["dur"] / 1e6
    return TraceEvent(int(bar["pid"]), track, str(bar["cat"]), label, begin, end, where)
