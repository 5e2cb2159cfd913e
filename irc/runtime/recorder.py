"""What a rank notes of a call: each launch, library op, collective and wait, with its time.

A plan that is recorded runs its launches one by one, each with a clock around it; nothing else is
different. On a GPU the clock is that of its stream, by events that are recorded between launches.
A recorder that is off notes nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch

from irc.dialects.placement import Mesh
from irc.plan.load import LoadedPlan
from irc.plan.schema import Copy, Kernels, Library, Start
from irc.runtime.actions import Actions, Run
from irc.runtime.collectives import Communicator, Finish, Operands
from irc.runtime.frame import Frame
from irc.runtime.segments import LoadSegments, Segment, SegmentCall
from irc.simulate.labels import Labels
from irc.trace.form import COLLECTIVE, COMPUTE, HOST, HOST_TRACK, KERNEL, Label, Where
from irc.trace.rows import CAME, CARRIED, DID, STRAGGLER, WAITED, Recorded, Row

Mark: TypeAlias = Any
"""A moment, as a clock notes it."""


class Clock(Protocol):
    """Notes moments, and says afterwards when they were."""

    def start(self) -> float:
        """Begin to count, and return the seconds of this moment by the clock of the host."""
        ...

    def now(self) -> Mark:
        """Note this moment."""
        ...

    def stop(self) -> None:
        """Wait until all noted moments are past."""
        ...

    def seconds(self, mark: Mark) -> float:
        """Return when a moment was, by the clock of the host."""
        ...


class HostClock:
    """The clock of the host: what a rank calls has ended when the call returns."""

    def start(self) -> float:
        """Return now."""
        return time.perf_counter()

    def now(self) -> Mark:
        """Return now, in seconds."""
        return time.perf_counter()

    def stop(self) -> None:
        """There is nothing to wait for."""

    def seconds(self, mark: Mark) -> float:
        """Return it."""
        return mark


class StreamClock:
    """The clock of a GPU's current stream, on which launches are done long after their calls."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._base_s = device, 0.0
        self._base: Any = None

    def start(self) -> float:
        """Wait for the device, so that its clock and the host's are known to be at one moment."""
        torch.cuda.synchronize(self._device)
        self._base, self._base_s = self.now(), time.perf_counter()
        return self._base_s

    def now(self) -> Mark:
        """Record an event on the stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def stop(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self._device)

    def seconds(self, mark: Mark) -> float:
        """Return when an event was; moments of the host's own clock are what they are."""
        if isinstance(mark, float):
            return mark
        return self._base_s + self._base.elapsed_time(mark) / 1e3


class Noted(NamedTuple):
    """A row of which the clock has not yet told the times.

    Attributes:
        form, track, kind, label, where, key, meets, peers, until: as of
            :class:`irc.trace.rows.Row`.
        begin: when it began.
        ends: moments at which it may have ended; the first counts, as a collective may say so
            itself before its wait.
    """

    form: str
    track: str
    kind: str
    label: Label
    where: Where
    begin: Mark
    ends: tuple[Mark, ...]
    key: str = ""
    meets: str = ""
    peers: tuple[int, ...] = ()
    until: str = STRAGGLER

    def row(self, seconds: Callable[[Mark], float]) -> Row:
        """Return the row, its times as a clock tells them."""
        return Row(
            self.form, self.track, self.kind, self.label, self.where, seconds(self.begin),
            min(map(seconds, self.ends)), self.key, self.meets, self.peers, self.until,
        )  # fmt: skip


