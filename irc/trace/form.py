"""What ranks do and when, in one form for what is predicted and for what is measured.

A rank is a process and each of its streams a track: ``compute``, ``comm AXIS`` for collectives over
an axis of the mesh, ``link from stage N`` for values of another stage, ``d2h``, ``h2d`` and
``disk`` for values that leave their slots, ``host`` for what Python does between ops, ``schedule``
for the functions of a pipeline. Events of a track do not overlap.

What a rank's time goes to (:data:`SPENT`) lies on ``compute`` and ``host`` alone: kernels, waiting
by its reason, and the host. On each rank these add up to the step, so traces can be compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

Source: TypeAlias = Literal["predicted", "measured"]

COMPUTE, HOST_TRACK, SCHEDULE = "compute", "host", "schedule"

KERNEL, COLLECTIVE, TRANSFER, BUBBLE, STRAGGLER, HOST = SPENT = (
    "kernel",
    "exposed collective",
    "exposed transfer",
    "bubble",
    "straggler",
    "host",
)
"""What the time of a rank goes to: kernels, library ops and copies; a collective, or a value on its
way, that compute does not hide; a pipeline that has no work for the rank; ranks that come late to a
collective; Python between ops."""

CARRIED = ("collective", "transfer", "function")
"""Kinds of events on tracks beside compute and host."""

BACKWARD_ID = re.compile(r"\.g\d*(?:[/.,]|$)")
STEP_ID = re.compile(r"(?:^|/)step[a-z]*\d*[./]")


class Label(NamedTuple):
    """What an event is.

    Attributes:
        name: of the kernel, op or value.
        id: of the plan's action, as ``n4/b2``.
        line: of the user's model, as ``model.py:12``; empty where none is known.
        num_bytes: that it reads and writes, or moves.
        phase: ``forward``, ``backward``, ``update`` or empty.
    """

    name: str
    id: str = ""
    line: str = ""
    num_bytes: int = 0
    phase: str = ""


class Where(NamedTuple):
    """Where in a pipeline an event belongs.

    Attributes:
        phase: ``forward``, ``backward``, ``update`` or empty.
        micro_batch: its number; None outside of micro-batches.
        stage: of the schedule; None outside of a pipeline.
    """

    phase: str = ""
    micro_batch: int | None = None
    stage: int | None = None


class TraceEvent(NamedTuple):
    """A span of time on a track.

    Attributes:
        rank: whose.
        track: the stream.
        kind: one of :data:`SPENT` on the tracks of compute and host, else one of :data:`CARRIED`.
        label: what it is.
        begin_s, end_s: seconds since the step began.
        where: in a pipeline.
    """

    rank: int
    track: str
    kind: str
    label: Label
    begin_s: float
    end_s: float
    where: Where = Where()

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return self.end_s - self.begin_s

    @property
    def phase(self) -> str:
        """The phase of its function, else of its op."""
        return self.where.phase or self.label.phase


class Held(NamedTuple):
    """Bytes that a rank has in use from a moment on."""

    rank: int
    pool: str
    at_s: float
    num_bytes: float


@dataclass(frozen=True)
class Trace:
    """A call or step of a plan.

    Attributes:
        source: predicted or measured.
        events: of all ranks that are drawn.
        step_s: seconds of the step.
        plan: the hash of the plan; empty where the trace does not say.
        mesh: of the plan, as its text.
        ranks: how many the plan has; of ranks that do the same, one may be drawn.
        held: bytes in use, where they are known.
        notes: what else the file says, such as how the clocks of ranks were compared.
    """

    source: Source
    events: tuple[TraceEvent, ...]
    step_s: float
    plan: str = ""
    mesh: str = ""
    ranks: int = 1
    held: tuple[Held, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def drawn(self) -> tuple[int, ...]:
        """The ranks that have events."""
        return tuple(sorted({event.rank for event in self.events}))


def phase_of_id(name: str) -> str:
    """Return the phase of an op of a program of training, by its id.

    >>> [phase_of_id(name) for name in ("n4/b2", "n4.g/b0n2.g1", "n2.g0.box0", "step0.3,step0.9")]
    ['forward', 'backward', 'backward', 'update']
    """
    if STEP_ID.search(name):
        return "update"
    return "backward" if BACKWARD_ID.search(name) else "forward"


def track_order(track: str) -> tuple[int, str]:
    """Return by what tracks are sorted: what a rank computes first, then what it moves.

    >>> sorted(["host", "comm data", "compute", "schedule"], key=track_order)
    ['schedule', 'compute', 'comm data', 'host']
    """
    heads = (SCHEDULE, COMPUTE, "comm", "link", "d2h", "h2d", "disk", HOST_TRACK)
    head = track.partition(" ")[0]
    return heads.index(head) if head in heads else len(heads), track


def in_turn(events: Iterable[TraceEvent]) -> list[TraceEvent]:
    """Return events, by their begin, of which none begins before the last of its track has ended.

    What lies wholly inside of another, as a message behind one that is slower, is left out.
    """
    ends: dict[tuple[int, str], float] = {}
    kept: list[TraceEvent] = []
    for event in sorted(events, key=lambda each: (each.begin_s, each.end_s)):
        key = event.rank, event.track
        begin = max(event.begin_s, ends.get(key, event.begin_s))
        if event.end_s > begin:
            ends[key] = event.end_s
            kept.append(event if begin == event.begin_s else event._replace(begin_s=begin))
    return kept


def with_host(events: Iterable[TraceEvent], rank: int, end_s: float) -> list[TraceEvent]:
    """Return the events of a rank, and what it does not say itself as time of the host.

    A gap before an op is Python on its way to it, and has its line.

    Args:
        events: of the rank.
        rank: whose.
        end_s: when its step ended; it began at 0.
    """
    own = in_turn(events)
    at, gaps = 0.0, list[TraceEvent]()
    for event in own:
        if event.track not in (COMPUTE, HOST_TRACK):
            continue
        if event.begin_s > at:
            label = event.label._replace(name="host", num_bytes=0)
            gaps.append(TraceEvent(rank, HOST_TRACK, HOST, label, at, event.begin_s, event.where))
        at = max(at, event.end_s)
    if end_s > at:
        gaps.append(TraceEvent(rank, HOST_TRACK, HOST, Label("host"), at, end_s))
    return sorted((*own, *gaps), key=lambda each: (each.begin_s, each.end_s))
