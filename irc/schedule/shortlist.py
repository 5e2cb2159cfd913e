"""Orders of a pipeline that are worth a simulation, the most promising ones first.

Schedules with a name, ZB-H2's shape by times, and list schedules are made for several bounds of
memory and played (:func:`irc.schedule.timeline.play`), which knows of a message what it takes and
that it has its way to itself. What slots and shared ports do to an order a simulation says.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from math import ceil
from typing import TypeAlias

from irc.errors import IrcError
from irc.schedule.actions import Action, Schedule, computed
from irc.schedule.search import Candidates
from irc.schedule.timeline import Timeline, Times, peaks, play

PARTS = (1.0, 0.75, 0.5)
"""Of the memory, for which orders are made: what holds less may also wait less for slots."""

LARGE = 300
"""Actions of a step of which orders are made for all of the memory alone: they take longer."""

LOOK_AHEAD = 24
"""So many actions behind a gap are looked at for what could fill it."""


def shortlist(
    times: Times,
    like: Schedule,
    limits: Sequence[float],
    weight_share: float,
) -> list[tuple[str, Schedule]]:
    """Return where each order comes from and the order, by what they take when they are played.

    Args:
        times: of the stages.
        like: an order of the same stages on the same ranks, with I and W for a backward or with B:
            all others are like it in these.
        limits: by rank, the micro-batches whose activations it can hold.
        weight_share: of what F saves, the part that W reads.

    >>> from irc.schedule.named import generate
    >>> like = generate("zb-h1", ranks=2, micro_batches=8)
    >>> slow = Times(transfer=2.0, wire=2.0)
    >>> _, best = shortlist(slow, like, (8, 8), 0.3)[0]
    >>> play(best, slow).makespan < play(like, slow).makespan
    True
    """
    ranks, count = len(like.ranks), like.num_micro_batches
    chunks = like.num_stages // ranks
    seen: set[object] = set()
    played: list[tuple[float, int, str, Schedule]] = []
    size = sum(map(len, like.ranks))
    for part in PARTS if size <= LARGE else PARTS[:1]:
        own = tuple(float(min(count, max(1, ceil(part * limit - 1e-9)))) for limit in limits)
        candidates = Candidates(times, ranks, count, chunks, own, weight_share)
        for origin, schedule in candidates.all():
            schedule = apart(schedule) if like.splits_backward else schedule
            if schedule.ranks in seen or not is_like(schedule, like):
                continue
            seen.add(schedule.ranks)
            held = peaks(schedule, weight_share=weight_share, chunks=chunks)
            if all(most <= limit + 1e-9 for most, limit in zip(held, limits, strict=True)):
                seconds = played_seconds(schedule, times)
                played.append((seconds, len(played), origin, schedule))
    return [(origin, schedule) for _, _, origin, schedule in sorted(played, key=lambda p: p[:2])]


def played_seconds(schedule: Schedule, times: Times) -> float:
    """Return when the last action of a schedule ends, its messages one after the other.

    As :func:`irc.schedule.timeline.play` has it, but messages take their ways, and where ranks
    share ports those, in the order in which they are sent. All micro-batches go through all stages.
    O(actions log ranks).

    >>> from irc.schedule.named import generate
    >>> schedule = generate("1f1b", ranks=3, micro_batches=6)
    >>> slow = Times(transfer=2.0, wire=2.0)
    >>> played_seconds(schedule, slow) == play(schedule, slow).makespan
    True
    >>> played_seconds(schedule, replace(slow, shares_ports=True)) > played_seconds(schedule, slow)
    True
    """
    stages = range(schedule.num_stages)
    seconds = {(s, kind): times.of(Action(s, kind, 0)) for s in stages for kind in "FBIW"}
    orders = [tuple(computed(actions)) for actions in schedule.ranks]
    at = [0] * len(orders)
    messages = _Messages(schedule, times)
    asleep: dict[_Message, int] = {}
    coming = [(0.0, rank) for rank in range(len(orders))]
    end = 0.0
    while coming:
        now, rank = heapq.heappop(coming)
        if at[rank] == len(orders[rank]):
            continue
        action = orders[rank][at[rank]]
        if (needed := messages.read_by(action)) is not None:
            arrival = messages.there.get(needed)
            if arrival is None:
                asleep[needed] = rank
                continue
            if arrival > now:
                # Others may send before it begins.
                heapq.heappush(coming, (arrival, rank))
                continue
        free = now + seconds[action.stage, action.kind]
        at[rank] += 1
        end = max(end, free)
        heapq.heappush(coming, (free, rank))
        sent = messages.send(action, rank, free)
        if sent is not None and (waiting := asleep.pop(sent, None)) is not None:
            heapq.heappush(coming, (messages.there[sent], waiting))
    return end


_Message: TypeAlias = tuple[bool, int, int]
"""Whether it is a gradient, the stage that reads it, and the micro-batch."""


class _Messages:
    """When what stages hand on is where it is read, in the order in which it is sent."""

    def __init__(self, schedule: Schedule, times: Times) -> None:
        self.rank_of, self.last = schedule.rank_of, schedule.num_stages - 1
        self.times = times
        self.there: dict[_Message, float] = {}
        self._links: dict[tuple[int, int], float] = {}

    def read_by(self, action: Action) -> _Message | None:
        """Return what a function waits for; None for what needs no other stage."""
        is_gradient = action.kind != "F"
        if action.kind == "W" or action.stage == (self.last if is_gradient else 0):
            return None
        return is_gradient, action.stage, action.micro_batch

    def send(self, action: Action, rank: int, free: float) -> _Message | None:
        """Note what a function that ends at ``free`` hands on; None where it is nothing."""
        is_gradient = action.kind != "F"
        target = action.stage - 1 if is_gradient else action.stage + 1
        if action.kind == "W" or not 0 <= target <= self.last:
            return None
        other, arrival = self.rank_of[target], free
        if other != rank:
            ways = [(rank, -1), (-1, other)] if self.times.shares_ports else [(rank, other)]
            leaves = max(free, *(self._links.get(way, 0.0) for way in ways))
            self._links.update(dict.fromkeys(ways, leaves + self.times.wire))
            arrival = leaves + self.times.transfer
        message = is_gradient, target, action.micro_batch
        self.there[message] = arrival
        return message


def is_like(schedule: Schedule, other: Schedule) -> bool:
    """Return whether two orders are of the same functions on the same ranks."""
    return (
        schedule.paths == other.paths
        and schedule.rank_of == other.rank_of
        and not schedule.vocabulary
        and schedule.splits_backward == other.splits_backward
    )


def apart(schedule: Schedule, stages: Collection[int] | None = None) -> Schedule:
    """Return a schedule with I and W for each B.

    Args:
        schedule: any.
        stages: whose B are meant; by default all.

    >>> from irc.schedule.named import generate
    >>> " ".join(map(str, apart(generate("1f1b", ranks=1, micro_batches=2)).ranks[0]))
    '0F0 0I0 0W0 0F1 0I1 0W1'
    """

    def halves(action: Action) -> Iterator[Action]:
        if action.parts:
            yield action._replace(parts=tuple(p for each in action.parts for p in halves(each)))
        elif action.kind == "B" and (stages is None or action.stage in stages):
            yield action._replace(kind="I")
            yield action._replace(kind="W")
        else:
            yield action

    ranks = tuple(tuple(part for a in actions for part in halves(a)) for actions in schedule.ranks)
    return replace(schedule, ranks=ranks)


def changes(timeline: Timeline) -> Iterator[Schedule]:
    """Yield orders in which a rank does something else first where it idles, longest gaps first.

    Of each kind the next one is moved up, so that each kind stays in the order of micro-batches;
    and a W right before what others wait for lets that go first.
    """
    schedule = timeline.schedule
    gaps: list[tuple[float, int, int]] = []
    for rank, spans in enumerate(timeline.spans):
        for i in range(1, len(spans)):
            idle = spans[i][0] - spans[i - 1][1]
            if idle > 1e-9 * timeline.makespan:
                gaps.append((-idle, rank, i))
    for _, rank, i in sorted(gaps):
        actions = schedule.ranks[rank]
        kinds = {(actions[i].kind, actions[i].stage)}
        for j in range(i + 1, min(i + LOOK_AHEAD, len(actions))):
            kind = actions[j].kind, actions[j].stage
            if kind not in kinds:
                kinds.add(kind)
                yield _moved(schedule, rank, j, i)
    for rank, actions in enumerate(schedule.ranks):
        for i in range(1, len(actions)):
            if actions[i - 1].kind == "W" and actions[i].kind in ("F", "I"):
                yield _moved(schedule, rank, i, i - 1)


def _moved(schedule: Schedule, rank: int, source: int, target: int) -> Schedule:
    actions = list(schedule.ranks[rank])
    actions.insert(target, actions.pop(source))
    ranks = (*schedule.ranks[:rank], tuple(actions), *schedule.ranks[rank + 1 :])
    return replace(schedule, ranks=ranks)


def plays(schedule: Schedule, times: Times) -> bool:
    """Return whether ranks come to the end of an order."""
    try:
        play(schedule, times)
    except IrcError:
        return False
    return True
