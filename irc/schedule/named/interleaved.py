"""Interleaved 1F1B: several stages a rank (Narayanan et al., arXiv:2104.04473, section 2.2)."""

from __future__ import annotations

from irc.errors import IrcError
from irc.schedule.actions import Action, Schedule, require_sizes, straight


def interleaved(ranks: int, micro_batches: int, chunks: int = 0) -> Schedule:
    """Rank r owns stages r, p + r, ...; micro-batches go through them in groups of p.

    With v stages a rank the bubble fraction is ``(p - 1) / (v m + p - 1)``, v times less than that
    of 1F1B, for v times its messages; the first rank holds ``p + (p - 1) / v`` activations. The
    warm-up is Megatron's, ``2 (p - 1 - r) + (v - 1) p`` forwards.
    """
    return _interleaved("interleaved", ranks, micro_batches, chunks, low_memory=False)


def generalised(ranks: int, micro_batches: int, chunks: int = 0) -> Schedule:
    """Interleave with the shorter warm-up of PipeOffload (arXiv:2503.01328, section 3).

    ``(v - 1) p + p - 1 - r`` forwards come before the first pair: the first rank holds p
    activations, as in 1F1B, and the bubble stays that of the interleaved schedule where a
    backward takes as long as two forwards.
    """
    return _interleaved("gis", ranks, micro_batches, chunks, low_memory=True)


def _interleaved(
    name: str, ranks: int, micro_batches: int, chunks: int, *, low_memory: bool
) -> Schedule:
    require_sizes(name, ranks, micro_batches)
    chunks = chunks or 2
    if micro_batches % ranks:
        below, above = micro_batches // ranks * ranks, -(-micro_batches // ranks) * ranks
        usable = f"{below} or {above}" if below else str(above)
        raise IrcError(
            "schedule-size",
            f"schedule '{name}' on {ranks} ranks cannot use {micro_batches} micro-batches",
            because=f"they go through a rank's stages in groups of {ranks}",
            help=f"use {usable} micro-batches, or 1f1b, which takes any number",
        )
    orders = tuple(
        _order(rank, ranks, micro_batches, chunks, low_memory=low_memory) for rank in range(ranks)
    )
    return Schedule(orders, straight(ranks * chunks, micro_batches))


def _order(
    rank: int, ranks: int, micro_batches: int, chunks: int, *, low_memory: bool
) -> tuple[Action, ...]:
    total = micro_batches * chunks
    distance = ranks - 1 - rank
    fill = min(total, (chunks - 1) * ranks + (distance if low_memory else 2 * distance))
    forward = [_unit(k, rank, ranks, chunks, "F") for k in range(total)]
    backward = [_unit(k, rank, ranks, chunks, "B") for k in range(total)]
    order = forward[:fill]
    for ahead, behind in zip(forward[fill:], backward[: total - fill], strict=True):
        order += [ahead, behind]
    return (*order, *backward[total - fill :])


def _unit(k: int, rank: int, ranks: int, chunks: int, kind: str) -> Action:
    """Return the k-th forward or backward of a rank."""
    group, inside = divmod(k, ranks * chunks)
    chunk, micro_batch = divmod(inside, ranks)
    if kind == "B":
        chunk = chunks - 1 - chunk
    return Action(chunk * ranks + rank, kind, group * ranks + micro_batch)
