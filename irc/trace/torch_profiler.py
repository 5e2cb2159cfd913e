"""Profiles of torch.profiler as traces, by the names of a plan's kernels.

A profile has kernels by their own names and no plan. What bears the name of a predicted kernel gets
its line: the first of that name in a step is the first of the prediction, and so on; so do
collectives, by their op. Kernels that lie on several streams count on one: what torch computes on
beside its main stream is rare. Where kernels pause, a collective that is under way is exposed, and
otherwise the host is behind.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from irc.errors import IrcError
from irc.trace.chrome import ChromeFile, Object, as_object
from irc.trace.form import (
    COLLECTIVE,
    COMPUTE,
    KERNEL,
    Label,
    Trace,
    TraceEvent,
    Where,
    in_turn,
    with_host,
)

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of what a GPU does."""
STEP = "ProfilerStep#"
COPIES = {"HtoD": "h2d", "DtoH": "d2h"}
COLLECTIVES = re.compile(r"nccl|gloo|c10d::", re.IGNORECASE)
OPS = {
    "allreduce": "comm.all_reduce",
    "allgather": "comm.all_gather",
    "reducescatter": "comm.reduce_scatter",
    "alltoall": "comm.all_to_all",
    "sendrecv": "comm.permute",
}
LEAST_NAME = 4
"""Letters of a kernel's name that may stand inside of another: fewer are found by chance."""


class _Span(NamedTuple):
    """A bar of a profile, its time in seconds since the step began."""

    name: str
    track: str
    begin_s: float
    end_s: float


