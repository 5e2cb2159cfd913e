"""A run's trace: one call on all ranks, recorded, by one clock.

Of some recorded calls the quickest is kept. Ranks of one machine have one clock. Those of several
are compared at barriers, which all ranks leave at about the same time; the trace says how well.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from irc.errors import InternalError
from irc.runtime.processes import gather_seconds, gather_texts
from irc.runtime.recorder import Recorder
from irc.runtime.report import show_seconds
from irc.trace.form import Trace
from irc.trace.rows import Recorded, events_of
from irc.trace.write import to_json, write_trace

CALLS = 5
"""That are recorded, behind one that is not."""
LEAD_S, AWAKE_S = 5e-3, 1e-3
BARRIERS = 15
BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Of Linux: processes that read the same here have the same clock."""


@dataclass(frozen=True)
class Offset:
    """How far the clock of this rank is ahead of rank 0's.

    Attributes:
        seconds: by which.
        note: how that is known.
    """

    seconds: float
    note: str


def traced(
    path: str, recorder: Recorder, run: Callable[[], object], digest: str, *, pipeline: bool,
    best_s: float, sizes: Sequence[str] = (),
) -> tuple[str, ...]:  # fmt: skip
    """Record a call on all ranks, and write the trace on rank 0; every rank calls it.

    Args:
        path: of the trace.
        recorder: of what ``run`` calls.
        run: the call.
        digest: the hash of the plan.
        pipeline: the plan is of several programs.
        best_s: seconds of a call that is not recorded, on this rank.
        sizes: numbers of open sizes, as the trace says them.

    Returns:
        On rank 0, lines for the report; elsewhere nothing.

    Raises:
        IrcError: ``output-write``.
    """
    run()
    offset = clock_offset()
    kept: Recorded | None = None
    least = float("inf")
    for _ in range(CALLS):
        start_together(offset.seconds)
        recorded = recorder.record(run)
        longest = max(_of_all(recorded.end_s - recorded.begin_s))
        if longest < least:
            kept, least = recorded, longest
    if kept is None:
        raise InternalError("no call was recorded")
    best_s = max(_of_all(best_s))
    texts = [kept.shifted(-offset.seconds).to_json()]
    texts = gather_texts(texts[0]) if dist.is_initialized() else texts
    if recorder.rank:
        return ()
    ranks = {rank: Recorded.from_json(text) for rank, text in enumerate(texts)}
    events, step_s = events_of(ranks, pipeline=pipeline)
    notes = {
        "clocks": offset.note,
        "recording": f"launches one by one: {show_seconds(step_s)}, {show_seconds(best_s)} without",
    }
    if sizes:
        notes["sizes"] = ", ".join(sizes)
    mesh = recorder.mesh
    trace = Trace("measured", tuple(events), step_s, digest, str(mesh), mesh.num_ranks, notes=notes)
    write_trace(path, to_json(trace))
    return (
        f"trace      {path}: {len(events)} events, {show_seconds(step_s)} a call while recorded",
        f"clocks     {offset.note}",
    )


def start_together(ahead_s: float = 0.0) -> None:
    """Return at one moment on all ranks; every rank calls it.

    Ranks leave a barrier when they are told, a millisecond apart. So they agree on a time.

    Args:
        ahead_s: by which this rank's clock is ahead of rank 0's.
    """
    if not dist.is_initialized():
        return
    at = max(gather_seconds(time.perf_counter() - ahead_s)) + LEAD_S + ahead_s
    while (left := at - time.perf_counter()) > 0.0:
        # The system wakes a thread late: the last of it is waited for awake.
        time.sleep(max(0.0, left - AWAKE_S))


def _of_all(seconds: float) -> list[float]:
    return gather_seconds(seconds) if dist.is_initialized() else [seconds]


def clock_offset(*, one_machine: bool | None = None) -> Offset:
    """Return how far this rank's clock is ahead of rank 0's; every rank calls it.

    Args:
        one_machine: whether all ranks have one clock; None to see for oneself.
    """
    if not dist.is_initialized():
        return Offset(0.0, "one process, one clock")
    if one_machine is None:
        boots = gather_texts(BOOT.read_text() if BOOT.exists() else "", everywhere=True)
        one_machine = len(set(boots)) == 1 and bool(boots[0])
    if one_machine:
        return Offset(0.0, "one machine, one clock")
    ahead: list[list[float]] = []
    for _ in range(BARRIERS):
        dist.barrier()  # pyright: ignore[reportUnknownMemberType]
        times = gather_seconds(time.perf_counter())
        ahead.append([at - times[0] for at in times])
    by_rank = [sorted(column) for column in zip(*ahead, strict=True)]
    # Half of the barriers are left within this of the median, on the rank that is least regular.
    spread = max(each[3 * BARRIERS // 4] - each[BARRIERS // 4] for each in by_rank)
    own = statistics.median(by_rank[dist.get_rank()])
    note = f"compared at {BARRIERS} barriers, to within {show_seconds(spread)}"
    return Offset(own, note)
