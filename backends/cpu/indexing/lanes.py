"""Scans of the lanes of a vector, where the dim is the innermost.

A vector is scanned in ``log2(lanes)`` shifts (Hillis and Steele 1986) beside the running total, so
that one addition a vector is all that waits for the one before.

Few long rows are cut into blocks of a fixed length, which threads share: a thread first adds up the
blocks before its own, so no thread waits for another (Blelloch 1990 scans their totals in between).
A block starts at the sum of the totals before it, however many threads there are.
"""

from __future__ import annotations

from math import prod

from irc.backends.cpu.indexing.rows import UNROLL, Rows
from irc.backends.cpu.indexing.scan import FUNCTIONS, ScanWriter
from irc.backends.cpu.loops.sizes import is_named, typical
from irc.backends.cpu.loops.units import decode, thread_range
from irc.backends.cpu.vector.builder import Operand, Type, constant
from irc.backends.cpu.vector.pointwise import apply
from irc.dialects.along import AlongForm

BLOCKS, MIN_BLOCKED, FEW_ROWS = 32, 1 << 16, 8
"""Blocks that a long row is cut into, from what length, and where rows are fewer than this."""


def suits_lanes(form: AlongForm) -> bool:
    """True where the elements of a row lie together, and any two parts of it can be joined."""
    together = all(place.strides[-1] == 1 for place in form.places.values())
    return together and form.mode in FUNCTIONS


