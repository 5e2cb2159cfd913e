"""Breadth-first: a rank's stages one after the other (Lamy-Poirier, arXiv:2211.05953)."""

from __future__ import annotations

from irc.schedule.actions import Action, Schedule, require_sizes, straight


def breadth_first(ranks: int, micro_batches: int, chunks: int = 0) -> Schedule:
    """Run all micro-batches through a stage before the rank's next one.

    Stages lie as in the interleaved schedule, and the bubble is the same where ``m >= p``; a rank
    holds all m activations, but gathers the weights of a stage once for all micro-batches, and
    reduces its gradients while the next stage runs.
    """
    require_sizes("breadth-first", ranks, micro_batches)
    chunks = chunks or 2
    orders = tuple(
        tuple(
            Action(chunk * ranks + rank, kind, m)
            for kind, order in (("F", range(chunks)), ("B", reversed(range(chunks))))
            for chunk in order
            for m in range(micro_batches)
        )
        for rank in range(ranks)
    )
    return Schedule(orders, straight(ranks * chunks, micro_batches))
