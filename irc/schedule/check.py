"""What every schedule must keep, and the errors that say what one does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from irc.errors import IrcError
from irc.schedule.actions import Action, Schedule, computed
from irc.schedule.timeline import Times, play


def check(schedule: Schedule) -> None:
    """Check that a schedule computes each thing once, in an order in which no rank waits for ever.

    Each stage of a micro-batch's path has one F, and one B or one I with its W, all on one rank; a
    rank runs F before B or I, and I before W. Messages between two stages are received in the order
    in which they are sent, as a channel delivers them.

    Raises:
        IrcError: ``schedule-incomplete`` for what is missing or repeated, ``schedule-order`` for
            messages that cross, ``schedule-deadlock``.
    """
    actions = [a for rank in schedule.ranks for a in computed(rank)]
    if not actions:
        raise _incomplete("the schedule computes nothing")
    counts = Counter(actions)
    for action, count in counts.items():
        if not _is_on_path(schedule, action):
            raise _incomplete(
                f"{action} is of a stage or micro-batch that the schedule does not have",
                f"there are {schedule.num_stages} and {schedule.num_micro_batches}",
            )
        if count > 1:
            raise _incomplete(f"{action} is there {count} times")
    _check_ranks(schedule)
    for missing in _missing(schedule, counts):
        raise _incomplete(missing)
    play(schedule, Times())
    _check_messages(schedule)


def _is_on_path(schedule: Schedule, action: Action) -> bool:
    if not 0 <= action.micro_batch < schedule.num_micro_batches:
        return False
    return action.kind in "ST" or action.stage in schedule.paths[action.micro_batch]


def _check_ranks(schedule: Schedule) -> None:
    ranks: dict[int, int] = {}
    for rank, actions in enumerate(schedule.ranks):
        for action in computed(actions):
            if ranks.setdefault(action.stage, rank) != rank:
                raise _incomplete(
                    f"stage {action.stage} is on rank {ranks[action.stage]} and on rank {rank}",
                    "a stage's weights and activations are on one rank",
                )


def _missing(schedule: Schedule, counts: Counter[Action]) -> Iterable[str]:
    for micro_batch, path in enumerate(schedule.paths):
        for stage in path:
            has = {k: counts[Action(stage, k, micro_batch)] for k in "FBIW"}
            place = f"micro-batch {micro_batch} of stage {stage}"
            if not has["F"]:
                yield f"F is missing for {place}"
            if has["B"] and (has["I"] or has["W"]):
                yield f"{place} has both B and {'I' if has['I'] else 'W'}: B does what I and W do"
            if not has["B"] and not has["I"]:
                yield f"B (or I and W) is missing for {place}"
            if has["I"] != has["W"]:
                yield f"{'W' if has['I'] else 'I'} is missing for {place}"
    yield from _missing_of_slices(schedule, counts)


def _missing_of_slices(schedule: Schedule, counts: Counter[Action]) -> Iterable[str]:
    """Say where a rank has S or T of the vocabulary for some micro-batches alone."""
    if not schedule.vocabulary:
        other = next((a for a in counts if a.kind in "ST"), None)
        if other is not None:
            yield f"{other} is of a vocabulary, and no line 'vocabulary 1' (or 2) says how"
        return
    if len({path[-1] for path in schedule.paths}) > 1:
        yield "micro-batches end in different stages, which have a vocabulary each"
    stages = sorted({(schedule.rank_of[a.stage], a.stage) for a in counts if a.kind in "ST"})
    if not stages:
        yield f"vocabulary {schedule.vocabulary} has no S and T"
    if (rank := next((r for (r, _), (s, _) in pairwise(stages) if r == s), None)) is not None:
        yield f"S and T of rank {rank} are of two stages; all of a rank are of one"
    for rank, stage in stages:
        for micro_batch in range(schedule.num_micro_batches):
            for kind in "ST":
                if not counts[Action(stage, kind, micro_batch)]:
                    yield f"{kind} is missing on rank {rank} for micro-batch {micro_batch}"


def _check_messages(schedule: Schedule) -> None:
    """Check that what one stage sends to another is consumed in the order in which it is sent."""
    sent: dict[tuple[int, int, bool], list[Action]] = {}
    producers = {a: rank for rank, own in enumerate(schedule.ranks) for a in computed(own)}
    positions = {a: i for own in schedule.ranks for i, a in enumerate(computed(own))}
    for rank, actions in enumerate(schedule.ranks):
        for action in computed(actions):
            if action.kind in "ST":
                continue  # broadcasts and sums over all ranks, not messages of two
            for alternatives in schedule.before(action):
                source = next(a for a in alternatives if a in producers)
                if source.kind not in "ST" and producers[source] != rank:
                    channel = (source.stage, action.stage, source.kind == "F")
                    sent.setdefault(channel, []).append(source)
    for (_, stage, _), messages in sent.items():
        order = [positions[message] for message in messages]
        for i in range(1, len(order)):
            if order[i] < order[i - 1]:
                raise IrcError(
                    "schedule-order",
                    f"rank {schedule.rank_of[stage]} takes the result of {messages[i - 1]} before "
                    f"that of {messages[i]}, and rank {producers[messages[i]]} sends them the "
                    "other way round",
                    because="a channel between two stages delivers in the order of its sends",
                    help="swap them on one of the two ranks",
                )


def _incomplete(message: str, because: str = "") -> IrcError:
    return IrcError(
        "schedule-incomplete", message, because=because or (),
        help="each stage of each micro-batch has one F, and one B, or one I and one W",
    )  # fmt: skip
