"""Long rows, byte by byte from the lowest (Knuth, vol. 3, 5.2.5): stable without a comparison.

All bytes are counted in one walk, and those that are the same in all keys left out. Where only the
first few are wanted, keys are counted by their highest bits before, and those that cannot be among
the first are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

from irc.backends.cpu.indexing.order import OrderWriter
from irc.backends.cpu.indexing.rows import Rows, loop_while
from irc.backends.cpu.vector.builder import Operand, Type, constant

DIGITS = 256
TOP = 12
"""The bits by which those that may be among the first are found: enough to part floats."""
PART = 4
"""How many times as many elements a row has as are wanted, for which it is narrowed first."""


class RadixWriter(OrderWriter):
    """Writes a radix sort."""

    def lay_out(self) -> int:
        size = -(-self.n * self.key_bytes // 64) * 64
        self.keys_at, self.other_keys_at = 0, size
        self.places_at = 2 * size
        places = -(-self.n * 4 // 64) * 64
        self.other_places_at = self.places_at + places
        self.counts_at = self.other_places_at + places
        self.is_part = self.count * PART <= self.n and self.key.bits >= TOP
        return self.counts_at + max(self.key_bytes * DIGITS, self.is_part << TOP) * 4

    def row(self, rows: Rows) -> None:
        b = self.b
        among = self._narrowed(rows["x"]) if self.is_part else self._all(rows["x"])
        self._count(among)
        arrays = [
            self.scratch(at)
            for at in (self.keys_at, self.places_at, self.other_keys_at, self.other_places_at)
        ]

        def digit(d: Operand, state: list[Operand]) -> list[Operand]:
            keys, places, other_keys, other_places = state
            counts = self.slot(self.counts_at, "i32", b.scale(d, DIGITS))
            first = self._digit(b.load(self.key, keys), d)
            same = b.load(Type("i32"), b.address(counts, "i32", first))
            moves = b.compare("icmp ne", same, b.convert("trunc", among, "i32"))
            b.when(moves, lambda: self._move(state, counts, d, among))
            return [
                b.select(moves, other_keys, keys),
                b.select(moves, other_places, places),
                b.select(moves, keys, other_keys),
                b.select(moves, places, other_places),
            ]

        sorted_ = b.loop(b.i64(0), b.i64(self.key_bytes), 1, arrays, digit)

        self.take(rows, sorted_[1], self.count)

    def _digit(self, key: Operand, d: Operand) -> Operand:
        """Return a byte of a key as an index."""
        b = self.b
        wide = key if key.type.bits == 64 else b.convert("zext", key, "i64")
        return b.binary("and", b.binary("lshr", wide, b.scale(d, 8)), b.i64(DIGITS - 1))

    def _all(self, x: Operand) -> Operand:
        """Write the keys and places of a row; returns how many."""
        b, element = self.b, self.key.element

        def one(i: Operand, lanes: int) -> None:
            b.store(self.key_at(x, i, lanes), self.slot(self.keys_at, element, i))
            first = b.splat(b.convert("trunc", i, "i32"), lanes)
            places = b.binary("add", first, b.iota(Type("i32", lanes)))
            b.store(places, self.slot(self.places_at, "i32", i))

        lanes = min(self.lanes, 16) if self.is_close else 1
        self.sweep(b.i64(0), b.i64(self.n), lanes, one)
        return b.i64(self.n)

    def _top(self, key: Operand) -> Operand:
        """Return the highest bits of a key as an index."""
        b = self.b
        high = b.binary("lshr", key, constant(key.type, self.key.bits - TOP))
        return high if key.type.bits == 64 else b.convert("zext", high, "i64")

    def _narrowed(self, x: Operand) -> Operand:
        """Write the keys and places of those that may be among the first; returns how many.

        Keys are counted by their highest bits; the first ``k`` lie in the buckets up to that in
        which their number is reached.
        """
        b, element, i32 = self.b, self.key.element, Type("i32")
        self._clear(1 << TOP)

        def one(i: Operand, lanes: int) -> None:
            b.store(self.key_at(x, i, lanes), self.slot(self.other_keys_at, element, i))

        lanes = min(self.lanes, 16) if self.is_close else 1
        self.sweep(b.i64(0), b.i64(self.n), lanes, one)

        def read(i: Operand) -> Operand:
            return b.load(self.key, self.slot(self.other_keys_at, element, i))

        self.each(self.n, lambda i: self._one_more(self._top(read(i))))

        def short(state: list[Operand]) -> Operand:
            return b.compare("icmp slt", state[1], constant(i32, self.count))

        def onward(state: list[Operand]) -> list[Operand]:
            count = b.load(i32, self.slot(self.counts_at, "i32", state[0]))
            return [b.add(state[0], b.i64(1)), b.binary("add", state[1], count)]

        end, _ = loop_while(b, [b.i64(0), constant(i32, 0)], short, onward)

        def keep(i: Operand, state: list[Operand]) -> list[Operand]:
            key = read(i)
            b.store(key, self.slot(self.keys_at, element, state[0]))
            b.store(b.convert("trunc", i, "i32"), self.slot(self.places_at, "i32", state[0]))
            kept = b.compare("icmp slt", self._top(key), end)
            return [b.add(state[0], b.convert("zext", kept, "i64"))]

        return b.loop(b.i64(0), b.i64(self.n), 1, [b.i64(0)], keep)[0]

    def _clear(self, count: int) -> None:
        """Set counts to 0."""
        zero = constant(Type("i32", 4), 0)
        self.each(
            count // 4,
            lambda i: self.b.store(zero, self.slot(self.counts_at, "i32", self.b.scale(i, 4))),
        )

    def _one_more(self, index: Operand) -> None:
        b, at = self.b, self.slot(self.counts_at, "i32", index)
        b.store(b.binary("add", b.load(Type("i32"), at), constant(Type("i32"), 1)), at)

    def _count(self, among: Operand) -> None:
        """Count all bytes of the keys."""
        b = self.b
        self._clear(self.key_bytes * DIGITS)

        def one(i: Operand, _: list[Operand]) -> Sequence[Operand]:
            key = b.load(self.key, self.slot(self.keys_at, self.key.element, i))
            for d in range(self.key_bytes):
                self._one_more(b.add(self._digit(key, b.i64(d)), b.i64(d * DIGITS)))
            return ()

        b.loop(b.i64(0), among, 1, [], one)

    def _move(self, state: Sequence[Operand], counts: Operand, d: Operand, among: Operand) -> None:
        """Put keys and places in the order of a byte."""
        b, element = self.b, self.key.element
        keys, places, other_keys, other_places = state
        one = constant(Type("i32"), 1)

        def begin(i: Operand, so_far: list[Operand]) -> list[Operand]:
            at = b.address(counts, "i32", i)
            count = b.load(Type("i32"), at)
            b.store(so_far[0], at)
            return [b.binary("add", so_far[0], count)]

        b.loop(b.i64(0), b.i64(DIGITS), 1, [constant(Type("i32"), 0)], begin)

        def move(i: Operand, _: list[Operand]) -> Sequence[Operand]:
            key = b.load(self.key, b.address(keys, element, i))
            at = b.address(counts, "i32", self._digit(key, d))
            to = b.load(Type("i32"), at)
            b.store(b.binary("add", to, one), at)
            wide = b.convert("zext", to, "i64")
            b.store(key, b.address(other_keys, element, wide))
            place = b.load(Type("i32"), b.address(places, "i32", i))
            b.store(place, b.address(other_places, "i32", wide))
            return ()

        b.loop(b.i64(0), among, 1, [], move)
