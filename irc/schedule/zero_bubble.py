"""ZB-H2's shape with the depths that given times and memory ask for.

ZB-H1 and ZB-H2 (Qi et al., arXiv:2401.10241) fix how far rank s runs ahead of its first gradient
and how far its W lag behind, for the case F = I = W. With other times the first gradient is back
after ``(p - 1 - s) (F + I + 2 T)``, which so many forwards fill, and rank s may go on with W for
``s (F + I + 2 T)`` after rank 0 has sent its last I.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from irc.schedule.actions import Schedule, straight
from irc.schedule.named.zero_bubble import order
from irc.schedule.timeline import Times, stage_times


def by_times(
    micro_batches: int, times: Times, limits: Sequence[float], *, weight_share: float
) -> Iterator[Schedule]:
    """Yield schedules of one stage a rank, of several depths within the memory.

    Args:
        micro_batches: of a step.
        times: of the stages.
        limits: by rank, the activations that it can hold.
        weight_share: of what F saves, the part that is held until W.
    """
    ranks = len(limits)
    forward, inputs, weights = (stage_times(times, kind, ranks) for kind in "FIW")
    round_trip = [f + i + 2 * times.transfer for f, i in zip(forward, inputs, strict=True)]
    seen: set[tuple[tuple[int, int], ...]] = set()
    for ahead in (0.5, 1.0, 1.05, 1.1, 1.2, 1.5):
        for behind in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5):
            depths: list[tuple[int, int]] = []
            for rank, limit in enumerate(limits):
                fill = round(ahead * sum(round_trip[rank + 1 :]) / max(forward[rank], 1e-30))
                lag = round(behind * sum(round_trip[:rank]) / max(weights[rank], 1e-30))
                # A rank that ran further ahead than the one before it would wait for its forwards.
                before = depths[-1][0] if depths else micro_batches
                fill = max(0, min(fill, int(limit + 1e-9) - 1, before))
                if weight_share > 0:
                    # One more than lag W wait while the next I is under way.
                    room = int((limit - fill - 1) / weight_share + 1e-9)
                    lag = max(0, min(lag, room))
                depths.append((fill, min(lag, micro_batches)))
            if tuple(depths) in seen:
                continue
            seen.add(tuple(depths))
            yield Schedule(
                tuple(
                    order(rank, micro_batches, fill=fill, lag=lag)
                    for rank, (fill, lag) in enumerate(depths)
                ),
                straight(ranks, micro_batches),
            )
