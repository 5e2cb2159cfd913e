"""A pipeline schedule: GPipe, whose backward passes go from the last micro-batch to the first."""

from irc.schedule.actions import Action, Schedule, require_sizes, straight
from irc.schedule.named.stages import one_stage_each


def gpipe_last_first(ranks: int, micro_batches: int, chunks: int = 0) -> Schedule:
    """Fill the pipe, then empty it from the end: what was saved last is read first.

    Args:
        ranks: of the pipeline.
        micro_batches: of a step.
        chunks: stages of a rank that the user asks for (``gpipe-last-first:2``), 0 by default.
    """
    require_sizes("gpipe-last-first", ranks, micro_batches)
    one_stage_each("gpipe-last-first", chunks)
    orders = tuple(
        (
            *(Action(rank, "F", m) for m in range(micro_batches)),
            *(Action(rank, "B", m) for m in reversed(range(micro_batches))),
        )
        for rank in range(ranks)
    )
    return Schedule(orders, straight(ranks, micro_batches))
