"""Into the memory with the least time: layers that are computed again, and states in parts.

Two choices make a stage smaller. Backward computes some of its layers again, so that a micro-batch
in flight saves less; and weights, their gradients and states lie in parts over more ranks, so that
all the time less is held, and more is gathered. A piece of a model has a *point* for each choice of
the latter: its times and bytes (:mod:`irc.search.blocks`); of the former the layers are counted,
since each takes its own time and bytes. That is what Mist chooses among (arXiv:2503.19050, section
5), but for one number of layers for all stages: those of a pipeline that are alike are planned
once, and the one that holds the most micro-batches decides over the steady time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from irc.cluster.topology import Cluster
from irc.cost.model import ClusterCost
from irc.search.configurations import IN_PARTS, Configuration

TRAVELS = (0.0, 1.5, 6.0)
"""By ``in_parts``: how often a byte that is held all the time would travel in each micro-batch.

What that takes is its price. Sums of gradients are in parts where a byte is dearer than one travel,
since gradients are reduced to them; weights where it is dearer than to gather it for forward and
for backward, and to do so with what is gathered for several uses.
"""
assert len(TRAVELS) == len(IN_PARTS)

LARGE = 2**30
"""Bytes of a sum whose links decide, not its latency."""


def stored_price(cluster: Cluster, configuration: Configuration) -> float:
    """Return the seconds of a step that a search of placements takes a byte that is held for.

    Args:
        cluster: the machines.
        configuration: whose mesh, micro-batches and ``in_parts`` count.
    """
    own = configuration
    if not own.in_parts or own.inner.num_ranks == 1:
        return 0.0
    cost = ClusterCost(cluster, own.inner, within=own.mesh)
    sums = (cost.collective_seconds("all_reduce", LARGE, axis) for axis in own.inner.names)
    return TRAVELS[own.in_parts] * own.micro_batches * max(sums) / LARGE


def fewest(most: int, fits: Callable[[int], bool]) -> int | None:
    """Return the fewest layers that fit when they are computed again; None where all do not.

    Each layer more holds less, but for the first one, which needs room to be computed again.
    O(log most).

    Args:
        most: layers that there are.
        fits: whether it does with so many of them computed again.

    >>> fewest(8, lambda layers: layers >= 3), fewest(8, lambda layers: False)
    (3, None)
    """
    if fits(0):
        return 0
    if not most or not fits(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def cheapest(
    points: Sequence[int],
    most: int,
    fits: Callable[[int, int], bool],
    seconds: Callable[[int, int], float],
    least_s: Callable[[int], float] = lambda point: 0.0,
    beat_s: float = inf,
) -> tuple[int, int] | None:
    """Return the point and the layers computed again that fit and take the least time.

    Args:
        points: the one that holds most first; a later one is asked for only as long as layers are
            computed again with those before it, since it takes longer else.
        most: layers that there are.
        fits: whether a point with so many layers fits.
        seconds: what a step takes then.
        least_s: what a step of a point takes at least, by what is known when that is asked.
        beat_s: what takes as long or longer is not wanted.
    """
    best: tuple[float, int, int] | None = None

    def is_open(point: int) -> bool:
        return least_s(point) < (beat_s if best is None else min(beat_s, best[0]))

    last, is_sure = points[-1], False
    for point in filter(is_open, points):
        # Layers computed again are asked for where a point may be the best with them.
        layers = 0 if fits(point, 0) else None
        if layers is None and is_open(point):
            layers = fewest(most, lambda number, point=point: fits(point, number))
        if layers is None:
            # Where the last one does not fit either, those between need not be asked for.
            if not is_sure and is_open(last) and not (fits(last, most) or fits(last, 0)):
                break
            is_sure = True
            continue
        own = seconds(point, layers), layers, point
        best = own if best is None else min(best, own)
        if layers == 0:
            break
    return None if best is None else (best[2], best[1])
