"""Bytes in use while actions run, by pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from irc.simulate.actions import SimAction, Timeline


def held_bytes(
    actions: Sequence[SimAction], timeline: Timeline
) -> Iterator[tuple[str, float, float]]:
    """Yield what is alive in a pool after each moment in which that changes."""
    changes: dict[tuple[float, str], float] = {}
    for action, start, end in zip(actions, timeline.starts, timeline.ends, strict=True):
        for at, sign, sizes in ((start, 1.0, action.allocates), (end, -1.0, action.frees)):
            for pool, size in sizes:
                changes[at, pool] = changes.get((at, pool), 0.0) + sign * size
    alive: dict[str, float] = {}
    for (at, pool), change in sorted(changes.items()):
        if change:
            alive[pool] = alive.get(pool, 0.0) + change
            yield pool, at, alive[pool]
