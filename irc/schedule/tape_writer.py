"""From a schedule to the tapes of its ranks: which slot each value has, and when it is sent.

Slots are assigned before anything runs, by colouring the intervals in which values are alive in the
rank's order of actions (left-edge algorithm), so that each function is given addresses. A receive
begins as soon as its slot is free, so it is under way while earlier actions run. A value that is
moved is stored behind the last action that uses it before its slot is wanted, and fetched some
actions before the next that does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from irc.errors import IrcError
from irc.schedule.actions import Action, Schedule, computed
from irc.schedule.lifetimes import Value, assign_outside, assign_slots, divided
from irc.schedule.tapes import Event, Function, Route, Tape, What, Wiring, play_tapes


class _Rank:
    """One rank while its tape is written."""

    def __init__(
        self,
        schedule: Schedule,
        wiring: Wiring,
        rank: int,
        ahead: int,
        more: Mapping[tuple[int, str], int],
    ) -> None:
        self.schedule, self.wiring, self.rank = schedule, wiring, rank
        self.ahead, self.more = ahead, more
        self.actions = [a for a in computed(schedule.ranks[rank]) if self._function(a)]
        self.values: dict[tuple[int, str, int], Value] = {}
        self._stored: set[int] = set()

    def _model_stage(self, action: Action) -> int:
        return self.schedule.paths[action.micro_batch].index(action.stage)

    def _function(self, action: Action) -> Function | None:
        return self.wiring.function(self._model_stage(action), action.kind, action.micro_batch)

    def write(self) -> Tape:
        for at, action in enumerate(self.actions):
            self._visit(at, action)
        slots, outside = self._assign()
        return Tape(tuple(self._events()), slots, outside)

    def _part(self, value: Value) -> int:
        return self.schedule.paths[value.micro_batch].index(value.stage)

    def _visit(self, at: int, action: Action) -> None:
        function = self._function(action)
        assert function is not None
        for name in function.reads:
            value = self._value(action, name, at)
            if value.last < at:
                value.uses.append(at)
        for name in function.makes:
            key = action.stage, name, action.micro_batch
            value = self.values[key] = Value(*key, [at])
            value.sent = list(self._goes(action, name))

    def _value(self, action: Action, name: str, at: int) -> Value:
        key = action.stage, name, action.micro_batch
        if key not in self.values:
            stage = self._model_stage(action)
            skipped = self._skipped(action.micro_batch)
            routes = list(self.wiring.routes_to(stage, name, skipped))
            if not routes:
                raise IrcError(
                    "schedule-order",
                    f"{action} reads '{name}', which nothing before it on its rank makes",
                    help="run F before B or I, and I before W",
                )
            if (producer := self._on_own_rank(routes[0], action.micro_batch)) is not None:
                return self.values[producer, routes[0].register, action.micro_batch]
            self.values[key] = Value(*key, [at], arrives=routes[0])
        return self.values[key]

    def _skipped(self, micro_batch: int) -> tuple[int, ...]:
        """Return the stages that a micro-batch leaves out."""
        skips = self.schedule.skips
        return skips[micro_batch] if skips else ()

    def _on_own_rank(self, route: Route, micro_batch: int) -> int | None:
        """Return the stage that makes a value which this rank reads where it lies."""
        producer, consumer = (
            self.schedule.paths[micro_batch][k] for k in (route.producer, route.consumer)
        )
        ranks = self.schedule.rank_of
        here = ranks[producer] == ranks[consumer] == self.rank
        return producer if here and route.name in self.wiring.aligned else None

    def _goes(self, action: Action, register: str) -> Iterator[tuple[Route, int]]:
        path = self.schedule.paths[action.micro_batch]
        stage = path.index(action.stage)
        skipped = self._skipped(action.micro_batch)
        for route in self.wiring.routes_from(stage, register, skipped):
            if self._on_own_rank(route, action.micro_batch) is None:
                yield route, path[route.consumer]

    def _assign(self) -> tuple[dict[tuple[int, str], int], dict[tuple[int, str], int]]:
        """Give each value its slots, and its places outside; return how many, by register."""
        by_register: dict[tuple[int, str], list[Value]] = {}
        for value in self.values.values():
            by_register.setdefault((value.stage, value.register), []).append(value)
        slots: dict[tuple[int, str], int] = {}
        outside: dict[tuple[int, str], int] = {}
        for key, values in by_register.items():
            allowed = self.ahead, self.more.get(key, 0)
            if self.wiring.moved and key[1] in self.wiring.moved[self._part(values[0])]:
                values = divided(values, *allowed)
                if count := assign_outside(values):
                    outside[key] = count
            slots[key] = assign_slots(values, *allowed)
        return slots, outside

    def _lives(self) -> Iterator[Value]:
        for value in self.values.values():
            yield from value.parts()

    def _events(self) -> Iterator[Event]:
        begun: dict[int, list[Value]] = {}
        last: dict[tuple[int, str], int] = {}
        for value in sorted(self._lives(), key=lambda v: (v.first, v.micro_batch)):
            if value.arrives is not None:
                # In the order in which they are sent: some transports tell messages by that alone.
                at, key = 0, (value.stage, value.register)
                if (before := value.follows) is not None:
                    # While what was there is being stored, the rank would wait for that.
                    at = before.last + 1 + (self.ahead if before.back else 0)
                at = last[key] = max(at, last.get(key, 0))
                begun.setdefault(at, []).append(value)
            elif value.came is not None:
                begun.setdefault(value.first - self.ahead, []).append(value)
        for at, action in enumerate(self.actions):
            yield from self._begin(begun.get(at, ()))
            yield from self._run(at, action)
        followed = {id(value.follows) for value in self._lives()}
        for value in self._lives():
            for route, peer in value.sent if id(value) not in followed else ():
                yield self._event("sent", value, route, peer)

    def _begin(self, values: Iterable[Value]) -> Iterator[Event]:
        """Begin to receive values, and to fetch others back."""
        values = sorted(values, key=lambda value: value.came is not None)
        for value in values:
            yield from self._credit(value)
            if value.came is None:
                yield self._event("post", value, value.arrives)
            else:
                yield from self._stored_once(value.came)
        for value in values:
            if value.came is not None:
                yield self._move("fetch", value, value.came.outside)

    def _run(self, at: int, action: Action) -> Iterator[Event]:
        function = self._function(action)
        assert function is not None
        used = (*function.reads, *function.makes)
        own = {name: self._value(action, name, at).at(at) for name in used}
        # A stage may read one value by two names.
        each = list({id(value): value for value in own.values()}.values())
        for value in each:
            if value.arrives is not None and value.first == at:
                yield self._event("arrive", value, value.arrives)
        for value in each:
            if value.came is not None and value.first == at:
                yield self._move("fetched", value, value.came.outside)
        for name in function.makes:
            yield from self._credit(own[name])
        yield Event(
            "run",
            action,
            reads={n: own[n].place for n in function.reads},
            makes={n: own[n].place for n in function.makes},
        )
        for name in function.makes:
            for route, peer in own[name].sent:
                yield self._event("send", own[name], route, peer)
        for value in each:
            if value.back is not None and value.last == at:
                yield self._move("store", value, value.outside)

    def _credit(self, value: Value) -> Iterator[Event]:
        """Wait until what lay in a value's slot before has been sent, and is outside."""
        before = value.follows
        if before is not None:
            for route, peer in before.sent:
                yield self._event("sent", before, route, peer)
            yield from self._stored_once(before)

    def _stored_once(self, value: Value) -> Iterator[Event]:
        """Wait until a value is outside, where nothing has waited for that yet."""
        if value.back is not None and id(value) not in self._stored:
            self._stored.add(id(value))
            yield self._move("stored", value, value.outside)

    def _move(self, what: What, value: Value, outside: int) -> Event:
        action = Action(value.stage, "F", value.micro_batch)
        return Event(what, action, place=value.place, outside=outside)

    def _event(self, what: What, value: Value, route: Route | None, peer: int = -1) -> Event:
        action = Action(value.stage, "F", value.micro_batch)
        if peer < 0 and route is not None:
            peer = self.schedule.paths[value.micro_batch][route.producer]
        return Event(what, action, route, value.place, peer)


