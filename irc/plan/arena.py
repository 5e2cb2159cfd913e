"""Offsets in the arena: buffers that are alive together do not overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from irc.plan.alignment import aligned


@dataclass(frozen=True)
class Interval:
    """A buffer's size and the steps at which it is alive, first and last included."""

    size_bytes: int
    first: int
    last: int


def lower_bound_bytes(intervals: Sequence[Interval]) -> int:
    """Return the most bytes alive at one step: no assignment needs less.

    >>> lower_bound_bytes([Interval(64, 0, 1), Interval(64, 1, 2), Interval(64, 2, 3)])
    128
    """
    events: list[tuple[int, int]] = []
    for interval in intervals:
        size = aligned(interval.size_bytes)
        events += [(interval.first, size), (interval.last + 1, -size)]
    alive = peak = 0
    # At one step, what died before is freed (negative) before what is born is counted.
    for _, change in sorted(events):
        alive += change
        peak = max(peak, alive)
    return peak


def assign_offsets(intervals: Sequence[Interval]) -> tuple[list[int], int]:
    """Choose an offset for each interval; return them and the size of the arena.

    Largest first, each into the smallest gap among the placed buffers that it meets in time, or
    after the last of them (greedy by size, arXiv:2001.03288). O(n^2) comparisons, done by numpy.

    >>> assign_offsets([Interval(64, 0, 1), Interval(128, 1, 2), Interval(64, 2, 3)])
    ([128, 0, 128], 192)
    """
    import numpy as np

    order = sorted(range(len(intervals)), key=lambda i: (-intervals[i].size_bytes, i))
    first = np.array([interval.first for interval in intervals], dtype=np.int64)
    last = np.array([interval.last for interval in intervals], dtype=np.int64)
    size = np.array([aligned(interval.size_bytes) for interval in intervals], dtype=np.int64)
    offset = np.zeros(len(intervals), dtype=np.int64)
    placed = np.zeros(len(intervals), dtype=bool)
    total = 0
    for i in order:
        if size[i] == 0:
            continue
        meets = np.flatnonzero(placed & (first <= last[i]) & (last >= first[i]))
        low = offset[meets]
        by_offset = np.argsort(low, kind="stable")
        low, high = low[by_offset], (low + size[meets])[by_offset]
        # Where what lies below each of them ends: gaps begin there.
        ends = np.concatenate(([0], np.maximum.accumulate(high)))
        gaps = low - ends[:-1]
        fitting = np.flatnonzero(gaps >= size[i])
        offset[i] = ends[fitting[np.argmin(gaps[fitting])]] if len(fitting) else ends[-1]
        placed[i] = True
        total = max(total, int(offset[i] + size[i]))
    return [int(o) for o in offset], total
