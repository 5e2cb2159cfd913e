"""Seconds of a permute: each rank of a group sends to one other, all at once.

A message takes one step of the outermost level that it crosses, ``launch + alpha + n beta``, where
beta is of that level's ports: those of a group below (a node) are shared by its messages that leave
it, as in the rings of `irc.cost.collectives`. The dearest message decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod

from irc.cluster.links import AxisLink, Hop, Protocol
from irc.cost.collectives import Line, lines_of_protocols, seconds_of


def permute_s(
    targets: Sequence[int], link: AxisLink, num_bytes: float, copy_bytes_per_s: float
) -> float:
    """Return the seconds of one permute.

    Args:
        targets: where each rank of the group sends, -1 for nowhere.
        link: what the axis runs over.
        num_bytes: of each message.
        copy_bytes_per_s: of a rank that sends to itself.

    >>> link = AxisLink(ranks=4, latency_s=1e-6, bytes_per_s=1e9, launch_s=0.0)
    >>> f"{permute_s([1, 2, 3, 0], link, 1_000_000, 1e12) * 1e3:.3f} ms"  # 1 us and 1 MB
    '1.001 ms'
    """
    moves = [(source, to) for source, to in enumerate(targets) if to not in (-1, source)]
    if not moves:
        return 2 * num_bytes / copy_bytes_per_s if max(targets, default=-1) >= 0 else 0.0
    hops = link.levels
    return max(
        seconds_of(choices, num_bytes)
        for choices in (_level(moves, hops, level) for level in range(len(hops)))
        if choices
    )


def _level(moves: Sequence[tuple[int, int]], hops: tuple[Hop, ...], level: int) -> list[Line]:
    """Return the choices of protocol for the messages whose outermost level this is."""
    hop, below = hops[level], prod(inner.fan for inner in hops[:level])
    whole = below * hop.fan
    leaving = [s for s, to in moves if s // below != to // below and s // whole == to // whole]
    if not leaving:
        return []
    busiest = max(Counter(source // below for source in leaving).values())
    slope = busiest / below / hop.bytes_per_s

    def line(choice: Sequence[Protocol], name: str) -> Line:
        mine = choice[level]
        return Line(name, mine.launch_s + mine.latency_s, slope / mine.part)

    return lines_of_protocols("permute", hops, line)