class Recorder:
    """Notes what a rank does while it is on.

    Args:
        rank: whose.
        mesh: of the whole run: along its axes ranks meet in collectives.
        clock: tells the time.

    Attributes:
        where: what functions run in now, in a pipeline.
    """

    def __init__(self, rank: int, mesh: Mesh, clock: Clock) -> None:
        self.rank, self.mesh, self.clock = rank, mesh, clock
        self.is_on, self.where = False, Where()
        self._noted: list[Noted] = []
        self._meetings: Counter[str] = Counter()

    @staticmethod
    def on(device: torch.device, rank: int, mesh: Mesh) -> Recorder:
        """Return a recorder of what a rank runs on a device."""
        clock = HostClock() if device.type == "cpu" else StreamClock(device)
        return Recorder(rank, mesh, clock)

    def record(self, run: Run) -> Recorded:
        """Run something, and return what was noted of it."""
        self._noted, self._meetings = [], Counter()
        begin = self.clock.start()
        self.is_on = True
        try:
            run()
        finally:
            self.is_on = False
        end = self.clock.now()
        self.clock.stop()
        seconds = self.clock.seconds
        return Recorded(tuple(each.row(seconds) for each in self._noted), begin, seconds(end))

    def add(self, noted: Noted) -> None:
        """Note something."""
        self._noted.append(noted)

    def timed(self, label: Label, run: Run, *, kind: str = KERNEL, track: str = COMPUTE) -> Run:
        """Return what runs something and notes that it did."""

        def noted() -> None:
            if not self.is_on:
                run()
                return
            begin = self.clock.now()
            run()
            self.add(Noted(DID, track, kind, label, self.where, begin, (self.clock.now(),)))

        return noted

    def meeting(self, name: str) -> str:
        """Return a name for the next time that ranks meet for something, alike on all of them."""
        where = self.where
        key = f"{name} {where.stage} {where.micro_batch}"
        self._meetings[key] += 1
        return f"{key} {self._meetings[key]}"

    def came(self, key: str, label: Label) -> None:
        """Note that the rank has come to a meeting now."""
        now = self.clock.now()
        self.add(Noted(CAME, "", "", label, self.where, now, (now,), key))

    def waited(
        self, label: Label, run: Run, kind: str, key: str, peers: Sequence[int], until: str
    ) -> None:
        """Run what waits for a meeting, and note it.

        Args:
            label: of what is waited for.
            run: waits.
            kind: of the time when all have come.
            key: the meeting.
            peers: who comes.
            until: of the time before.
        """
        begin = self.clock.now()
        run()
        noted = Noted(
            WAITED, COMPUTE, kind, label, self.where, begin, (self.clock.now(),), "", key,
            tuple(peers), until,
        )  # fmt: skip
        self.add(noted)

    def loading(self, load: LoadSegments) -> LoadSegments:
        """Return what loads kernels so that each launch is timed."""

        def one_by_one(
            loaded: LoadedPlan, segments: Sequence[Sequence[SegmentCall]], num_threads: int
        ) -> Sequence[Segment]:
            single = [[call] for calls in segments for call in calls]
            launches = iter(load(loaded, single, num_threads) if single else [])
            plan = loaded.plan
            label = Labels(plan)
            groups = [a.calls for a in (*plan.prepared, *plan.actions) if isinstance(a, Kernels)]
            return [
                Launches(self, [(label(call), next(launches)) for call in calls])
                for calls in groups
            ]

        return one_by_one

    def actions(self, plain: Actions) -> Actions:
        """Return actions that are timed, given how they are carried out."""
        labels = Labels(plain.plan)
        peers = RecordedPeers(self, labels, plain.communicator)
        return RecordedActions(plain.plan, plain.rank, peers, self, labels)


class Launches:
    """A segment whose launches are native calls of their own.

    Args:
        recorder: notes each.
        launches: in order.
    """

    def __init__(self, recorder: Recorder, launches: Sequence[tuple[Label, Segment]]) -> None:
        self._recorder, self._launches = recorder, launches

    def run(self, table: int) -> None:
        """Run all launches in order; ``table`` is the address of the base table."""
        recorder = self._recorder
        if not recorder.is_on:
            for _, segment in self._launches:
                segment.run(table)
            return
        now, where = recorder.clock.now, recorder.where
        for label, segment in self._launches:
            begin = now()
            segment.run(table)
            recorder.add(Noted(DID, COMPUTE, KERNEL, label, where, begin, (now(),)))


@dataclass(frozen=True)
class RecordedActions(Actions):
    """Actions of which library ops and copies are timed; the communicator times collectives."""

    recorder: Recorder
    labels: Labels

    def step(
        self,
        index: int,
        action: Any,
        frame: Frame,
        segments: Iterator[Segment],
        pending: dict[int, Finish],
    ) -> Run:
        """Return what carries out one action and notes it."""
        run = super().step(index, action, frame, segments, pending)
        if isinstance(action, Library | Copy):
            return self.recorder.timed(self.labels(action), run)
        return run


@dataclass(frozen=True)
class RecordedPeers:
    """Starts collectives, and notes when they begin, when they end and for how long a rank waits.

    Attributes:
        recorder: notes it.
        labels: of the plan.
        inner: starts them.
    """

    recorder: Recorder
    labels: Labels
    inner: Communicator

    def start(self, action: Start, operands: Operands) -> Finish:
        """Begin."""
        recorder, clock = self.recorder, self.recorder.clock
        if not recorder.is_on:
            return self.inner.start(action, operands)
        label, axis, where = self.labels(action), action.attrs["axis"], recorder.where
        key = recorder.meeting(f"{label.name} {label.id}")
        peers = tuple(recorder.mesh.group_of(recorder.rank, axis))
        begin = clock.now()
        finish = self.inner.start(action, operands)
        recorder.add(Noted(DID, HOST_TRACK, HOST, label, where, begin, (clock.now(),)))
        ends: list[Mark] = []
        if isinstance(clock, HostClock):
            when_done(finish, lambda: ends.append(clock.now()))

        def wait() -> None:
            recorder.waited(label, finish, COLLECTIVE, key, peers, "straggler")
            until, track = (clock.now(), *ends), f"comm {axis}"
            recorder.add(
                Noted(CARRIED, track, "collective", label, where, begin, until, key, key, peers)
            )

        return wait


def when_done(finish: Finish, call: Callable[[], object]) -> None:
    """Have something called when a collective has ended, before its wait; messages tell nobody."""

    def done(_: object) -> object:
        return call()

    work: Any = getattr(finish, "work", None) or getattr(finish, "__self__", None)
    with suppress(RuntimeError):  # torch: this kind of work has no future
        if work is not None:
            work.get_future().add_done_callback(done)
