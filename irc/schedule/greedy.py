"""A schedule made by list scheduling: each rank does what is ready, in an order of preference.

The rules follow the automatic scheduler of Zero Bubble (Qi et al., arXiv:2401.10241, section 3.1):
forwards fill the pipe within the memory, then forwards and gradients of inputs alternate, and
gradients of weights go into gaps that they fit, or where memory is short.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from irc.schedule.actions import Action, Schedule, straight
from irc.schedule.timeline import Times


@dataclass(frozen=True)
class Rules:
    """How a rank chooses.

    Attributes:
        fill: forwards that a rank runs before its first backward: 0 for as many as memory holds,
            1 for as many as come before the first gradient can be back.
        alternate: after a backward prefer a forward; else a backward whenever one is ready.
        gap: W is begun where the next thing that is known to come is more than ``gap`` times as
            far away as W takes.
        deep_first: of two stages prefer the later one for forwards.
    """

    fill: int = 0
    alternate: bool = True
    gap: float = 1.0
    deep_first: bool = True


RULES = tuple(
    Rules(fill, alternate, gap)
    for fill in (0, 1)
    for alternate in (True, False)
    for gap in (0.0, 0.5, 1.0)
)
"""What a search tries."""


def list_schedule(
    placement: Sequence[Sequence[int]],
    micro_batches: int,
    times: Times,
    limits: Sequence[float],
    rules: Rules,
    *,
    weight_share: float = 0.0,
    split: bool = True,
    paths: tuple[tuple[int, ...], ...] = (),
) -> Schedule | None:
    """Make a schedule; O(actions log ranks).

    Args:
        placement: the stages of each rank, in the order of the model.
        micro_batches: of a step.
        times: of the stages.
        limits: by rank, the activations of a stage that it can hold.
        rules: how a rank chooses.
        weight_share: of what F saves, the part that W reads; the rest is released at I.
        split: whether a backward is I and W; else it is B.
        paths: by micro-batch, the stages that it goes through; all of them where left out.

    Returns:
        The schedule, or None where the rules come to an end before it is complete.
    """
    paths = paths or straight(sum(map(len, placement)), micro_batches)
    return _Run(placement, paths, times, limits, rules, weight_share, split).schedule()


class _Rank:
    """What a rank has done, and what is to come."""

    def __init__(self, stages: Sequence[int], limit: float) -> None:
        self.stages = tuple(stages)
        self.limit = limit
        self.order: list[Action] = []
        self.has_run_backward = False
        self.weights: deque[Action] = deque()
        self.free = 0.0
        self.live = 0.0
        self.last = ""


class _Run:
    def __init__(
        self,
        placement: Sequence[Sequence[int]],
        paths: tuple[tuple[int, ...], ...],
        times: Times,
        limits: Sequence[float],
        rules: Rules,
        weight_share: float,
        split: bool,
    ) -> None:
        self.paths, self.times, self.rules = paths, times, rules
        self.share = weight_share if split else 0.0
        self.backward = "I" if split else "B"
        self.ranks = [_Rank(s, limit) for s, limit in zip(placement, limits, strict=True)]
        self.num_stages = sum(map(len, placement))
        self.rank_of = {s: rank for rank, own in enumerate(placement) for s in own}
        stages = range(self.num_stages)
        self.forward_s = [times.of(Action(s, "F", 0)) for s in stages]
        self.backward_s = [times.of(Action(s, self.backward, 0)) for s in stages]
        self.weight_s = [times.of(Action(s, "W", 0)) for s in stages]
        # Per stage, micro-batches whose input or gradient is known to come, and when.
        self.values: list[deque[tuple[float, int]]] = [deque() for _ in stages]
        self.gradients: list[deque[tuple[float, int]]] = [deque() for _ in stages]
        # By the two ranks (-1: any), until when a way is taken by what was sent.
        self.links: dict[tuple[int, int], float] = {}
        for micro_batch, path in enumerate(paths):
            self.values[path[0]].append((0.0, micro_batch))

    def schedule(self) -> Schedule | None:
        waiting = [(0.0, rank) for rank in range(len(self.ranks))]
        heapq.heapify(waiting)
        asleep: set[int] = set()
        while waiting:
            now, number = heapq.heappop(waiting)
            rank = self.ranks[number]
            if rank.free > now:
                continue
            asleep.discard(number)
            action, until = self._choose(rank, now)
            if action is None:
                if until < inf:
                    heapq.heappush(waiting, (until, number))
                else:
                    asleep.add(number)
                continue
            end = now + self._seconds(action)
            rank.free = end
            rank.order.append(action)
            for other, at in self._effects(rank, action, end):
                if other in asleep or at > now:
                    heapq.heappush(waiting, (max(at, now), other))
            heapq.heappush(waiting, (end, number))
        kinds = 3 if self.backward == "I" else 2
        if sum(len(r.order) for r in self.ranks) < kinds * sum(map(len, self.paths)):
            return None
        return Schedule(tuple(tuple(rank.order) for rank in self.ranks), self.paths)

    def _seconds(self, action: Action) -> float:
        match action.kind:
            case "F":
                return self.forward_s[action.stage]
            case "W":
                return self.weight_s[action.stage]
            case _:
                return self.backward_s[action.stage]

    def _effects(self, rank: _Rank, action: Action, end: float) -> list[tuple[int, float]]:
        """Count an action; return the ranks that it gives something, and when."""
        stage, kind, micro_batch, _ = action
        if kind == "W":
            rank.weights.popleft()
            rank.live -= self.share
            return []
        rank.last = kind
        path = self.paths[micro_batch]
        position = path.index(stage)
        if kind == "F":
            rank.live += 1
            if position + 1 == len(path):
                self.gradients[stage].append((end, micro_batch))
                return []
            target, queue = path[position + 1], self.values
        else:
            rank.has_run_backward = True
            rank.live -= 1 - self.share
            if kind == "I":
                rank.weights.append(Action(stage, "W", micro_batch))
            if position == 0:
                return []
            target, queue = path[position - 1], self.gradients
        other = self.rank_of[target]
        at = end if self.ranks[other] is rank else self._arrival(stage, other, end)
        queue[target].append((at, micro_batch))
        return [(other, at)]

    def _arrival(self, stage: int, other: int, end: float) -> float:
        """Return when what a stage sends to a rank is there."""
        source = self.rank_of[stage]
        ways = [(source, other)]
        if self.times.shares_ports:
            ways = [(source, -1), (-1, other)]
        begin = max(end, *(self.links.get(way, 0.0) for way in ways))
        self.links.update(dict.fromkeys(ways, begin + self.times.wire))
        return begin + self.times.transfer

    def _choose(self, rank: _Rank, now: float) -> tuple[Action | None, float]:
        """Return what a rank does now, or None and until when it waits."""
        forward, forward_at = self._next_forward(rank, now)
        backward, backward_at = self._next_backward(rank, now)
        can_forward = forward is not None and forward_at <= now
        can_backward = backward is not None and backward_at <= now
        if can_forward and can_backward:
            prefers_forward = self.rules.alternate and rank.last != "F"
            if self.rules.fill == 0 and not rank.has_run_backward:
                prefers_forward = True
            chosen = forward if prefers_forward else backward
            self._pop(chosen)
            return chosen, now
        if can_forward or can_backward:
            chosen = forward if can_forward else backward
            self._pop(chosen)
            return chosen, now
        soon = min(forward_at, backward_at)
        if rank.weights:
            action = rank.weights[0]
            room = soon - now
            if room >= self.rules.gap * self.weight_s[action.stage]:
                return action, now
        return None, soon

    def _pop(self, action: Action | None) -> None:
        assert action is not None
        queue = self.values if action.kind == "F" else self.gradients
        queue[action.stage].popleft()

    def _next_forward(self, rank: _Rank, now: float) -> tuple[Action | None, float]:
        """Return the forward that a rank would run next, and when its input is there."""
        best, best_at = None, inf
        stages = rank.stages[::-1] if self.rules.deep_first else rank.stages
        for stage in stages:
            if not self.values[stage]:
                continue
            # The later stages of a micro-batch must still find room, or nobody ever frees any.
            reserve = len(rank.stages) - 1 - rank.stages.index(stage)
            if rank.live + 1 + reserve > rank.limit + 1e-9:
                continue
            at, micro_batch = self.values[stage][0]
            if max(at, now) < best_at:
                best, best_at = Action(stage, "F", micro_batch), max(at, now)
        return best, best_at

    def _next_backward(self, rank: _Rank, now: float) -> tuple[Action | None, float]:
        best, best_at = None, inf
        for stage in rank.stages[::-1]:
            if not self.gradients[stage]:
                continue
            at, micro_batch = self.gradients[stage][0]
            if max(at, now) < best_at:
                best, best_at = Action(stage, self.backward, micro_batch), max(at, now)
        return best, best_at