def profiled(file: ChromeFile, like: Trace) -> Trace:
    """Return the last step of a profile as a trace.

    Args:
        file: the profile.
        like: what was predicted of the plan.

    Raises:
        IrcError: ``trace-unreadable``, ``trace-mismatch``.
    """
    path, (begin, end) = file.path, _window(file.bars)
    spans = list(_spans(file.bars, begin, end))
    if not spans:
        raise IrcError(
            "trace-unreadable",
            f"'{path}' is no trace that can be compared",
            because="its last step has neither kernels of a GPU nor ops of torch",
            help="profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        )
    rank = _rank(file.data)
    names = _Names(like, rank)
    events = [names.event(rank, span) for span in spans]
    if not names.known:
        raise IrcError(
            "trace-mismatch",
            f"'{path}' shows nothing of the plan that was predicted",
            because=f"none of its {len(spans)} kernels and collectives has a name of the plan",
            help="irc run PLAN --trace FILE measures a plan, on CPUs as well, whose kernels "
            "torch.profiler does not see",
        )
    step_s = (end - begin) / 1e6
    notes = {
        "profile": f"{names.known} of {len(spans)} events are the plan's by name",
        "clocks": f"rank {rank} alone, by torch.profiler",
    }
    if names.rank != rank:
        notes["names"] = f"of rank {names.rank}: the prediction does not draw rank {rank}"
    own = with_host([*events, *_exposed(rank, events)], rank, step_s)
    return Trace("measured", tuple(own), step_s, like.plan, like.mesh, like.ranks, notes=notes)


def _rank(data: Object) -> int:
    rank: Any = as_object(data.get("distributedInfo")).get("rank", 0)
    return rank if isinstance(rank, int) else 0


def _window(bars: Sequence[Object]) -> tuple[float, float]:
    """Return when the last step begins and ends, in microseconds; else when the profile does."""
    steps = [bar for bar in bars if bar["name"].startswith(STEP)]
    # What the device does of a step is later than what Python calls it.
    steps = [bar for bar in steps if bar.get("cat") == "gpu_user_annotation"] or steps
    if steps:
        last = max(steps, key=lambda bar: bar["ts"])
        return last["ts"], last["ts"] + last["dur"]
    counted = [bar for bar in bars if bar.get("cat") in (*DEVICE, "cpu_op")] or bars
    return min(bar["ts"] for bar in counted), max(bar["ts"] + bar["dur"] for bar in counted)


def _spans(bars: Sequence[Object], begin: float, end: float) -> Iterable[_Span]:
    """Yield what a GPU does in a step; where there is none, the outermost ops of torch."""
    inside = [bar for bar in bars if begin <= bar["ts"] < end]
    of_device = [bar for bar in inside if bar.get("cat") in DEVICE]
    chosen = of_device or list(_outermost(bar for bar in inside if bar.get("cat") == "cpu_op"))
    for bar in chosen:
        first, last = (bar["ts"] - begin) / 1e6, (min(bar["ts"] + bar["dur"], end) - begin) / 1e6
        yield _Span(bar["name"], _track(bar), first, last)


def _outermost(ops: Iterable[Object]) -> Iterable[Object]:
    """Yield the ops that no other has called, of the thread that is busiest."""
    threads: dict[Any, list[Object]] = defaultdict(list)
    for op in ops:
        threads[f"{op.get('tid')}"].append(op)
    if not threads:
        return
    until = float("-inf")
    busiest = max(threads.values(), key=lambda own: sum(op["dur"] for op in own))
    for op in sorted(busiest, key=lambda op: (op["ts"], -op["dur"])):
        if op["ts"] >= until:
            until = op["ts"] + op["dur"]
            yield op


def _track(bar: Object) -> str:
    name = str(bar["name"])
    if bar.get("cat") == "gpu_memcpy":
        return next((track for letters, track in COPIES.items() if letters in name), COMPUTE)
    return "comm" if COLLECTIVES.search(name) else COMPUTE


class _Names:
    """The kernels and collectives of a prediction, each by its name in the order of a rank.

    Args:
        like: the prediction.
        rank: that was measured.

    Attributes:
        known: how many events had one of these names.
        rank: whose names these are: of the measured rank where it is drawn, as the ranks of a
            pipeline do different things; else of the first that is drawn.
    """

    def __init__(self, like: Trace, rank: int) -> None:
        self.known = 0
        self.rank = next(iter(like.drawn), rank) if rank not in like.drawn else rank
        self._labels: dict[str, list[tuple[Label, Where, str]]] = defaultdict(list)
        self._seen = Counter[str]()
        for event in like.events:
            if event.rank == self.rank and event.kind in (KERNEL, "collective"):
                own = (event.label, event.where, event.track)
                self._labels[event.label.name].append(own)

    def event(self, rank: int, span: _Span) -> TraceEvent:
        """Return a span as an event, with the label of the prediction where it is known."""
        is_collective = span.track == "comm"
        kind = "collective" if is_collective else KERNEL if span.track == COMPUTE else "transfer"
        name = self._op(span.name) if is_collective else self._kernel(span.name)
        if name is None:
            label = Label(span.name)
            return TraceEvent(rank, span.track, kind, label, span.begin_s, span.end_s)
        self.known += 1
        number, labels = self._seen[name], self._labels[name]
        self._seen[name] += 1
        label, where, track = labels[number % len(labels)]
        return TraceEvent(rank, track, kind, label, span.begin_s, span.end_s, where)

    def _op(self, name: str) -> str | None:
        letters = re.sub("[^a-z]", "", name.lower())
        known = next((op for word, op in OPS.items() if word in letters), None)
        return known if known in self._labels else None

    def _kernel(self, name: str) -> str | None:
        plain = re.split(r"[(<]", name.removeprefix("void "))[0].strip()
        if plain in self._labels:
            return plain
        held = [own for own in self._labels if len(own) >= LEAST_NAME and own in name]
        return max(held, key=len, default=None)


def _exposed(rank: int, events: Sequence[TraceEvent]) -> Iterable[TraceEvent]:
    """Yield where no kernel runs and a collective does."""
    busy = in_turn(event for event in events if event.track == COMPUTE)
    carried = in_turn(event for event in events if event.kind == "collective")
    for event in carried:
        at = event.begin_s
        for kernel in (k for k in busy if k.end_s > event.begin_s and k.begin_s < event.end_s):
            if kernel.begin_s > at:
                yield _bare(rank, event, at, kernel.begin_s)
            at = max(at, kernel.end_s)
        if event.end_s > at:
            yield _bare(rank, event, at, event.end_s)


def _bare(rank: int, event: TraceEvent, begin: float, end: float) -> TraceEvent:
    return TraceEvent(rank, COMPUTE, COLLECTIVE, event.label, begin, end, event.where)
