"""A step of a pipeline as actions of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from irc.schedule.actions import Action, Schedule, computed
from irc.simulate.actions import SimAction
from irc.simulate.columns import Column
from irc.simulate.costs import Costs, Transfer
from irc.simulate.update import append_updates, link_between, stream_of


class Register(NamedTuple):
    """Equal places for a value that crosses functions.

    Attributes:
        pool: the rank that it is on.
        num_bytes: of a slot.
        slots: None for as many as the schedule wants.
    """

    pool: str
    num_bytes: float
    slots: int | None


def _is_held(maker: Action, reader: Action) -> bool:
    """Whether a result lies in a register: those of a vocabulary go through collectives."""
    return maker.kind not in "ST" and reader.kind not in "ST"


class _Holds(NamedTuple):
    """What an action does to memory and to registers, as the engine has it."""

    allocates: tuple[tuple[str, float], ...]
    frees: tuple[tuple[str, float], ...]
    takes: tuple[tuple[str, int], ...]
    gives: tuple[tuple[str, int], ...]


class StepBuilder:
    """Writes each class of columns once.

    Attributes:
        columns: the classes.
        actions: of all of them; those of a class are at equal distances from each other.
        places: by class and rank, the positions of the schedule's actions.
        registers: by name.
    """

    def __init__(self, schedule: Schedule, costs: Costs, columns: tuple[Column, ...]) -> None:
        self.schedule, self.costs, self.columns = schedule, costs, columns
        self.actions: list[SimAction] = []
        self.registers: dict[str, Register] = {}
        self._needs: dict[Action, list[Action]] = {}
        # By what makes a value, who reads it: over a transfer, or on the same rank.
        self._sent: dict[Action, list[Action]] = {}
        self._kept: dict[Action, list[Action]] = {}
        self._relations()
        self._position: dict[Action, int] = {}
        self._arrival: dict[tuple[Action, Action], int] = {}
        self._own: list[list[int]] = [[] for _ in schedule.ranks]
        self._length = self._number()
        self._held: dict[object, _Holds] = {}
        for column in range(len(columns)):
            for rank, actions in enumerate(schedule.ranks):
                for action in actions:
                    self._compute(column, rank, action)
                    for maker in action.flat:
                        for reader in self._sent.get(maker, ()):
                            self._send(column, maker, reader)
        self.places = tuple(
            tuple(tuple((column * self._length + i,) for i in own) for own in self._own)
            for column in range(len(columns))
        )
        append_updates(self.actions, schedule, costs, columns, self._gradients())

    def _relations(self) -> None:
        """Find what each action waits for, and where it lies meanwhile."""
        self._rank = {
            part: r for r, own in enumerate(self.schedule.ranks) for part in computed(own)
        }
        free = Transfer()
        for part, rank in self._rank.items():
            needs = self._needs[part] = []
            for alternatives in self.schedule.before(part):
                need = next(each for each in alternatives if each in self._rank)
                needs.append(need)
                if need.stage == part.stage or self.costs.way(need.stage, part.stage) == free:
                    continue
                if self._rank[need] != rank:
                    self._sent.setdefault(need, []).append(part)
                elif _is_held(need, part):
                    self._kept.setdefault(need, []).append(part)

    def _number(self) -> int:
        """Give each action of a class its position, and return how many there are."""
        count = 0
        for rank, actions in enumerate(self.schedule.ranks):
            for action in actions:
                self._own[rank].append(count)
                for part in action.flat:
                    self._position[part] = count
                count += 1
                for part in action.flat:
                    for reader in self._sent.get(part, ()):
                        self._arrival[part, reader] = count
                        count += 1
        return count

    def _compute(self, column: int, rank: int, action: Action) -> None:
        base, own = column * self._length, self._position.get(action.flat[0])
        after: dict[int, None] = {}
        for part in action.flat:
            for need in self._needs.get(part, ()):
                position = self._arrival.get((need, part), self._position[need])
                if position != own:
                    after[base + position] = None
        seconds = self.costs.seconds(action) * self.columns[column].slow.get(rank, 1.0)
        pool = stream_of(rank, column, self.columns)
        holds = self._holds(column, pool, action)
        self.actions.append(SimAction(str(action), pool, seconds, tuple(after), None, *holds))

    def _send(self, column: int, maker: Action, reader: Action) -> None:
        source, target = self._rank[maker], self._rank[reader]
        way, own = self.costs.way(maker.stage, reader.stage), self.columns[column]
        factor = own.slow_links.get((source, target), 1.0)
        held = _Holds((), (), (), ())
        if _is_held(maker, reader):
            inbox, outbox = self._boxes(column, maker.stage, reader.stage)
            held = _Holds(
                ((stream_of(target, column, self.columns), way.num_bytes),),
                ((stream_of(source, column, self.columns), way.num_bytes),),
                ((inbox, 1),),
                ((outbox, 1),),
            )
        self.actions.append(
            SimAction(
                f"{maker} to {reader.stage}",
                link_between(stream_of(source, column, self.columns), target),
                way.seconds * factor,
                (column * self._length + self._position[maker],),
                None,
                *held,
                lag=way.latency_s * factor,
            )
        )

    def _boxes(self, column: int, source: int, target: int) -> tuple[str, str]:
        """Return the registers in which a value lies where it arrives and where it is sent."""
        mark = f" of columns {column}" if len(self.columns) > 1 else ""
        way = self.costs.way(source, target)
        names = (
            f"inputs of stage {target} from {source}{mark}",
            f"results of stage {source} for {target}{mark}",
        )
        for name, stage in zip(names, (target, source), strict=True):
            if name not in self.registers:
                pool = stream_of(self.schedule.rank_of[stage], column, self.columns)
                self.registers[name] = Register(pool, way.num_bytes, way.slots)
        return names

    def _holds(self, column: int, pool: str, action: Action) -> _Holds:
        """Return what an action allocates, frees, takes and gives."""
        ends = [(part, *self._ends(part)) for part in action.flat]
        key = (column, *((part.stage, part.kind, *ways) for part, *ways in ends))
        if key in self._held:
            return self._held[key]
        allocates = frees = 0.0
        takes: list[tuple[str, int]] = []
        gives: list[tuple[str, int]] = []
        for part, makes, reads in ends:
            stage = self.costs.stage(part.stage)
            arena = stage.arena(part.kind)
            allocates, frees = allocates + arena, frees + arena
            for register, num_bytes, taken, released in self._saved(column, pool, part):
                allocates, frees = allocates + num_bytes * taken, frees + num_bytes * released
                takes += [(register, 1)] * taken
                gives += [(register, 1)] * released
            for target in makes:
                allocates += self.costs.way(part.stage, target).num_bytes
                takes.append((self._boxes(column, part.stage, target)[1], 1))
            for source, arrives in reads:
                frees += self.costs.way(source, part.stage).num_bytes
                gives.append((self._boxes(column, source, part.stage)[0 if arrives else 1], 1))
        memory = ((pool, allocates),) if allocates else (), ((pool, frees),) if frees else ()
        self._held[key] = _Holds(*memory, tuple(takes), tuple(gives))
        return self._held[key]

    def _ends(self, part: Action) -> tuple[tuple[int, ...], tuple[tuple[int, bool], ...]]:
        """Return the stages that read an action's result, and those it reads: which over a link."""
        makes = (*self._sent.get(part, ()), *self._kept.get(part, ()))
        reads = [
            (need.stage, (need, part) in self._arrival)
            for need in self._needs.get(part, ())
            if _is_held(need, part)
            and ((need, part) in self._arrival or part in self._kept.get(need, ()))
        ]
        return tuple(r.stage for r in makes if _is_held(part, r)), tuple(reads)

    def _saved(
        self, column: int, pool: str, part: Action
    ) -> Iterator[tuple[str, float, bool, bool]]:
        """Yield registers of what F saves: name, bytes, whether an action takes or gives a slot."""
        if part.kind not in "FBIW":
            return
        stage = self.costs.stage(part.stage)
        mark = f" of columns {column}" if len(self.columns) > 1 else ""
        for what, num_bytes, released in (
            ("saved values", stage.saved_bytes - stage.kept_bytes, part.kind in "BI"),
            ("weight inputs", stage.kept_bytes, part.kind in "BW"),
        ):
            if what == "saved values" or stage.kept_bytes:
                name = f"{what} of stage {part.stage}{mark}"
                self.registers[name] = Register(pool, num_bytes, stage.slots)
                yield name, num_bytes, part.kind == "F", released

    def _gradients(self) -> dict[int, list[int]]:
        """Return by stage, in the order in which they end, the actions after which to add up."""
        last: dict[int, int] = {}
        reduced: set[int] = set()
        for own, actions in zip(self._own, self.schedule.ranks, strict=True):
            for position, action in zip(own, actions, strict=True):
                for part in action.flat:
                    if part.kind == "REDUCE_GRAD":
                        reduced.add(part.stage)
                        last[part.stage] = position
                    elif part.kind in ("B", "W") and part.stage not in reduced:
                        last[part.stage] = position
        return {
            stage: [column * self._length + position for column in range(len(self.columns))]
            for stage, position in sorted(last.items(), key=lambda item: item[1])
        }
