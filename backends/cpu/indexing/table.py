"""What a scatter begins with: are all indices inside, and what it writes into."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from irc.backends.cpu.features import Features
from irc.backends.cpu.indexing.rows import AlongWriter, Rows
from irc.backends.cpu.loops.sizes import is_named, typical
from irc.backends.cpu.vector.builder import Builder, Operand, Type, constant
from irc.backends.cpu.vector.storage import COMPUTE, MEMORY
from irc.dialects.along import AlongForm
from irc.dialects.types import ITEM_BYTES

Span: TypeAlias = tuple[Operand, Operand]
"""Where a range begins and ends."""


class TableWriter(AlongWriter):
    """Base of scatters: y as a table of ``count`` places by ``columns`` neighbours in memory."""

    def __init__(
        self, b: Builder, form: AlongForm, features: Features, buffers: dict[int, Operand]
    ) -> None:
        super().__init__(b, form, features, buffers)
        y = form.places["y"]
        self.column = next(
            (d for d, n in enumerate(form.outer) if typical(n) > 1 and y.strides[d] == 1), None
        )
        self.columns = 1 if self.column is None else form.outer[self.column]
        self.lanes = features.vector_bytes // max(Type(MEMORY[y.dtype]).bits // 8, 2)
        self.count, self.places = y.count, form.space[-1]
        self.parts_columns = False
        x = form.places.get("x", y)
        self.is_alike = (x.offset, x.strides, x.size) == (y.offset, y.strides, y.size)

    def moves(self, role: str) -> int:
        """The stride of a role from column to column."""
        return 0 if self.column is None else self.form.places[role].strides[self.column]

    def begin(self, at: Rows, span: Span, columns: Span) -> None:
        """Fill y, or copy x unless it is the same memory."""
        if "x" not in self.form.places:
            self._fill(at["y"], span, columns)
            return
        if not self.is_alike:
            self._copy(at, span, columns)
            return
        apart = self.b.compare("icmp ne", at["x"], at["y"])
        self.b.when(apart, lambda: self._copy(at, span, columns))

    def _is_flat(self, role: str) -> bool:
        """True where a row of a role has no gaps."""
        place = self.form.places[role]
        beside = self.column is None or self.moves(role) == 1
        return beside and place.strides[-1] == self.columns and not self.parts_columns

    def _fill(self, y: Operand, span: Span, columns: Span) -> None:
        kind = Type(COMPUTE[self.form.places["y"].dtype])

        def some(at: Operand, lanes: int) -> None:
            self.store("y", constant(Type(kind.element, lanes), self.form.fill), at)

        if self._is_flat("y"):
            low, high = (self.b.scale(end, self.columns) for end in span)
            if math.copysign(1, self.form.fill) > 0 and self.form.fill == 0:
                self._set_to_zero(self.moved("y", y, low), self.b.binary("sub", high, low))
                return
            self.sweep(low, high, self.lanes, lambda i, n: some(self.moved("y", y, i), n))
            return

        def line(i: Operand, _: int) -> None:
            row = self.element("y", y, i)
            lanes = 1 if self.column is None else self.lanes
            self.sweep(*columns, lanes, lambda c, n: some(self.moved("y", row, c), n))

        self.sweep(*span, 1, line)

    def _bytes(self, elements: Operand) -> Operand:
        return self.b.scale(elements, ITEM_BYTES[self.form.places["y"].dtype])

    def _set_to_zero(self, at: Operand, elements: Operand) -> None:
        b, zero = self.b, constant(Type("i8"), 0)
        false = constant(Type("i1"), 0)
        b.invoke("llvm.memset.p0.i64", at, zero, self._bytes(elements), false)

    def _copy(self, at: Rows, span: Span, columns: Span) -> None:
        b, memory, moves = self.b, MEMORY[self.form.places["y"].dtype], self.moves("x")

        def some(x: Operand, y: Operand, lanes: int, loaded: int) -> None:
            b.store(b.splat(b.load(Type(memory, loaded), x), lanes), y)

        if self._is_flat("x") and self._is_flat("y"):
            low, high = (b.scale(end, self.columns) for end in span)
            x, y = self.moved("x", at["x"], low), self.moved("y", at["y"], low)
            size = self._bytes(b.binary("sub", high, low))
            b.invoke("llvm.memcpy.p0.p0.i64", y, x, size, constant(Type("i1"), 0))
            return

        def line(i: Operand, _: int) -> None:
            x, y = self.element("x", at["x"], i), self.element("y", at["y"], i)

            def part(c: Operand, n: int) -> None:
                source = self.moved("x", x, b.scale(c, moves))
                some(source, self.moved("y", y, c), n, n if moves == 1 else 1)

            beside = self.column is not None and moves in (0, 1)
            self.sweep(*columns, self.lanes if beside else 1, part)

        self.sweep(*span, 1, line)

    # indices

    def outside(
        self, start: Operand, dims: Sequence[tuple[int, int]], wanted: Operand | None = None
    ) -> Operand:
        """Return whether any of some indices lies outside y: a negative one is large unsigned.

        Args:
            start: the first index.
            dims: stride and size of each dim in which indices differ, or do not (stride 0).
            wanted: look only where this holds.
        """
        b = self.b
        moving = sorted((dim for dim in dims if dim[0]), key=lambda dim: -abs(typical(dim[0])))
        *outer, inner = moving or [(0, 1)]
        zero = b.i64(0)

        def nested(at: Operand, rest: Sequence[tuple[int, int]], worst: Operand) -> Operand:
            if not rest:
                return self._largest(at, *inner, worst)
            stride, count = rest[0]

            def step(i: Operand, state: list[Operand]) -> list[Operand]:
                return [nested(self.moved("index", at, b.scale(i, stride)), rest[1:], state[0])]

            return b.loop(zero, b.i64(count), 1, [worst], step)[0]

        if wanted is None:
            worst = nested(start, outer, zero)
        else:
            once = b.convert("zext", wanted, "i64")
            (worst,) = b.loop(zero, once, 1, [zero], lambda _, s: [nested(start, outer, s[0])])
        return b.compare("icmp uge", worst, b.i64(self.count))

    def _largest(self, at: Operand, stride: int, count: int, worst: Operand) -> Operand:
        """Return the largest, without sign, of some indices and another one."""
        b = self.b
        lanes = self.features.vector_bytes // 8 if stride == 1 and typical(count) >= 16 else 1
        every = b.i64(count)
        if is_named(count):
            whole = b.binary("and", every, b.i64(-lanes))
        else:
            whole = b.i64(count - count % lanes)

        def look(width: int, i: Operand, largest: Operand) -> list[Operand]:
            index = self.index("index", self.moved("index", at, b.scale(i, stride)), width)
            return [b.intrinsic("umax", largest, index)]

        if lanes > 1:
            wide = b.splat(worst, lanes)
            (wide,) = b.loop(b.i64(0), whole, lanes, [wide], lambda i, s: look(lanes, i, s[0]))
            worst = b.call(Type("i64"), f"llvm.vector.reduce.umax.{wide.type.mangled}", wide)
        if lanes > 1 and whole.literal is not None and whole.literal == every.literal:
            return worst
        first = whole if lanes > 1 else b.i64(0)
        return b.loop(first, every, 1, [worst], lambda i, s: look(1, i, s[0]))[0]