class LanesWriter(ScanWriter):
    """Writes a scan along memory."""

    def write(self) -> None:
        """Write the kernel."""
        few = not is_named(self.n) and self.n >= MIN_BLOCKED
        few = few and typical(prod(self.form.outer)) < FEW_ROWS
        if few and "at" not in self.form.places:
            self._blocked()
        else:
            self.each_row(lambda rows: self._run(rows, self.b.i64(0), None, self.neutral()))

    def _run(self, rows: Rows, low: Operand, high: Operand | None, carry: Operand) -> None:
        """Write the scan of elements ``low..high`` of a row, from what was carried there."""
        b, lanes, n = self.b, self.lanes, self.n
        stop = b.i64(n) if high is None else high
        length = b.binary("sub nsw", stop, low)
        middle = b.add(low, b.binary("and", length, b.i64(-lanes)))
        if high is None:
            known = not is_named(n)
            middle = b.i64(n - n % lanes) if known else b.binary("and", stop, b.i64(-lanes))

        def vector(i: Operand, state: list[Operand]) -> list[Operand]:
            at = b.binary("sub nsw", b.i64(n - lanes), i) if self.form.reverse else i
            x = self.loaded(self.element("x", rows["x"], at), lanes)
            scanned = self._scanned(x)
            last = b.lane(scanned, 0 if self.form.reverse else lanes - 1)
            if self.form.exclusive:
                scanned = self._shift(scanned, 1)
            value = self.join(b.splat(state[0], lanes), scanned)
            self.give(value, self.element("y", rows["y"], at))
            after = [self.join(state[0], last)]
            if "at" in rows:
                after.append(self._places(rows["at"], i, x, value, state[1]))
            return after

        def single(i: Operand, state: list[Operand]) -> list[Operand]:
            at = b.binary("sub nsw", b.i64(n - 1), i) if self.form.reverse else i
            return self.step(rows, at, 1, state, 1)

        start = [carry, b.i64(0)] if "at" in rows else [carry]
        state = b.loop(low, middle, lanes, start, vector)
        b.loop(middle, stop, 1, state, single)

    def _places(
        self, row: Operand, i: Operand, x: Operand, best: Operand, before: Operand
    ) -> Operand:
        """Store the latest place of the extreme so far: where an element is it, or is a NaN."""
        b, lanes = self.b, self.lanes
        kind = Type("i64", lanes)
        taken = apply(b, "eq", [x, best], [self.total] * 2, "i1")
        if x.type.is_float:
            taken = b.binary("or", taken, b.compare("fcmp uno", x, x))
        here = b.binary("add nsw", b.splat(i, lanes), b.iota(kind))
        places = b.select(taken, here, b.splat(before, lanes))
        by = 1
        while by < lanes:
            moved = b.shuffle(places, b.splat(before, lanes), self._lanes_moved(by))
            places = b.intrinsic("smax", places, moved)
            by *= 2
        b.store(places, self.element("at", row, i))
        return b.lane(places, lanes - 1)

    def _scanned(self, x: Operand) -> Operand:
        by = 1
        while by < self.lanes:
            x = self.join(self._shift(x, by), x)
            by *= 2
        return x

    def _shift(self, x: Operand, by: int) -> Operand:
        """Move lanes on by some, in the direction of the scan; the neutral element moves in."""
        lanes = self.lanes
        moved_in = self.neutral(lanes)
        if self.form.mode == "sum" and x.type.is_float:
            # -0.0 + x is x too, and no vector of zeros, which would be moved in by slow expansions.
            moved_in = constant(x.type, -0.0)
        return self.b.shuffle(x, moved_in, self._lanes_moved(by))

    def _lanes_moved(self, by: int) -> list[int]:
        lanes = self.lanes
        if self.form.reverse:
            return [i + by if i + by < lanes else lanes + i for i in range(lanes)]
        return [lanes + i if i < by else i - by for i in range(lanes)]

    def _blocked(self) -> None:
        """Write this thread's blocks, each from the sum of the blocks before it."""
        b, outer = self.b, self.form.outer
        size = -(-self.n // BLOCKS // 64) * 64
        blocks = -(-self.n // size)
        low, high = thread_range(b, prod(outer) * blocks, prod(outer) * blocks)

        def unit(u: Operand, state: list[Operand]) -> list[Operand]:
            *indices, block = decode(b, u, [*outer, blocks])
            rows = {role: self.start(role, indices) for role in self.form.places}
            first = b.compare("icmp eq", u, low)
            fresh = b.binary("or", first, b.compare("icmp eq", block, b.i64(0)))
            carry = b.select(fresh, self.neutral(), state[0])
            missing = b.select(first, block, b.i64(0))

            def add(j: Operand, so_far: list[Operand]) -> list[Operand]:
                return [self.join(so_far[0], self._sum(rows, *self._bounds(j, size)))]

            (carry,) = b.loop(b.i64(0), missing, 1, [carry], add)
            begin, end = self._bounds(block, size)
            total = self._sum(rows, begin, end)
            self._run(rows, begin, end, carry)
            return [self.join(carry, total)]

        b.loop(low, high, 1, [self.neutral()], unit)

    def _bounds(self, block: Operand, size: int) -> tuple[Operand, Operand]:
        begin = self.b.scale(block, size)
        end = self.b.add(begin, self.b.i64(size))
        return begin, self.b.intrinsic("smin", end, self.b.i64(self.n))

    def _sum(self, rows: Rows, low: Operand, high: Operand) -> Operand:
        """Combine all elements of a block, in several vectors."""
        b, lanes, n = self.b, self.lanes, self.n
        width = lanes * UNROLL
        middle = b.add(low, b.binary("and", b.binary("sub nsw", high, low), b.i64(-width)))

        def vectors(i: Operand, state: list[Operand]) -> list[Operand]:
            at = b.binary("sub nsw", b.i64(n - width), i) if self.form.reverse else i
            start = self.element("x", rows["x"], at)
            parts = [self.moved("x", start, b.i64(u * lanes)) for u in range(UNROLL)]
            values = [self.loaded(part, lanes) for part in parts]
            return [self.join(s, x) for s, x in zip(state, values, strict=True)]

        def single(i: Operand, state: list[Operand]) -> list[Operand]:
            at = b.binary("sub nsw", b.i64(n - 1), i) if self.form.reverse else i
            return [self.join(state[0], self.loaded(self.element("x", rows["x"], at), 1))]

        totals = b.loop(low, middle, width, [self.neutral(lanes)] * UNROLL, vectors)
        total = totals[0]
        for other in totals[1:]:
            total = self.join(total, other)
        one = b.lane(total, 0)
        for lane in range(1, lanes):
            one = self.join(one, b.lane(total, lane))
        return b.loop(middle, high, 1, [one], single)[0]