def tapes_of(schedule: Schedule, wiring: Wiring, *, ahead: int = 1) -> tuple[Tape, ...]:
    """Spell out what each rank of a schedule does.

    Args:
        schedule: that passes `irc.schedule.check`.
        wiring: of the stages.
        ahead: how many actions before it is read a value may arrive, and how many after it was made
            its send may take, before a slot is wanted for the next: 0 saves memory. So long a move
            outside or back may take, too. A register with
            which ranks would wait for each other's slots gets as many more as it takes.

    Raises:
        IrcError: ``schedule-order``, ``schedule-deadlock``.
    """
    more: dict[tuple[int, str], int] = {}
    while True:
        tapes = tuple(
            _Rank(schedule, wiring, rank, ahead, more).write()
            for rank in range(len(schedule.ranks))
        )
        stuck = play_tapes(tapes)
        if not stuck:
            return tapes
        short = [event.place for _, event in stuck if event.what == "sent" and event.place]
        if not short:
            raise _deadlock(stuck, schedule)
        for place in short:
            key = place.stage, place.register
            more[key] = more.get(key, 0) + 1


def _deadlock(stuck: Sequence[tuple[int, Event]], schedule: Schedule) -> IrcError:
    waits = [
        f"rank {rank} waits for {event.route.name if event.route else ''} of micro-batch "
        f"{event.action.micro_batch}, from rank {schedule.rank_of[event.peer]}"
        for rank, event in stuck
    ]
    return IrcError(
        "schedule-deadlock",
        "ranks wait for each other for ever",
        because=waits,
        help="change the order of their actions",
    )
