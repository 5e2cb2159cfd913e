"""The best schedule there is, for small pipelines: a reference for the search."""

from __future__ import annotations

from collections.abc import Iterator

from irc.errors import IrcError
from irc.schedule.actions import Action, Schedule, straight
from irc.schedule.timeline import Timeline, Times, play

MAX_ACTIONS = 36
"""F, I and W of all stages and micro-batches: more have too many orders."""


def exact(times: Times, *, ranks: int, micro_batches: int, memory: float | None = None) -> Timeline:
    """Return a schedule of the least makespan, one stage a rank, by branch and bound.

    Depth first over semi-active schedules: the action that can begin first is begun, or one that
    can begin before that one would end (Giffler and Thompson 1960). Micro-batches are alike, so
    each kind runs in their order. A branch ends where a rank's work, or the way that its last
    micro-batch has still to go, cannot end before the best end so far.

    Args:
        times: of the stages.
        ranks: of the pipeline.
        micro_batches: of a step.
        memory: micro-batches whose activations a rank can hold, released at I.

    Raises:
        IrcError: ``schedule-size`` for a pipeline that is too large; ``schedule-memory``.
    """
    if 3 * ranks * micro_batches > MAX_ACTIONS:
        raise IrcError(
            "schedule-size",
            f"{3 * ranks * micro_batches} actions have too many orders to compare all",
            help=f"at most {MAX_ACTIONS}; the search without --exact takes larger ones",
        )
    best = _Branches(times, ranks, micro_batches, memory).best()
    if best is None:
        raise IrcError(
            "schedule-memory", f"no order holds at most {memory:g} activations",
            because="one micro-batch at a time holds one",
        )  # fmt: skip
    return play(best, times)


class _Branches:
    def __init__(self, times: Times, ranks: int, micro_batches: int, memory: float | None) -> None:
        self.times, self.ranks, self.count = times, ranks, micro_batches
        self.memory = micro_batches if memory is None else memory
        self.seconds = {(s, k): times.of(Action(s, k, 0)) for s in range(ranks) for k in "FIW"}
        self.done = {(s, k): 0 for s in range(ranks) for k in "FIW"}
        self.free = [0.0] * ranks
        self.ends: dict[Action, float] = {}
        self.order: list[Action] = []
        self.least = float("inf")
        self.kept: list[Action] | None = None

    def best(self) -> Schedule | None:
        self._branch()
        if self.kept is None:
            return None
        orders = tuple(tuple(a for a in self.kept if a.stage == s) for s in range(self.ranks))
        return Schedule(orders, straight(self.ranks, self.count))

    def _branch(self) -> None:
        if len(self.order) == 3 * self.ranks * self.count:
            end = max(self.free)
            if end < self.least - 1e-12:
                self.least, self.kept = end, list(self.order)
            return
        if self._bound() >= self.least - 1e-12:
            return
        ready = list(self._ready())
        if not ready:
            return
        first = min(begin + self.seconds[a.stage, a.kind] for begin, a in ready)
        rank = min(a.stage for b, a in ready if b + self.seconds[a.stage, a.kind] <= first + 1e-12)
        for begin, action in sorted(ready):
            if action.stage == rank and begin < first - 1e-12:
                self._with(begin, action)

    def _with(self, begin: float, action: Action) -> None:
        stage, kind, _, _ = action
        before = self.free[stage]
        self.free[stage] = self.ends[action] = begin + self.seconds[stage, kind]
        self.done[stage, kind] += 1
        self.order.append(action)
        self._branch()
        self.order.pop()
        self.done[stage, kind] -= 1
        del self.ends[action]
        self.free[stage] = before

    def _ready(self) -> Iterator[tuple[float, Action]]:
        for stage in range(self.ranks):
            for kind in "FIW":
                number = self.done[stage, kind]
                if number == self.count:
                    continue
                if kind == "F":
                    live = number - self.done[stage, "I"]
                    if live + 1 > self.memory:
                        continue
                action = Action(stage, kind, number)
                begin = self.free[stage]
                for source in self._sources(action):
                    if source not in self.ends:
                        break
                    sent = self.times.transfer if source.stage != stage else 0.0
                    begin = max(begin, self.ends[source] + sent)
                else:
                    yield begin, action

    def _sources(self, action: Action) -> Iterator[Action]:
        stage, kind, number, _ = action
        if kind == "F" and stage:
            yield Action(stage - 1, "F", number)
        if kind == "I":
            yield Action(stage, "F", number)
            if stage + 1 < self.ranks:
                yield Action(stage + 1, "I", number)
        if kind == "W":
            yield Action(stage, "I", number)

    def _bound(self) -> float:
        """Return a time before which no completion of this order ends."""
        bound = 0.0
        for stage in range(self.ranks):
            left = {k: self.count - self.done[stage, k] for k in "FIW"}
            work = sum(left[k] * self.seconds[stage, k] for k in "FIW")
            bound = max(bound, self.free[stage] + work)
            if left["I"]:
                # Its last I still goes to the first rank, whose W comes after it.
                way = sum(self.seconds[s, "I"] + self.times.transfer for s in range(stage))
                rest = left["I"] * self.seconds[stage, "I"] + left["F"] * self.seconds[stage, "F"]
                bound = max(bound, self.free[stage] + rest + way + self.seconds[0, "W"])
        return bound
