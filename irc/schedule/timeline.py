"""When each action of a schedule runs, how long ranks idle, and how much they hold.

Ranks run their actions in order; an action begins when what it waits for has ended and, where that
is on another rank, has been sent. Nothing shares anything: with contention a schedule is simulated
(:mod:`irc.simulate`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from irc.errors import IrcError
from irc.schedule.actions import COMPUTE, Action, Schedule, computed


@dataclass(frozen=True)
class Times:
    """How long things take, in one unit of time.

    Attributes:
        forward, input_gradient, weight_gradient: by stage; one number stands for all stages.
        backward: of a backward that is not split; by default the sum of both gradients.
        transfer: of a value from a stage to one on another rank.
        wire: the part of it for which it has the way from the one rank to the other to itself, so
            that the next value that goes there begins later.
        shares_ports: whether all that leaves a rank, and all that reaches one, goes one after the
            other, too; where a schedule is played, each way is by itself all the same.
        logits, vocabulary_gradient: of S and T.
        overlap: what two actions that run as one take, relative to their sum.
    """

    forward: Sequence[float] = (1.0,)
    input_gradient: Sequence[float] = (1.0,)
    weight_gradient: Sequence[float] = (1.0,)
    backward: Sequence[float] | None = None
    transfer: float = 0.0
    logits: float = 0.0
    vocabulary_gradient: float = 0.0
    overlap: float = 1.0
    wire: float = 0.0
    shares_ports: bool = False

    def of(self, action: Action) -> float:
        """Return what an action takes."""
        if action.parts:
            return self.overlap * sum(map(self.of, action.parts))
        match action.kind:
            case "F":
                return _at(self.forward, action.stage)
            case "I":
                return _at(self.input_gradient, action.stage)
            case "W":
                return _at(self.weight_gradient, action.stage)
            case "B":
                if self.backward is not None:
                    return _at(self.backward, action.stage)
                both = (self.input_gradient, self.weight_gradient)
                return sum(_at(each, action.stage) for each in both)
            case "S":
                return self.logits
            case "T":
                return self.vocabulary_gradient
            case _:
                return 0.0


def _at(times: Sequence[float], stage: int) -> float:
    return times[stage] if len(times) > 1 else times[0]


def stage_times(times: Times, kind: str, num_stages: int) -> list[float]:
    """Return what a kind of action takes, by stage."""
    return [times.of(Action(stage, kind, 0)) for stage in range(num_stages)]


@dataclass(frozen=True)
class Timeline:
    """A schedule that was played.

    Attributes:
        schedule: what was played.
        times: what its actions took.
        spans: begin and end of each action, by rank.
    """

    schedule: Schedule
    times: Times
    spans: tuple[tuple[tuple[float, float], ...], ...]

    @property
    def makespan(self) -> float:
        """When the last action ends."""
        return max((spans[-1][1] for spans in self.spans if spans), default=0.0)

    @property
    def span(self) -> float:
        """The longest time from a rank's first action to its last one.

        It is what a step costs where the next one begins without waiting for all ranks, the "cost"
        of Zero Bubble (arXiv:2401.10241, section 5).
        """
        return max((spans[-1][1] - spans[0][0] for spans in self.spans if spans), default=0.0)

    @cached_property
    def work(self) -> float:
        """What the busiest rank computes."""
        ranks = self.schedule.ranks
        return max((sum(map(self.times.of, actions)) for actions in ranks), default=0.0)

    @property
    def bubble(self) -> float:
        """The share of :attr:`span` in which the busiest rank idles."""
        return (self.span - self.work) / self.span if self.span else 0.0

    @property
    def makespan_bubble(self) -> float:
        """The share of :attr:`makespan` in which the busiest rank idles."""
        return (self.makespan - self.work) / self.makespan if self.makespan else 0.0


def play(schedule: Schedule, times: Times | None = None) -> Timeline:
    """Run a schedule: the longest path through its ranks' orders and what they wait for.

    O(actions).

    Raises:
        IrcError: ``schedule-deadlock``, with the ranks that wait for each other.

    >>> from irc.schedule.named import generate
    >>> play(generate("1f1b", ranks=4, micro_batches=8)).makespan
    33.0
    """
    times = times or Times()
    spans: list[list[tuple[float, float]]] = [[] for _ in schedule.ranks]
    ends: dict[Action, tuple[float, int]] = {}
    links: dict[tuple[int, int], float] = {}
    sent: dict[Action, float] = {}
    waiting: dict[Action, list[int]] = {}
    ready = list(range(len(schedule.ranks)))
    while ready:
        rank = ready.pop()
        actions = schedule.ranks[rank]
        free = spans[rank][-1][1] if spans[rank] else 0.0
        while (position := len(spans[rank])) < len(actions):
            action = actions[position]
            begin = _begin(schedule, action, rank, free, ends, sent, times.transfer)
            if isinstance(begin, tuple):
                for each in begin:
                    waiting.setdefault(each, []).append(rank)
                break
            free = begin + times.of(action)
            spans[rank].append((begin, free))
            for part in action.flat:
                ends[part] = (free, rank)
                target = schedule.sends_to(part) if times.wire else None
                if target is not None and target != rank:
                    sent[part] = max(free, links.get((rank, target), 0.0))
                    links[rank, target] = sent[part] + times.wire
                ready += waiting.pop(part, ())
    stuck = [rank for rank, actions in enumerate(schedule.ranks) if len(spans[rank]) < len(actions)]
    if stuck:
        raise _deadlock(schedule, stuck, [len(each) for each in spans], ends)
    return Timeline(schedule, times, tuple(map(tuple, spans)))


def _begin(
    schedule: Schedule,
    action: Action,
    rank: int,
    free: float,
    ends: Mapping[Action, tuple[float, int]],
    sent: Mapping[Action, float],
    transfer: float,
) -> float | tuple[Action, ...]:
    """Return when an action can begin, or what it waits for where that has not run yet."""
    begin = free
    for part in action.flat:
        if part.kind not in COMPUTE:
            continue
        for alternatives in schedule.before(part):
            ended = [each for each in alternatives if each in ends]
            if ended:
                end, at = ends[ended[0]]
                leaves = sent.get(ended[0], end) + transfer
                begin = max(begin, end if at == rank else leaves)
            elif not any(each in action.parts for each in alternatives):
                return alternatives
    return begin


def _deadlock(
    schedule: Schedule,
    stuck: Sequence[int],
    positions: Sequence[int],
    ends: Mapping[Action, tuple[float, int]],
) -> IrcError:
    """Return the error that names a cycle of ranks that wait for each other."""
    known = {action for actions in schedule.ranks for action in computed(actions)}
    waits: dict[int, tuple[Action, Action, int]] = {}
    for rank in stuck:
        action = schedule.ranks[rank][positions[rank]]
        for part in action.flat:
            for alternatives in schedule.before(part):
                if not any(each in ends or each in action.parts for each in alternatives):
                    wanted = next((each for each in alternatives if each in known), alternatives[0])
                    waits[rank] = (part, wanted, schedule.rank_of.get(wanted.stage, rank))
    rank, seen = stuck[0], list[int]()
    while rank in waits and rank not in seen:
        seen.append(rank)
        rank = waits[rank][2]
    cycle = seen[seen.index(rank) :] if rank in seen else seen
    lines = [f"rank {r} is at {waits[r][0]}, which waits for {waits[r][1]}" for r in cycle]
    lines = [f"{line} of rank {waits[r][2]}" for line, r in zip(lines, cycle, strict=True)]
    return IrcError(
        "schedule-deadlock",
        f"ranks {' and '.join(map(str, cycle))} wait for each other"
        if len(cycle) > 1
        else f"rank {cycle[0]} waits for something that comes later or never",
        because=lines,
        help="move the action that is waited for before the one that waits",
    )


def peaks(
    schedule: Schedule, *, weight_share: float = 0.0, chunks: int | None = None
) -> list[float]:
    """Return the most micro-batches that each rank holds activations of, in activations of a rank.

    A rank of several stages holds a part for each; what F saves is freed at the end of B or I but
    for ``weight_share`` of it, which W reads. S holds nothing that counts here.

    Args:
        schedule: what is counted; only each rank's own order matters.
        weight_share: of what F saves, the part that W reads (0: all is released at I).
        chunks: stages that make up what a rank holds, by default those that it has.
    """
    by_rank: list[float] = []
    for actions in schedule.ranks:
        own = chunks or len({a.stage for a in computed(actions) if a.kind == "F"}) or 1
        live = most = 0.0
        for action in computed(actions):
            if action.kind == "F":
                live += 1
                most = max(most, live)
            elif action.kind == "B":
                live -= 1
            elif action.kind == "I":
                live -= 1 - weight_share
            elif action.kind == "W":
                live -= weight_share
        by_rank.append(most / own)
    return by_rank
