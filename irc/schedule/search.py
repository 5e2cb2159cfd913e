"""A schedule by stage times, transfer times and memory: never worse than the best named one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from irc.errors import IrcError
from irc.schedule.actions import Action, Schedule
from irc.schedule.greedy import RULES, list_schedule
from irc.schedule.named import BUILTIN, generate
from irc.schedule.named.stages import v_stages
from irc.schedule.timeline import Timeline, Times, peaks, play
from irc.schedule.zero_bubble import by_times

Objective: TypeAlias = Literal["makespan", "span"]

LOSSY = frozenset({"skip"})
"""Schedules that compute something else: a search never takes them."""

TWO_COPIES = frozenset({"dualpipe"})
"""Schedules that hold the model twice: other weights, which a search does not compare."""


@dataclass(frozen=True)
class Choice:
    """What a search chose.

    Attributes:
        timeline: of the best schedule.
        origin: where it came from: the name of a schedule, or the rules that made it.
        named: the best schedule with a name that fits the memory, None where none does.
        tried: how many schedules were compared.
    """

    timeline: Timeline
    origin: str
    named: Timeline | None
    tried: int

    @property
    def schedule(self) -> Schedule:
        """The best schedule."""
        return self.timeline.schedule


def search(
    times: Times,
    *,
    ranks: int,
    micro_batches: int,
    chunks: int = 1,
    memory: float | Sequence[float] | None = None,
    weight_share: float = 0.0,
    objective: Objective = "makespan",
    moves: int = 200,
) -> Choice:
    """Look for the schedule that takes the least time within the memory.

    All named schedules, ZB-H2's shape by times (:mod:`irc.schedule.zero_bubble`) and list schedules
    of several rules (:mod:`irc.schedule.greedy`) are played; the best is then changed by ``moves``
    exchanges of neighbours that are kept where they help. Deterministic.

    Args:
        times: of the ``ranks * chunks`` stages.
        ranks: of the pipeline.
        micro_batches: of a step.
        chunks: stages of a rank.
        memory: the micro-batches whose activations a rank can hold, in activations of all of its
            stages: one number, or one a rank; None for no limit.
        weight_share: of what F saves, the part that W reads; the rest is released at I.
        objective: ``makespan``, or ``span``, the longest time of a rank from its first to its last
            action, which counts where the next step begins without waiting for all ranks.
        moves: exchanges that are tried.

    Raises:
        IrcError: ``schedule-memory`` where nothing fits, with the least memory that works.
    """
    limits = _limits(memory, ranks, micro_batches)
    candidates = Candidates(times, ranks, micro_batches, chunks, limits, weight_share)
    best: tuple[float, Timeline, str] | None = None
    named: tuple[float, Timeline] | None = None
    tried = 0
    for origin, schedule in candidates.all():
        if not _fits(schedule, limits, chunks, weight_share):
            continue
        tried += 1
        timeline = play(schedule, times)
        cost = _cost(timeline, objective)
        if origin.partition(":")[0] in BUILTIN and (named is None or cost < named[0]):
            named = (cost, timeline)
        if best is None or cost < best[0] - 1e-12 * cost:
            best = (cost, timeline, origin)
    if best is None:
        raise _too_little(candidates, limits, weight_share)
    cost, timeline, origin = best
    improved = _improved(timeline, limits, chunks, weight_share, objective, moves)
    if _cost(improved, objective) < cost:
        timeline, origin = improved, f"{origin}, improved"
    timeline = replace(timeline, schedule=replace(timeline.schedule, name=origin))
    return Choice(timeline, origin, named and named[1], tried)


def _cost(timeline: Timeline, objective: Objective) -> float:
    return timeline.makespan if objective == "makespan" else timeline.span


def _limits(
    memory: float | Sequence[float] | None, ranks: int, micro_batches: int
) -> tuple[float, ...]:
    if memory is None:
        return (float(micro_batches),) * ranks
    if isinstance(memory, (int, float)):
        return (float(memory),) * ranks
    if len(memory) != ranks:
        raise IrcError(
            "schedule-size", f"memory is stated for {len(memory)} ranks, and there are {ranks}"
        )
    return tuple(map(float, memory))


def _fits(schedule: Schedule, limits: Sequence[float], chunks: int, weight_share: float) -> bool:
    held = peaks(schedule, weight_share=weight_share, chunks=chunks)
    return all(most <= limit + 1e-9 for most, limit in zip(held, limits, strict=True))


@dataclass(frozen=True)
class Candidates:
    """Schedules that a search compares.

    Attributes:
        times: of the stages.
        ranks: of the pipeline.
        micro_batches: of a step.
        chunks: stages of a rank.
        limits: by rank, the activations that it can hold, of all of its stages.
        weight_share: of what F saves, the part that W reads.
    """

    times: Times
    ranks: int
    micro_batches: int
    chunks: int
    limits: tuple[float, ...]
    weight_share: float

    def all(self) -> Iterator[tuple[str, Schedule]]:
        """Yield schedules and where they come from, those with a name first."""
        yield from self._named()
        if self.chunks == 1:
            for schedule in by_times(
                self.micro_batches, self.times, self.limits, weight_share=self.weight_share
            ):
                yield "zero bubble by times", schedule
        yield from self._listed()

    def _named(self) -> Iterator[tuple[str, Schedule]]:
        for name in BUILTIN:
            if name in LOSSY | TWO_COPIES:
                continue
            text = f"{name}:{self.chunks}" if self.chunks > 1 else name
            try:
                schedule = generate(text, ranks=self.ranks, micro_batches=self.micro_batches)
            except IrcError:
                continue  # it does not exist in these sizes
            if schedule.num_stages == self.ranks * self.chunks:
                yield text, schedule

    def _listed(self) -> Iterator[tuple[str, Schedule]]:
        limits = [limit * self.chunks for limit in self.limits]
        for what, placement in self._placements():
            for rules in RULES:
                for split in (True, False):
                    schedule = list_schedule(
                        placement, self.micro_batches, self.times, limits, rules,
                        weight_share=self.weight_share, split=split,
                    )  # fmt: skip
                    if schedule is not None:
                        yield f"list schedule{what}", schedule

    def _placements(self) -> Iterator[tuple[str, list[tuple[int, ...]]]]:
        ranks, chunks = self.ranks, self.chunks
        looped = [tuple(range(rank, ranks * chunks, ranks)) for rank in range(ranks)]
        yield (" on looped stages" if chunks > 1 else ""), looped
        if chunks == 2:
            yield " on a V", [v_stages(rank, ranks) for rank in range(ranks)]


def _too_little(candidates: Candidates, limits: Sequence[float], weight_share: float) -> IrcError:
    """Return the error that says how much memory works: the least of what the schedules need."""
    needs: list[float] = []
    free = replace(candidates, limits=(float(candidates.micro_batches),) * candidates.ranks)
    for source in (candidates, free):
        for _, schedule in source.all():
            held = peaks(schedule, weight_share=weight_share, chunks=candidates.chunks)
            needs.append(max(held))
    least = min(needs)
    return IrcError(
        "schedule-memory",
        f"no schedule of {candidates.ranks} ranks and {candidates.micro_batches} micro-batches "
        f"holds at most {min(limits):g} activations",
        because=f"the least that a schedule needs is {least:g}",
        help=f"give memory for {least:g}, smaller micro-batches, or more recompute",
    )


def _improved(
    timeline: Timeline,
    limits: Sequence[float],
    chunks: int,
    weight_share: float,
    objective: Objective,
    moves: int,
) -> Timeline:
    """Exchange neighbours in the orders of ranks as long as that helps."""
    best = timeline
    cost = _cost(best, objective)
    for _ in range(moves):
        for changed in _exchanges(best):
            if not _fits(changed, limits, chunks, weight_share):
                continue
            try:
                played = play(changed, best.times)
            except IrcError:
                continue  # ranks would wait for each other
            moves -= 1
            if (now := _cost(played, objective)) < cost * (1 - 1e-12):
                best, cost = played, now
                break
            if moves <= 0:
                return best
        else:
            return best
    return best


def _exchanges(timeline: Timeline) -> Iterator[Schedule]:
    """Yield schedules in which one rank begins something earlier that it idles before.

    Only what stands behind a gap can end sooner; W is what can wait in its place.
    """
    schedule = timeline.schedule
    for rank, spans in enumerate(timeline.spans):
        actions = schedule.ranks[rank]
        for i in range(1, len(actions)):
            idle = spans[i][0] > spans[i - 1][1] * (1 + 1e-12)
            late_weights = [
                j for j in range(i + 1, min(i + 24, len(actions))) if actions[j].kind == "W"
            ]
            if idle and late_weights:
                yield _moved(schedule, rank, late_weights[0], i)
            if actions[i - 1].kind == "W" and actions[i].kind in "FIB":
                yield _moved(schedule, rank, i, i - 1)


def _moved(schedule: Schedule, rank: int, source: int, target: int) -> Schedule:
    """Return the schedule with one action of a rank at an earlier place."""
    actions: list[Action] = list(schedule.ranks[rank])
    actions.insert(target, actions.pop(source))
    ranks = (*schedule.ranks[:rank], tuple(actions), *schedule.ranks[rank + 1 :])
    return replace(schedule, ranks=ranks)
