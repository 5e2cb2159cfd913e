"""Predicting a step as it is executed: the tapes of its ranks, with slots assigned beforehand.

A rank does what its tape says (:mod:`irc.schedule.tapes`): it begins to receive, waits, calls a
function, begins to send. A message is on its way once both its ends have begun, and those of one
link follow each other as they get ready; each takes a port of both its ranks. All slots are set
aside from the start, so what a rank holds is known without running anything: slots x bytes,
weights, and the largest arena. Values that leave their slots do so on streams of their own, in the
order in which the rank begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from irc.cluster.ports import COMPUTE, IN, OUT
from irc.schedule.actions import Action, Schedule, computed
from irc.schedule.tapes import MOVES, Event, Place, Tape
from irc.simulate.actions import Resource, SimAction
from irc.simulate.columns import Column, folded
from irc.simulate.costs import Costs, Transfer
from irc.simulate.engine import simulate
from irc.simulate.ranks import Register
from irc.simulate.schedule import Places, Simulation
from irc.simulate.update import append_updates, kind_of, stream_of

Ways: TypeAlias = Callable[[str, int, int], Transfer]
"""What a value takes, by the name of its route, from a stage to another."""


@dataclass(frozen=True)
class Moves:
    """Where values are moved to from their slots.

    Attributes:
        store: the stream on which values leave.
        fetch: the stream on which they come back; it may be the same.
        seconds: of a move, by stage of the schedule and name of the register.
    """

    store: str
    fetch: str
    seconds: Mapping[tuple[int, str], float]


STREAMS = {"": ("", ""), "disk": ("disk", "disk"), "host": ("d2h", "h2d")}
"""By where values are moved to, the streams on which they leave and come back."""

_Message: TypeAlias = tuple[int, str, int]
"""A class of columns, a route and a micro-batch."""


def simulate_tapes(
    schedule: Schedule,
    tapes: Sequence[Tape],
    costs: Costs,
    ways: Ways,
    slot_bytes: Mapping[tuple[int, str], float],
    columns: Sequence[Column] = (Column(),),
    moves: Moves | None = None,
    device: Resource | None = None,
) -> Simulation:
    """Simulate a step of tapes.

    Args:
        schedule: that the tapes spell out.
        tapes: of its ranks.
        costs: of its stages; what they save and their transfers are not read.
        ways: what values take that are sent.
        slot_bytes: of a slot, by stage of the schedule and name of the register.
        columns: those that are alike are taken together.
        moves: of values that leave their slots; None where none does.
        device: what functions (:func:`irc.simulate.update.kind_of`), moves and the two ends of
            transfers share on a rank; None: each runs as if alone.
    """
    step = _Step(schedule, tapes, costs, ways, slot_bytes, folded(columns), moves)
    actions = tuple(step.actions)
    devices = {} if device is None else dict.fromkeys(step.devices, device)
    timeline = simulate(actions, devices, as_ready=step.links)
    return Simulation(
        schedule, costs, step.columns, actions, timeline, step.places(), step.registers
    )


class _Step:
    def __init__(
        self,
        schedule: Schedule,
        tapes: Sequence[Tape],
        costs: Costs,
        ways: Ways,
        slot_bytes: Mapping[tuple[int, str], float],
        columns: tuple[Column, ...],
        moves: Moves | None,
    ) -> None:
        self.schedule, self.costs, self.ways, self.columns = schedule, costs, ways, columns
        self.slot_bytes, self.moves = slot_bytes, moves
        self.actions: list[SimAction] = []
        self.links: dict[str, None] = {}
        # What the functions and the moves of a rank share, by the stream of the functions.
        self.devices: dict[str, None] = {}
        self.registers: dict[str, Register] = {}
        self._runs: dict[tuple[int, Action], int] = {}
        # What an action waits for beside the positions in its `after`: messages.
        self._arrivals: dict[int, tuple[_Message, ...]] = {}
        # By message and end of it: the positions after which it begins, and messages before it.
        self._begun: dict[tuple[_Message, str], tuple[tuple[int, ...], tuple[_Message, ...]]] = {}
        self._sent: dict[_Message, Event] = {}
        for column in range(len(columns)):
            for rank, tape in enumerate(tapes):
                self._rank(column, rank, tape)
        self._messages()
        append_updates(self.actions, schedule, costs, columns, self._gradients())

    def _rank(self, column: int, rank: int, tape: Tape) -> None:
        stream = stream_of(rank, column, self.columns)
        self.devices[stream] = None
        slow = self.columns[column].slow.get(rank, 1.0)
        reserved = self._reserved(column, rank, tape)
        last = self._add(SimAction("registers", stream, 0.0, allocates=reserved))
        waits: tuple[_Message, ...] = ()
        # The positions of moves that the next action waits for, and of those under way by slot.
        moved: tuple[int, ...] = ()
        under_way: dict[Place | None, int] = {}
        for event in tape.events:
            if event.what in MOVES:
                if event.what in ("stored", "fetched"):
                    moved = (*moved, under_way.pop(event.place))
                else:
                    move = self._move(event, stream, slow, (last, *moved))
                    under_way[event.place] = self._add(move, waits)
            elif event.what == "run":
                seconds = self.costs.seconds(event.action) * slow
                stage = self.costs.stage(event.action.stage)
                arena = ((stream, stage.arena(event.action.kind)),)
                own = event.action
                kind = COMPUTE if own.parts else kind_of(own.kind, own.stage)
                run = SimAction(
                    str(event.action), stream, seconds, moved, stream, arena, arena, kind=kind
                )
                last = self._runs[column, event.action] = self._add(run, waits)
                waits, moved = (), ()
            else:
                waits = self._message_end(column, event, (last, *moved), waits)
        if waits:
            self._add(SimAction("sent", stream, 0.0), waits)

    def _message_end(
        self, column: int, event: Event, after: tuple[int, ...], waits: tuple[_Message, ...]
    ) -> tuple[_Message, ...]:
        """Note that an end of a message begins, and return what the rank waits for then."""
        assert event.route is not None
        message = column, event.route.name, event.action.micro_batch
        if event.what in ("arrive", "sent"):
            return (*waits, message)
        self._begun[message, event.what] = after, waits
        if event.what == "send":
            self._sent[message] = event
        return waits

    def _move(self, event: Event, rank: str, slow: float, after: tuple[int, ...]) -> SimAction:
        assert self.moves is not None
        assert event.place is not None
        stage, name, _ = event.place
        number = event.action.micro_batch
        stream = self.moves.store if event.what == "store" else self.moves.fetch
        seconds = self.moves.seconds[stage, name] * slow
        return SimAction(
            f"{event.what} {name} of {stage}F{number}", f"{stream} of {rank}", seconds, after,
            rank, kind=stream,
        )  # fmt: skip

    def _add(self, action: SimAction, waits: tuple[_Message, ...] = ()) -> int:
        self.actions.append(action)
        if waits:
            self._arrivals[len(self.actions) - 1] = waits
        return len(self.actions) - 1

    def _reserved(self, column: int, rank: int, tape: Tape) -> tuple[tuple[str, float], ...]:
        """Note the registers of a rank, and return what they take."""
        pool = stream_of(rank, column, self.columns)
        mark = f" of columns {column}" if len(self.columns) > 1 else ""
        total = 0.0
        for (stage, name), count in tape.slots.items():
            size = self.slot_bytes.get((stage, name), 0.0)
            self.registers[f"{name} of stage {stage}{mark}"] = Register(pool, size, count)
            total += size * count
        return ((pool, total),)

    def _messages(self) -> None:
        """Write the messages, and what waits for them."""
        positions = {message: len(self.actions) + i for i, message in enumerate(self._sent)}
        for index, waits in self._arrivals.items():
            own = self.actions[index]
            after = (*own.after, *(positions[message] for message in waits))
            self.actions[index] = replace(own, after=after)
        for message, event in self._sent.items():
            ends = [self._begun[message, end] for end in ("send", "post")]
            after = {position: None for before, _ in ends for position in before}
            after |= {positions[each]: None for _, waits in ends for each in waits}
            self.actions.append(self._message(message, event, tuple(after)))

    def _message(self, message: _Message, event: Event, after: tuple[int, ...]) -> SimAction:
        column, name, micro_batch = message
        source, target = (self.schedule.rank_of[s] for s in (event.action.stage, event.peer))
        # What stays on its rank and lies otherwise there is copied, over no link.
        is_copy = source == target
        way = Transfer() if is_copy else self.ways(name, event.action.stage, event.peer)
        factor = self.columns[column].slow_links.get((source, target), 1.0)
        sender, receiver = (stream_of(rank, column, self.columns) for rank in (source, target))
        link = f"link from {sender} to rank {target}"
        self.links[link] = None
        return SimAction(
            f"{name} of micro-batch {micro_batch}", link, way.seconds * factor, after, sender,
            lag=way.latency_s * factor, kind=f"{way.port}{OUT}",
            beside=(receiver, f"{way.port}{IN}"),
        )  # fmt: skip

    def _gradients(self) -> dict[int, list[int]]:
        """Return by stage the last gradients of its weights, of all columns."""
        last: dict[int, Action] = {}
        for (_, action), _ in sorted(self._runs.items(), key=lambda item: item[1]):
            if action.kind in ("B", "W"):
                last[action.stage] = action
        numbers = range(len(self.columns))
        ends = {s: [self._runs[column, action] for column in numbers] for s, action in last.items()}
        return dict(sorted(ends.items(), key=lambda item: item[1]))

    def places(self) -> Places:
        """Return by class and rank the positions of each action of the schedule."""

        def runs(column: int, action: Action) -> tuple[int, ...]:
            parts = ((column, part) for part in computed([action]))
            return tuple(self._runs[part] for part in parts if part in self._runs)

        return tuple(
            tuple(tuple(runs(column, action) for action in own) for own in self.schedule.ranks)
            for column in range(len(self.columns))
        )
