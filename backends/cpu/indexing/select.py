"""Few of many: the best so far in order, and a look at whole vectors for any that is better.

Of n elements in no order about ``k log(n / k)`` are put among the best, the others only compared
with the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from irc.backends.cpu.indexing.order import OrderWriter
from irc.backends.cpu.indexing.rows import Rows, loop_while
from irc.backends.cpu.vector.builder import Operand, Type, constant

MOST_SELECTED, FEW = 64, 4
"""Elements that are selected at most, and how many times as many a row has at least."""
LOOKED = 4
"""Vectors that a selection looks at together."""


class SelectWriter(OrderWriter):
    """Writes a selection."""

    def lay_out(self) -> int:
        # One more in front, smaller than all keys, ends the search for a place.
        self.keys_at, self.places_at = 0, (self.count + 2) * 8
        return self.places_at + (self.count + 2) * 4

    def row(self, rows: Rows) -> None:
        b, x, k, n = self.b, rows["x"], self.count, self.n
        b.store(constant(self.key, 0), self.scratch(self.keys_at))

        def fill(i: Operand) -> None:
            self._insert(self.key_at(x, i), i, b.add(i, b.i64(1)))

        self.each(k, fill)
        width = self.lanes * LOOKED if self.is_close else 1
        whole = (n - k) // width * width if width > 1 else 0

        def look(i: Operand, _: list[Operand]) -> Sequence[Operand]:
            limit = b.splat(self._last(), self.lanes)
            any_better: Operand | None = None
            for u in range(LOOKED):
                keys = self.key_at(x, b.add(i, b.i64(u * self.lanes)), self.lanes)
                better = b.compare("icmp ult", keys, limit)
                any_better = better if any_better is None else b.binary("or", any_better, better)
            assert any_better is not None
            some = b.call(
                Type("i1"), f"llvm.vector.reduce.or.{any_better.type.mangled}", any_better
            )
            b.when(some, lambda: self.each(width, lambda j: self._offer(x, b.add(i, j))))
            return ()

        if whole:
            b.loop(b.i64(k), b.i64(k + whole), width, [], look)
        b.loop(b.i64(k + whole), b.i64(n), 1, [], lambda i, _: (self._offer(x, i), ())[1])

        self.take(rows, self.scratch(self.places_at + 4), k)

    def _last(self) -> Operand:
        """Return the key of the last of the best."""
        return self.b.load(
            self.key, self.slot(self.keys_at, self.key.element, self.b.i64(self.count))
        )

    def _offer(self, x: Operand, i: Operand) -> None:
        b = self.b
        key = self.key_at(x, i)
        better = b.compare("icmp ult", key, self._last())
        b.when(better, lambda: self._insert(key, i, b.i64(self.count)))

    def _insert(self, key: Operand, i: Operand, place: Operand) -> None:
        """Put a key behind those that are not greater; ``place`` is the last that there is."""
        b, element = self.b, self.key.element

        def at(array: int, kind: str, p: Operand) -> Operand:
            return self.slot(array, kind, p)

        def greater(state: list[Operand]) -> Operand:
            before = b.add(state[0], b.i64(-1))
            return b.compare("icmp ugt", b.load(self.key, at(self.keys_at, element, before)), key)

        def move(state: list[Operand]) -> list[Operand]:
            before = b.add(state[0], b.i64(-1))
            for array, kind in ((self.keys_at, element), (self.places_at, "i32")):
                b.store(b.load(Type(kind), at(array, kind, before)), at(array, kind, state[0]))
            return [before]

        (position,) = loop_while(b, [place], greater, move)
        b.store(key, at(self.keys_at, element, position))
        b.store(b.convert("trunc", i, "i32"), at(self.places_at, "i32", position))
