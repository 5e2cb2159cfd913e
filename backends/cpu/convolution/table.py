"""The table of a block of places: for each tap, pointers to where the windows' channels begin.

Places are consecutive in row-major order, so a line of the last place dim is written by vectors;
those that lie outside the image point at zeros (Dukhan's indirection buffer, arXiv:1907.02129).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from irc.backends.cpu.convolution.windows import Blocking, Windows
from irc.backends.cpu.loops.units import decode
from irc.backends.cpu.vector.builder import I64, Builder, Operand, Type
from irc.dialects.types import ITEM_BYTES

POINTERS = 8
"""Pointers that are written at a time."""


class TableWriter:
    """Writes the loops that fill a table."""

    def __init__(self, b: Builder, windows: Windows, plan: Blocking, image: Operand) -> None:
        self.b, self.windows, self.plan = b, windows, plan
        self.item = ITEM_BYTES[windows.image.dtype]
        self.image = b.emit(I64, f"ptrtoint {image} to i64")

    def write(
        self,
        table: Operand,
        zeros: Operand,
        batch: dict[int, Operand],
        places: tuple[Operand, Operand],
    ) -> None:
        """Write pointers for all taps of the places from the first to before the last."""
        b, w = self.b, self.windows
        outside = b.emit(I64, f"ptrtoint {zeros} to i64")

        def tap(number: Operand, indices: dict[int, Operand]) -> None:
            row = b.address(table, "ptr", b.scale(number, self.plan.pitch))
            self._places(row, outside, {**batch, **indices}, places)

        self._each(w.taps, w.sizes(w.taps), {}, b.i64(0), tap)

    def _each(
        self,
        dims: Sequence[int],
        extents: Sequence[int],
        indices: dict[int, Operand],
        number: Operand,
        body: Callable[[Operand, dict[int, Operand]], None],
    ) -> None:
        """Write nested loops over some dims; ``number`` counts them in row-major order."""
        if not dims:
            body(number, indices)
            return
        b, extent = self.b, extents[0]

        def one(index: Operand, _: list[Operand]) -> list[Operand]:
            count = b.add(b.scale(number, extent), index)
            self._each(dims[1:], extents[1:], {**indices, dims[0]: index}, count, body)
            return []

        b.loop(b.i64(0), b.i64(extent), 1, [], one)

    def _places(
        self,
        row: Operand,
        outside: Operand,
        known: dict[int, Operand],
        places: tuple[Operand, Operand],
    ) -> None:
        """Write the pointers of one tap, line by line of the last place dim."""
        b, w, (first, last) = self.b, self.windows, places
        if not w.places:
            self._vector(row, outside, known, None)
            return
        *outer, moving = w.places
        extents, length = w.sizes(tuple(outer)), w.nest.extents[moving]

        def line(number: Operand, _: list[Operand]) -> list[Operand]:
            indices = dict(zip(outer, decode(b, number, extents), strict=True)) if outer else {}
            start = b.binary("sub nsw", first, b.scale(number, length))
            stop = b.binary("sub nsw", last, b.scale(number, length))

            def vector(x: Operand, _: list[Operand]) -> list[Operand]:
                target = b.address(row, "ptr", b.binary("sub nsw", x, start))
                self._vector(target, outside, {**known, **indices, moving: x}, moving)
                return []

            begin = b.intrinsic("smax", start, b.i64(0))
            end = b.intrinsic("smin", stop, b.i64(length))
            return b.loop(begin, end, POINTERS, [], vector)

        low = b.binary("udiv", first, b.i64(length))
        high = b.binary("udiv", b.add(last, b.i64(length - 1)), b.i64(length))
        b.loop(low, high, 1, [], line)

    def _vector(
        self, target: Operand, outside: Operand, known: dict[int, Operand], moving: int | None
    ) -> None:
        """Write pointers to some places from one on: to zeros where they lie outside."""
        b, access = self.b, self.windows.image
        addresses = self._linear(access.offset, access.strides, self.item, known, moving)
        addresses = b.binary("add nsw", addresses, b.splat(self.image, addresses.type.lanes))
        for bound in access.bounds:
            position = self._linear(bound.start, bound.strides, 1, known, moving)
            size = b.splat(b.i64(bound.size), position.type.lanes)
            inside = b.compare("icmp ult", position, size)
            lanes = max(addresses.type.lanes, inside.type.lanes)
            addresses = b.select(
                b.splat(inside, lanes), b.splat(addresses, lanes), b.splat(outside, lanes)
            )
        b.store(b.splat(addresses, POINTERS), target, 8)

    def _linear(
        self,
        start: int,
        strides: Sequence[int],
        scale: int,
        known: dict[int, Operand],
        moving: int | None,
    ) -> Operand:
        """``start + sum(strides * indices)``, times ``scale``: a vector where it moves."""
        b, total = self.b, self.b.i64(start * scale)
        for dim, index in known.items():
            total = b.add(total, b.scale(index, strides[dim] * scale))
        step = 0 if moving is None else strides[moving] * scale
        if not step:
            return total
        kind = Type("i64", POINTERS)
        steps = b.binary("mul nsw", b.iota(kind), b.splat(b.i64(step), POINTERS))
        return b.binary("add nsw", b.splat(total, POINTERS), steps)
