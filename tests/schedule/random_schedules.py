"""Random legal schedules: stages anywhere, micro-batches in any order that a pipeline can run."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from irc.errors import IrcError
from irc.schedule.actions import Action, Schedule, overlap
from irc.schedule.check import check

PLACEMENTS = ("loop", "v", "uneven")


def random_schedule(
    rng: Random, stages: int, micro_batches: int, splits: Sequence[bool], *, copies: int = 1
) -> Schedule:
    """Return a random linear extension of what the actions of a step wait for, cut by rank.

    Args:
        rng: chooses everything else: ranks, their stages, how much each may have in flight.
        stages: of the model.
        micro_batches: of a step, at least as many as copies.
        splits: of each stage, whether its backward is I and W, in some micro-batches at least.
        copies: of the model, each with stages of its own, as DualPipe has two.
    """
    ranks = rng.randint(1, stages)
    places = [rank for _ in range(copies) for rank in _placement(rng, stages, ranks)]
    own = list(range(copies)) + [rng.randrange(copies) for _ in range(micro_batches - copies)]
    rng.shuffle(own)
    paths = tuple(tuple(range(c * stages, (c + 1) * stages)) for c in own)
    limits = [rng.randint(1, 2 * micro_batches) for _ in range(ranks)]
    orders = _Extension(rng, paths, places, splits, limits).run()
    schedule = Schedule(tuple(map(tuple, orders)), paths, name="random")
    check(schedule)
    return _with_overlaps(rng, schedule) if rng.random() < 0.3 else schedule


def _placement(rng: Random, stages: int, ranks: int) -> list[int]:
    match rng.choice(PLACEMENTS):
        case "loop":
            return [stage % ranks for stage in range(stages)]
        case "v":
            turns = [*range(ranks), *reversed(range(ranks))]
            return [turns[stage % (2 * ranks)] for stage in range(stages)]
        case _:
            own = [*range(ranks), *(rng.randrange(ranks) for _ in range(stages - ranks))]
            rng.shuffle(own)
            return own


@dataclass
class _Extension:
    """A schedule while it is drawn.

    Attributes:
        rng: chooses.
        paths: of each micro-batch.
        places: the rank of each stage.
        splits: of each stage of the model.
        limits: how many forwards without their backward each rank has at most.
    """

    rng: Random
    paths: tuple[tuple[int, ...], ...]
    places: Sequence[int]
    splits: Sequence[bool]
    limits: list[int]
    ready: list[Action] = field(default_factory=list[Action])
    queues: dict[tuple[int, int], deque[Action]] = field(
        default_factory=dict[tuple[int, int], deque[Action]]
    )

    def run(self) -> list[list[Action]]:
        ranks = len(self.limits)
        orders: list[list[Action]] = [[] for _ in range(ranks)]
        live = [0] * ranks
        # Some ranks like forwards better, some backwards, some what comes first.
        taste = {kind: self.rng.random() for kind in "FBIW"}
        self.ready = [Action(path[0], "F", m) for m, path in enumerate(self.paths)]
        while self.ready or any(self.queues.values()):
            heads = [queue[0] for queue in self.queues.values() if queue]
            open_now = [
                a for a in (*self.ready, *heads)
                if a.kind != "F" or live[self.places[a.stage]] < self.limits[self.places[a.stage]]
            ]  # fmt: skip
            if not open_now:  # all are full, and wait for each other: some have too little room
                self.limits = [limit + 1 for limit in self.limits]
                continue
            action = self.rng.choices(open_now, [0.05 + taste[a.kind] for a in open_now])[0]
            self._take(action)
            rank = self.places[action.stage]
            orders[rank].append(action)
            live[rank] += {"F": 1, "W": 0}.get(action.kind, -1)
        return orders

    def _take(self, action: Action) -> None:
        """Run an action: others may run now."""
        if action in self.ready:
            self.ready.remove(action)
        else:
            next(q for q in self.queues.values() if q and q[0] == action).popleft()
        stage, kind, micro_batch, _ = action
        path = self.paths[micro_batch]
        at = path.index(stage)
        match kind:
            case "F" if at < len(path) - 1:
                self._send(action, Action(path[at + 1], "F", micro_batch))
            case "F":
                self.ready.append(self._backward(stage, at, micro_batch))
            case "B" | "I":
                if at:
                    self._send(action, self._backward(path[at - 1], at - 1, micro_batch))
                if kind == "I":
                    self.ready.append(Action(stage, "W", micro_batch))
            case _:
                pass

    def _send(self, source: Action, target: Action) -> None:
        """What comes from another rank is taken in the order in which it was sent."""
        if self.places[source.stage] == self.places[target.stage]:
            self.ready.append(target)
        else:
            self.queues.setdefault((source.stage, target.stage), deque()).append(target)

    def _backward(self, stage: int, at: int, micro_batch: int) -> Action:
        first = micro_batch == self.paths.index(self.paths[micro_batch])
        split = self.splits[at] and (first or (micro_batch + at) % 3)
        return Action(stage, "I" if split else "B", micro_batch)


def _with_overlaps(rng: Random, schedule: Schedule) -> Schedule:
    """Return the schedule with some neighbours of a rank as one action, where that can be."""
    for rank, actions in enumerate(schedule.ranks):
        if len(actions) < 2:
            continue
        at = rng.randrange(len(actions) - 1)
        pair = actions[at : at + 2]
        if sorted(a.kind == "F" for a in pair) != [False, True]:
            continue
        merged = (*actions[:at], overlap(*pair), *actions[at + 2 :])
        ranks = (*schedule.ranks[:rank], merged, *schedule.ranks[rank + 1 :])
        other = replace(schedule, ranks=ranks)
        try:
            check(other)
        except IrcError:
            continue
        schedule = other
    return schedule
