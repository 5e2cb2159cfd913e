"""Exchanges: a value moves between boxes on ranks that need not be a whole mesh any more.

A :class:`~irc.sharding.between.Channel` reads who holds what off two placements. When ranks are
lost, what is left of a mesh has no placement: there are boxes of the value on some ranks, and each
rank of the run to come needs a box of it. The messages are those of a channel, and so are the
bytes: each rank receives what it needs and does not hold, from one holder each, and nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from irc.sharding.between import Box, Message, meet, message_of, volume

Boxes: TypeAlias = tuple[tuple[Box, ...], ...]
"""By rank, the boxes of a value that it holds or needs."""


@dataclass(frozen=True)
class Moved:
    """A message, and of which boxes of its two ranks.

    Attributes:
        message: its parts are slices of these boxes.
        source_box: the number of the box among those that the source holds.
        target_box: the number of the box among those that the target needs.
    """

    message: Message
    source_box: int
    target_box: int


@lru_cache(maxsize=256)
def exchanged(held: Boxes, needed: Boxes, dtype: str) -> tuple[Moved, ...]:
    """Return what ranks tell each other, in one order on all of them; copies on a rank come first.

    What a rank holds itself it does not receive. Of several holders of a slice the one that has
    sent least so far sends it, then the one that follows the reader. O(readers x distinct boxes).

    Args:
        held: by rank.
        needed: by rank; of what no rank holds there is no message (:func:`lacking`).
        dtype: irc's short name.

    >>> whole, front, back = ((0, 4),), ((0, 2),), ((2, 4),)
    >>> for moved in exchanged(((front,), (back,)), ((whole,), (back,)), "f32"):
    ...     print(moved.message.source, moved.message.target, moved.message.where)
    0 0 (slice(0, 2, None),)
    1 1 (slice(2, 4, None),)
    1 0 (slice(2, 4, None),)
    """
    holders: dict[Box, list[tuple[int, int]]] = {}
    for rank, boxes in enumerate(held):
        for number, box in enumerate(boxes):
            holders.setdefault(box, []).append((rank, number))
    sent: Counter[int] = Counter()
    every: list[Moved] = []
    ranks = max(len(held), len(needed))
    for rank, boxes in enumerate(needed):
        own = held[rank] if rank < len(held) else ()
        for number, box in enumerate(boxes):
            missing = [box]
            for block in (*own, *(block for block in holders if block not in own)):
                pieces = [m for rest in missing if volume(m := meet(rest, block))]
                if not pieces:
                    continue
                source, place = min(
                    ((r, n) for r, n in holders[block] if r == rank or block not in own),
                    key=lambda each: (sent[each[0]], (each[0] - rank) % ranks),
                )
                for where in pieces:
                    message = message_of(source, rank, where, block, box, dtype)
                    sent[source] += 0 if source == rank else message.num_bytes
                    every.append(Moved(message, place, number))
                missing = [piece for rest in missing for piece in _without(rest, block)]
    return tuple(sorted(every, key=lambda each: not each.message.is_copy))


def lacking(shape: Sequence[int], held: Boxes) -> Box | None:
    """Return a part of a value that no rank holds; None where all of it is held.

    >>> lacking((4, 2), ((((0, 2), (0, 2)),), (), (((3, 4), (0, 2)),)))
    ((2, 3), (0, 2))
    """
    missing = [box] if volume(box := tuple((0, size) for size in shape)) else []
    for block in dict.fromkeys(block for boxes in held for block in boxes):
        missing = [piece for rest in missing for piece in _without(rest, block)]
    return missing[0] if missing else None


def _without(box: Box, taken: Box) -> Iterator[Box]:
    """Yield what is left of a box, in boxes without overlap."""
    common = meet(box, taken)
    if not volume(common):
        yield box
        return
    for dim, ((start, stop), (first, last)) in enumerate(zip(box, common, strict=True)):
        for low, high in ((start, first), (last, stop)):
            if low < high:
                yield (*common[:dim], (low, high), *box[dim + 1 :])
