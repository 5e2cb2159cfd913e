"""An arena for every size: which buffer lies above which is kept, only their places move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from irc.plan.alignment import aligned
from irc.plan.arena import Interval, assign_offsets


@dataclass(frozen=True)
class Stack:
    """For each buffer those that it must lie above, in an order in which they come before it.

    Two buffers that are alive at one time never overlap, whatever their sizes: one is above the
    other. At the sizes that the order was found for, the arena is as small as it was there.
    """

    order: tuple[int, ...]
    below: tuple[tuple[int, ...], ...]

    def place(self, sizes: Sequence[int]) -> tuple[list[int], int]:
        """Return the offset of each buffer, and the size of the arena.

        >>> made = stack([Interval(64, 0, 1), Interval(128, 1, 2), Interval(64, 2, 3)])
        >>> made.place([64, 128, 64]), made.place([64, 640, 64])
        (([128, 0, 128], 192), ([640, 0, 640], 704))
        """
        ends = [0] * len(sizes)
        offsets = [0] * len(sizes)
        for index in self.order:
            start = max([ends[other] for other in self.below[index]], default=0)
            offsets[index], ends[index] = start, start + aligned(sizes[index])
        return offsets, max(ends, default=0)


def stack(intervals: Sequence[Interval]) -> Stack:
    """Find the order by placing buffers of some sizes."""
    offsets, _ = assign_offsets(intervals)
    order = sorted(range(len(intervals)), key=lambda i: (offsets[i], i))
    below: list[tuple[int, ...]] = [()] * len(intervals)
    for position, index in enumerate(order):
        own = intervals[index]
        below[index] = tuple(
            other
            for other in order[:position]
            if intervals[other].first <= own.last and own.first <= intervals[other].last
        )
    return Stack(tuple(order), tuple(below))
