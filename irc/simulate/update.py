"""The end of a step: gradients added up over all columns, and the update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from irc.schedule.actions import Schedule
from irc.simulate.actions import SimAction
from irc.simulate.columns import Column
from irc.simulate.costs import Costs


def stream_of(rank: int, column: int, columns: Sequence[Column]) -> str:
    """Return the name of the stream on which a rank of a class computes."""
    if len(columns) == 1:
        return f"rank {rank}"
    return f"rank {rank} of columns {column} (x{columns[column].count})"


def gradients_of(rank: int) -> str:
    """Return the name of the stream on which the gradients of a rank's stages are added up."""
    return f"rank {rank} gradients"


def link_between(source: str, rank: int) -> str:
    """Return the name of the stream on which a stream's results go to a rank of its class."""
    return f"link from {source} to rank {rank}"


UPDATE = "update"


def kind_of(kind: str, stage: int) -> str:
    """Return the kind by which a device knows a function of a stage.

    >>> kind_of("F", 2)
    'F of stage 2'
    """
    return f"{kind} of stage {stage}"


def append_updates(
    actions: list[SimAction],
    schedule: Schedule,
    costs: Costs,
    columns: Sequence[Column],
    gradients: Mapping[int, Sequence[int]],
) -> None:
    """Add up the gradients of each stage over all columns, and update.

    Args:
        actions: of all columns so far.
        schedule: what they run.
        costs: what that takes.
        columns: the classes.
        gradients: by stage, the actions (of all columns) after which there are all of them.
    """
    sums: dict[int, int] = {}
    for stage, after in gradients.items():
        own = costs.stage(stage)
        if own.reduce_seconds or own.update_seconds:
            sums[stage] = len(actions)
            stream = gradients_of(schedule.rank_of[stage])
            actions.append(
                SimAction(f"{stage}REDUCE_GRAD", stream, own.reduce_seconds, tuple(after))
            )
    for number, column in enumerate(columns):
        for stage, position in sums.items():
            rank, own = schedule.rank_of[stage], costs.stage(stage)
            after = tuple(sums.values()) if costs.norm else (position,)
            stream = stream_of(rank, number, columns)
            seconds = own.update_seconds * column.slow.get(rank, 1.0)
            arena = ((stream, own.arena("update")),)
            kind = kind_of(UPDATE, stage)
            actions.append(
                SimAction(f"{stage}update", stream, seconds, after, stream, arena, arena, kind=kind)
            )
