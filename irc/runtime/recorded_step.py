"""What a rank notes of a step of a plan of several programs: which function, and what it waits for.

A rank that waits for a value waits first for the other end to begin, which is a bubble of the
schedule, and then for the value. Sums over the ranks of several parts and the loss come at the
end of a step: until the last rank has come the others have nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from irc.plan.parts import PartsPlan
from irc.runtime.actions import Run
from irc.runtime.recorder import Noted, Recorder
from irc.schedule.tapes import Event
from irc.simulate.parts import transfer_bytes
from irc.simulate.step_events import UPDATE, phase_of_kind
from irc.simulate.tapes import STREAMS
from irc.trace.form import BUBBLE, COLLECTIVE, SCHEDULE, TRANSFER, Label, Where
from irc.trace.rows import CARRIED

Value = TypeVar("Value")


class RecordedStep:
    """Notes what one rank does in a step.

    Args:
        plan: the plan.
        rank: of this process.
        recorder: takes the notes.
    """

    def __init__(self, plan: PartsPlan, rank: int, recorder: Recorder) -> None:
        self._plan, self._rank, self._recorder = plan, rank, recorder
        self._posted: dict[str, Any] = {}
        self._moving: dict[object, Any] = {}
        self._streams = dict(
            zip(("store", "fetch"), STREAMS[plan.facts.offload or ""], strict=True)
        )

    def event(self, event: Event, run: Run) -> Run:
        """Return what does an event of the tape that is no move, and notes it."""
        if event.what == "run":
            return self._function(event, run)
        return self._begin(event, run) if event.what in ("post", "send") else self._wait(event, run)

    def _function(self, event: Event, run: Run) -> Run:
        action, recorder = event.action, self._recorder
        where = Where(phase_of_kind(action.kind), action.micro_batch, action.stage)
        noted = recorder.timed(Label(str(action)), run, kind="function", track=SCHEDULE)
        return self._within(where, noted)

    def update(self, part: int, run: Run) -> Run:
        """Return what moves the parameters of a part, and notes it."""
        place = next(p for p, ranks in enumerate(self._plan.ranks) if self._rank in ranks)
        stages = self._plan.parts_at(place)
        stage = next(stage for stage, own in stages.items() if own == part)
        noted = self._recorder.timed(
            Label(f"{stage}{UPDATE}"), run, kind="function", track=SCHEDULE
        )
        return self._within(Where(UPDATE, None, stage), noted)

    def _within(self, where: Where, run: Run) -> Run:
        recorder = self._recorder

        def call() -> None:
            recorder.where = where
            run()
            recorder.where = Where()

        return call

    def _begin(self, event: Event, run: Run) -> Run:
        recorder, label = self._recorder, self._label(event)
        is_send = event.what == "send"
        key = _key(event, "send" if is_send else "post")

        def call() -> None:
            if recorder.is_on:
                recorder.came(key, label)
                self._posted[key] = recorder.clock.now()
            run()

        return call

    def _wait(self, event: Event, run: Run) -> Run:
        recorder, label = self._recorder, self._label(event)
        is_arrival = event.what == "arrive"
        mine, other = ("post", "send") if is_arrival else ("send", "post")
        posted, meets = _key(event, mine), _key(event, other)
        peers = self._peers(event)
        where = Where("", event.action.micro_batch, event.action.stage)
        track = f"link from stage {event.peer}"

        def call() -> None:
            if not recorder.is_on:
                run()
                return
            recorder.where = where
            recorder.waited(label, run, TRANSFER, meets, peers, BUBBLE)
            recorder.where = Where()
            if is_arrival and peers:
                begin, ends = self._posted.pop(posted), (recorder.clock.now(),)
                recorder.add(
                    Noted(CARRIED, track, "transfer", label, where, begin, ends, "", meets, peers)
                )

        return call

    def _label(self, event: Event) -> Label:
        assert event.route is not None
        name = f"{event.route.name} of micro-batch {event.action.micro_batch}"
        ends = event.action.stage, event.peer
        ends = ends if event.what in ("send", "sent") else ends[::-1]
        return Label(name, num_bytes=transfer_bytes(self._plan, event.route.name, *ends))

    def _peers(self, event: Event) -> tuple[int, ...]:
        """Return the ranks at the other end of a message, but for this one."""
        assert event.route is not None
        here, there = event.action.stage, event.peer
        if event.what == "arrive":
            channel = self._plan.channel(event.route.name, there, here)
            return tuple(sorted(message.source for message in channel.receives(self._rank)))
        channel = self._plan.channel(event.route.name, here, there)
        return tuple(sorted(message.target for message in channel.sends(self._rank)))

    def moved(self, events: Sequence[Event], run: Run) -> Run:
        """Return what does moves of values out of their slots or back, and notes them."""
        recorder, what = self._recorder, events[0].what
        names = ", ".join(f"{e.place.register} of {e.action}" for e in events if e.place)
        places = [event.place for event in events]

        def begin() -> None:
            if recorder.is_on:
                self._moving.update(dict.fromkeys(places, recorder.clock.now()))
            run()

        def wait() -> None:
            if not recorder.is_on:
                run()
                return
            label = Label(names)
            recorder.waited(label, run, TRANSFER, "", (), BUBBLE)
            track = self._streams["store" if what == "stored" else "fetch"]
            begun, ends = min(self._moving.pop(p) for p in places), (recorder.clock.now(),)
            where = recorder.where
            recorder.add(Noted(CARRIED, track, "transfer", label, where, begun, ends))

        return begin if what in ("store", "fetch") else wait

    def added(self, name: str, places: Sequence[int], run: Run) -> None:
        """Add something up over the ranks at some places, and note it."""
        if not self._recorder.is_on:
            run()
            return
        place = next(p for p, ranks in enumerate(self._plan.ranks) if self._rank in ranks)
        local = self._plan.ranks[place].index(self._rank)
        peers = [self._plan.ranks[place][local] for place in places]
        self._meet(f"sum of {name}", peers, run)

    def loss(self, run: Callable[[], Value]) -> Value:
        """Give every rank the loss, and note it."""
        if not self._recorder.is_on:
            return run()
        values: list[Value] = []
        self._meet("loss", range(self._plan.mesh.num_ranks), lambda: values.append(run()))
        return values[0]

    def _meet(self, name: str, peers: Sequence[int], run: Run) -> None:
        recorder, label = self._recorder, Label(name, phase=UPDATE)
        key = recorder.meeting(name)
        recorder.came(key, label)
        recorder.waited(label, run, COLLECTIVE, key, peers, BUBBLE)


def _key(event: Event, what: str) -> str:
    """Name an end of a message, alike on both ranks."""
    assert event.route is not None
    return f"{what} {event.route.name} {event.action.micro_batch}"
