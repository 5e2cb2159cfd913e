"""1F1B: fill the pipe, alternate, drain (PipeDream-Flush, Narayanan et al., arXiv:2006.09503)."""

from __future__ import annotations

from irc.schedule.actions import Action, Schedule, require_sizes, straight
from irc.schedule.named.stages import one_stage_each


def one_f_one_b(ranks: int, micro_batches: int, chunks: int = 0) -> Schedule:
    """Run a backward as soon as there is one.

    Bubble fraction ``(p - 1) / (m + p - 1)`` as GPipe, but rank r never holds more than ``p - r``
    micro-batches.

        stage 0:  F0 F1 F2 B0 F3 B1 B2 B3      (three stages, four micro-batches)
        stage 1:  F0 F1 B0 F2 B1 F3 B2 B3
        stage 2:  F0 B0 F1 B1 F2 B2 F3 B3
    """
    require_sizes("1f1b", ranks, micro_batches)
    one_stage_each("1f1b", chunks)
    orders = tuple(_order(rank, ranks, micro_batches) for rank in range(ranks))
    return Schedule(orders, straight(ranks, micro_batches))


def _order(rank: int, ranks: int, micro_batches: int) -> tuple[Action, ...]:
    fill = min(ranks - rank - 1, micro_batches)
    steady = micro_batches - fill
    order = [Action(rank, "F", m) for m in range(fill)]
    for m in range(steady):
        order += [Action(rank, "F", fill + m), Action(rank, "B", m)]
    return (*order, *(Action(rank, "B", m) for m in range(steady, micro_batches)))
