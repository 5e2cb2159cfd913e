"""Vocabulary Parallelism: the last layer's vocabulary on all ranks, woven into a schedule.

Yeung et al., arXiv:2411.05288: each rank has a part of the vocabulary. S computes its logits of a
micro-batch after the last stage's F, T the gradients of its part of the weights. Between them lie
barriers of all ranks: the largest logit and the sum (both algorithms), and with algorithm 1 the sum
of the gradients that the last stage's backward begins with. Each barrier lets every rank run one
more forward before its first backward, so that nobody waits for it: the first rank of 1F1B holds
p + 2 micro-batches with algorithm 1, p + 1 with algorithm 2.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace

from irc.errors import IrcError
from irc.schedule.actions import OVERLAP, Action, Schedule, computed
from irc.schedule.timeline import Times

BARRIERS = {1: 2, 2: 1}
"""By algorithm, how many barriers lie between a micro-batch's last F and its first backward."""


def with_vocabulary(schedule: Schedule, algorithm: int, times: Times | None = None) -> Schedule:
    """Weave S and T of a vocabulary that all ranks share into a schedule.

    Args:
        schedule: of one copy of the model, without overlaps.
        algorithm: 1 or 2, as the paper counts them; 2 needs one barrier less.
        times: of the stages and of S and T, which say where these go; by default a third of F each.

    Raises:
        IrcError: ``schedule-size`` for another algorithm, or a schedule that cannot take it.
    """
    if algorithm not in BARRIERS:
        raise IrcError(
            "schedule-size", f"Vocabulary Parallelism has the algorithms 1 and 2, not {algorithm}"
        )
    if len({path[-1] for path in schedule.paths}) > 1 or schedule.vocabulary:
        raise IrcError(
            "schedule-size",
            "a vocabulary can be woven in where all micro-batches end in one stage, once",
        )
    if any(action.kind == OVERLAP for actions in schedule.ranks for action in actions):
        raise IrcError(
            "schedule-size", "no vocabulary can be woven into actions that run as one (DualPipe)"
        )
    times = times or Times(logits=1 / 3, vocabulary_gradient=1 / 3)
    # Where micro-batches skip stages, ranks that run ahead may come to wait for each other.
    for barriers in range(BARRIERS[algorithm], -1, -1):
        ranks = tuple(_earlier_forwards(actions, barriers) for actions in schedule.ranks)
        woven = _woven(replace(schedule, ranks=ranks), algorithm, times)
        if sum(map(len, woven.ranks)) == sum(map(len, ranks)) + _num_of_slices(schedule):
            return woven
    raise IrcError(
        "schedule-size",
        f"no vocabulary can be woven into schedule '{schedule.name}'",
        because="its backwards begin in another order than that of the micro-batches",
    )


def _num_of_slices(schedule: Schedule) -> int:
    """Return how many S and T there are: one of each on every rank for each micro-batch."""
    return 2 * len(schedule.ranks) * schedule.num_micro_batches


def _earlier_forwards(actions: Sequence[Action], barriers: int) -> tuple[Action, ...]:
    """Return a rank's order with each backward behind so many more micro-batches' forwards."""
    own = {action.stage for action in computed(actions)}
    forwards = [action for action in actions if action.kind == "F"]
    taken = barriers * len(own)
    order = forwards[:taken]
    for action in actions:
        if action.kind != "F":
            order.append(action)
        elif taken < len(forwards):
            order.append(forwards[taken])
            taken += 1
    # What has no forward to wait behind keeps its place: the drain is as it was.
    return tuple(order)


def _woven(schedule: Schedule, algorithm: int, times: Times) -> Schedule:
    """Run the schedule, each rank taking S and T as they come; return the orders that result.

    S goes before all else, since all ranks wait for it; so does T of algorithm 1. T of algorithm 2
    is waited for by nobody: it goes behind a backward, or where a rank would idle.
    """
    woven = replace(schedule, vocabulary=algorithm, ranks=tuple(() for _ in schedule.ranks))
    own = [min(action.stage for action in computed(actions)) for actions in schedule.ranks]
    run = _Run(schedule, woven, own, algorithm, times)
    return replace(woven, ranks=run.orders())


class _Run:
    """The event loop: ranks take their next action when they are free."""

    def __init__(
        self, base: Schedule, woven: Schedule, own: Sequence[int], algorithm: int, times: Times
    ) -> None:
        self.base, self.woven, self.own = base, woven, own
        self.algorithm, self.times = algorithm, times
        ranks = len(base.ranks)
        self.order: list[list[Action]] = [[] for _ in range(ranks)]
        self.position = [0] * ranks
        self.to_sum = [0] * ranks
        self.to_learn = [0] * ranks
        self.ends: dict[Action, tuple[float, int]] = {}

    def orders(self) -> tuple[tuple[Action, ...], ...]:
        events = [(0.0, rank) for rank in range(len(self.order))]
        heapq.heapify(events)
        free = [0.0] * len(self.order)
        while events:
            now, rank = heapq.heappop(events)
            if now < free[rank]:
                continue
            action = self._next(rank, now)
            if action is None:
                continue
            self.order[rank].append(action)
            free[rank] = end = now + self.times.of(action)
            for part in action.flat:
                self.ends[part] = (end, rank)
            # Whoever waits may go on when this has ended, or has been sent.
            for other in range(len(self.order)):
                at = end if other == rank else end + self.times.transfer
                heapq.heappush(events, (max(at, free[other]), other))
        return tuple(map(tuple, self.order))

    def _next(self, rank: int, now: float) -> Action | None:
        last = self.order[rank][-1].kind if self.order[rank] else ""
        sums = self._ready("S", self.to_sum, rank, now)
        learns = self._ready("T", self.to_learn, rank, now)
        if sums is not None:
            self.to_sum[rank] += 1
            return sums
        actions = self.base.ranks[rank]
        action = actions[self.position[rank]] if self.position[rank] < len(actions) else None
        can_go = action is not None and self._is_ready(action, rank, now)
        if learns is not None and (self.algorithm == 1 or not can_go or last in "BIW"):
            self.to_learn[rank] += 1
            return learns
        if not can_go:
            return None
        self.position[rank] += 1
        return action

    def _ready(self, kind: str, counts: Sequence[int], rank: int, now: float) -> Action | None:
        number = counts[rank]
        if number == self.base.num_micro_batches:
            return None
        action = Action(self.own[rank], kind, number)
        return action if self._is_ready(action, rank, now) else None

    def _is_ready(self, action: Action, rank: int, now: float) -> bool:
        return all(
            any(self._is_there(source, rank, now) for source in alternatives)
            for alternatives in self._sources(action)
        )

    def _is_there(self, source: Action, rank: int, now: float) -> bool:
        if source not in self.ends:
            return False
        end, at = self.ends[source]
        return end + (self.times.transfer if at != rank else 0.0) <= now + 1e-12

    def _sources(self, action: Action) -> Iterator[tuple[Action, ...]]:
        """Yield what an action waits for, S and T of all ranks included."""
        last = self.base.paths[action.micro_batch][-1]
        if action.kind == "T":
            yield from ((Action(stage, "S", action.micro_batch),) for stage in self.own)
            return
        yield from self.base.before(action)
        if action.kind in "BI" and action.stage == last:
            needed = "T" if self.algorithm == 1 else "S"
            yield from ((Action(stage, needed, action.micro_batch),) for stage in self.own)
