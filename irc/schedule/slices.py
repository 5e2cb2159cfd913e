"""A schedule with a vocabulary on all ranks, in the form in which a plan has functions for it.

S and T of a rank are of its lowest stage in a text (``0S3``). What they compute is a part of the
model of its own, a slice of the output layer, so here each rank's slice has a stage behind those of
the model: with four stages on four ranks, ``0S3`` and ``0T3`` become ``4S3`` and ``4T3``. A
micro-batch goes through all of them. With algorithm 2 one more stage, behind the slices, joins what
S has sent: it is on the rank of the last stage, in front of each backward of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from irc.schedule.actions import Action, Schedule, computed


def ranks_of_slices(schedule: Schedule) -> tuple[int, ...]:
    """Return the ranks that have a slice of the vocabulary, in the order of the slices."""
    return tuple(
        rank
        for rank, actions in enumerate(schedule.ranks)
        if any(action.kind == "S" for action in computed(actions))
    )


def with_slices(schedule: Schedule) -> Schedule:
    """Return a schedule whose S and T are of stages of their own.

    >>> from irc.schedule.named import generate
    >>> with_slices(generate("vocab-1:1f1b", ranks=2, micro_batches=2)).paths
    ((0, 1, 2, 3), (0, 1, 2, 3))
    """
    if not schedule.vocabulary:
        return schedule
    first = schedule.num_stages
    stage_of = {rank: first + i for i, rank in enumerate(ranks_of_slices(schedule))}
    join = [first + len(stage_of)] if schedule.vocabulary == 2 else []

    def own(rank: int, actions: tuple[Action, ...]) -> Iterator[Action]:
        for action in actions:
            _, kind, number, _ = action
            if kind in "BI" and action.stage == schedule.paths[number][-1]:
                yield from (Action(stage, "F", number) for stage in join)
            yield action._replace(stage=stage_of[rank]) if kind in "ST" else action

    return replace(
        schedule,
        ranks=tuple(tuple(own(rank, actions)) for rank, actions in enumerate(schedule.ranks)),
        paths=tuple((*path, *stage_of.values(), *join) for path in schedule.paths),
    )
