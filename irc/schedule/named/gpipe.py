"""GPipe: all forwards, then all backwards (Huang et al., arXiv:1811.06965)."""

from __future__ import annotations

from irc.schedule.actions import Action, Schedule, require_sizes, straight
from irc.schedule.named.stages import one_stage_each


def gpipe(ranks: int, micro_batches: int, chunks: int = 0) -> Schedule:
    """Fill the pipe with all micro-batches, then empty it.

    Bubble fraction ``(p - 1) / (m + p - 1)``; a rank holds activations of all m micro-batches.

        stage 0:  F0 F1 F2 B0 B1 B2
        stage 1:  F0 F1 F2 B0 B1 B2
    """
    require_sizes("gpipe", ranks, micro_batches)
    one_stage_each("gpipe", chunks)
    orders = tuple(
        tuple(Action(rank, kind, m) for kind in "FB" for m in range(micro_batches))
        for rank in range(ranks)
    )
    return Schedule(orders, straight(ranks, micro_batches))
