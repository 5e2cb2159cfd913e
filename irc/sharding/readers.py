"""Who reads a block of a value, and which of its holders serves whom.

The readers of a block are a product: along each dim some parts of the side after, times all its
copies. They are numbered by mixed radix in the order of its axes, so that the n-th reader and the
readers of the n-th holder are found without listing any other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product as cartesian
from math import prod
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from irc.dialects.placement import Split

if TYPE_CHECKING:
    from irc.sharding.between import Box, Channel

Place: TypeAlias = Mapping[str, int]
"""Coordinates by axis."""


def parts_in(
    length: int, sizes: Sequence[int], low: int, high: int
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Yield the parts of nested ceil-sized chunks that meet ``[low, high)``, and where.

    >>> list(parts_in(5, (2, 2), 1, 4))
    [((0, 0), 1, 2), ((0, 1), 2, 3), ((1, 0), 3, 4)]
    """
    if low >= high:
        return
    if not sizes:
        yield (), low, high
        return
    chunk = -(-length // sizes[0])
    for i in range(low // chunk, (high - 1) // chunk + 1):
        start = i * chunk
        own = min(chunk, length - start)
        inside = (max(low - start, 0), min(high - start, own))
        for digits, first, last in parts_in(own, sizes[1:], *inside):
            yield (i, *digits), start + first, start + last


class _Along(NamedTuple):
    """Where readers lie along some axes: the axes that split one dim, or one axis of copies.

    Attributes:
        axes: in the order in which they apply.
        digits: the coordinates on them; None for all those of an axis of copies.
        numbers: the position of each in ``digits``.
        size: how many there are.
    """

    axes: tuple[str, ...]
    digits: Sequence[tuple[int, ...]] | None
    numbers: Mapping[tuple[int, ...], int] | None
    size: int

    def number(self, place: Place) -> int | None:
        """Return the position of coordinates, None where no reader is there."""
        if self.numbers is None:
            return place[self.axes[0]]
        return self.numbers.get(tuple(place[axis] for axis in self.axes))

    def place(self, number: int) -> Place:
        """Return the coordinates of a position."""
        digits = (number,) if self.digits is None else self.digits[number]
        return dict(zip(self.axes, digits, strict=True))


class Readers:
    """The ranks that need something of one block.

    Those that hold the block themselves are left out, and numbers close ranks after them.
    """

    def __init__(self, channel: Channel, block: Place, where: Box) -> None:
        before, after = channel.before, channel.after
        self._after = after.mesh
        self._copies = {axis: before.mesh.size(axis) for axis in before.copies}
        self._along: list[_Along] = []
        for axis, placed in after.placement.axes:
            if not isinstance(placed, Split):
                self._along.append(_Along((axis,), None, None, after.mesh.size(axis)))
            elif placed.order == 0:
                axes = after.placement.split_axes(placed.dim)
                sizes = tuple(after.mesh.size(name) for name in axes)
                along = _digits(channel.shape[placed.dim], sizes, *where[placed.dim])
                self._along.append(_Along(axes, *along, len(along[0])))
        sizes = [along.size for along in self._along]
        everyone = prod(sizes) if all(start < stop for start, stop in where) else 0
        self._held = sorted(self._holding(channel, block)) if everyone else []
        self._gaps = [number - i for i, number in enumerate(self._held)]
        self.count = everyone - len(self._held)
        self._lines = self._in_line()

    def holder(self, reader: Place) -> Place:
        """Return the coordinates, on the axes of copies, of the holder that serves a reader."""
        if self._lines is None:
            number = self._number(reader)
            assert number is not None, "no reader of this block"
            return _decoded(number - bisect_left(self._held, number), self._copies)
        place = dict.fromkeys(self._copies, 0)
        for along, line in zip(self._along, self._lines, strict=True):
            place.update(_decoded(along.number(reader) or 0, line))
        return place

    def served_by(self, holder: Place) -> Iterator[Place]:
        """Yield the coordinates of the readers that a holder serves."""
        if self._lines is None:
            holders = prod(self._copies.values())
            for n in range(_encoded(holder, self._copies), self.count, holders):
                yield self._at(n + bisect_right(self._gaps, n))
            return
        lines = {axis for line in self._lines for axis in line}
        if self.count and not any(holder[axis] for axis in self._copies if axis not in lines):
            ranges = [
                range(_encoded(holder, line), along.size, prod(line.values()))
                for along, line in zip(self._along, self._lines, strict=True)
            ]
            for numbers in cartesian(*ranges):
                yield self._joined(numbers)

    def _in_line(self) -> list[Mapping[str, int]] | None:
        """Return by which axes of copies each factor finds its holder at equal coordinates.

        None where that would load some holder more than counting readers off does.
        """
        lines: list[Mapping[str, int]] = [
            {axis: self._copies[axis] for axis in along.axes if axis in self._copies}
            for along in self._along
        ]
        pairs = zip(self._along, lines, strict=True)
        most = prod(-(-along.size // prod(line.values())) for along, line in pairs)
        if self._held or most > -(-self.count // prod(self._copies.values())):
            return None
        return lines

    def _holding(self, channel: Channel, block: Place) -> Iterator[int]:
        """Yield the numbers of the readers that hold the block."""
        before, after = channel.before, channel.after
        if not channel.shared:
            return
        for copy in cartesian(*map(range, self._copies.values())):
            rank = before.rank({**block, **dict(zip(self._copies, copy, strict=True))})
            if rank in after.positions:
                number = self._number(after.place(rank))
                if number is not None:
                    yield number

    def _number(self, reader: Place) -> int | None:
        index = 0
        for along in self._along:
            number = along.number(reader)
            if number is None:
                return None
            index = index * along.size + number
        return index

    def _at(self, number: int) -> Place:
        numbers: list[int] = []
        for along in reversed(self._along):
            number, own = divmod(number, along.size)
            numbers.append(own)
        return self._joined(numbers[::-1])

    def _joined(self, numbers: Sequence[int]) -> Place:
        place: dict[str, int] = {}
        for along, number in zip(self._along, numbers, strict=True):
            place.update(along.place(number))
        return place


@lru_cache(maxsize=256)
def _digits(
    length: int, sizes: tuple[int, ...], low: int, high: int
) -> tuple[Sequence[tuple[int, ...]], Mapping[tuple[int, ...], int]]:
    """Return the parts of a dim that meet an interval, and their positions; blocks share them."""
    digits = [part[0] for part in parts_in(length, sizes, low, high)]
    return digits, {each: i for i, each in enumerate(digits)}


def _decoded(number: int, sizes: Mapping[str, int]) -> Place:
    """Return coordinates on axes, the last varying fastest, wrapping around."""
    place: dict[str, int] = {}
    for axis, size in reversed(tuple(sizes.items())):
        number, place[axis] = divmod(number, size)
    return place


def _encoded(place: Place, sizes: Mapping[str, int]) -> int:
    number = 0
    for axis, size in sizes.items():
        number = number * size + place[axis]
    return number
