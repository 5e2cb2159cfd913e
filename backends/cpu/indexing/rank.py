"""Short rows: an element's place is the number of those that come before it.

They are counted for a vector of elements at a time: ``n * n / lanes`` comparisons and no
branch.
"""

from __future__ import annotations

from collections.abc import Callable

from irc.backends.cpu.indexing.order import OrderWriter
from irc.backends.cpu.indexing.rows import Rows
from irc.backends.cpu.vector.builder import Operand, Type, constant

MOST_RANKED = 96
"""Elements up to which ranks are counted; their number fits a byte."""
MOST_WRITTEN_OUT = 16
"""Elements of a row up to which the comparisons are no loop."""


class RankWriter(OrderWriter):
    """Writes the order of short rows."""

    def lay_out(self) -> int:
        self.lanes = min(self.lanes, 1 << (self.n - 1).bit_length())
        padded = -(-self.n // self.lanes) * self.lanes
        self.keys_at, self.ranks_at = 0, padded * self.key_bytes
        self.order_at = 2 * self.ranks_at
        return self.order_at + self.n * 4

    def row(self, rows: Rows) -> None:
        b, element, x = self.b, self.key.element, rows["x"]

        def keep(i: Operand, lanes: int) -> None:
            b.store(self.key_at(x, i, lanes), self.slot(self.keys_at, element, i))

        self.sweep(b.i64(0), b.i64(self.n), self.lanes if self.is_close else 1, keep)
        blocks = -(-self.n // self.lanes)
        if blocks == 1 and self.n <= MOST_WRITTEN_OUT:
            self._rank_at_once()
        else:
            self.each(blocks, self._rank_block)

        def place(i: Operand) -> None:
            rank = b.load(self.key, self.slot(self.ranks_at, element, i))
            to = rank if self.key.bits == 64 else b.convert("zext", rank, "i64")
            if self.count == self.n:
                self.give(rows, to, i)
            else:  # all are put in order, as whether one is among the first is no branch to foresee
                b.store(b.convert("trunc", i, "i32"), self.slot(self.order_at, "i32", to))

        self.each(self.n, place)
        if self.count < self.n:
            self.take(rows, self.scratch(self.order_at), self.count)

    def _rank_at_once(self) -> None:
        """Count for all elements of a row that fits one vector how many come before each."""
        b, lanes, element = self.b, self.lanes, self.key.element
        kind = Type(element, lanes)
        mine = b.load(kind, self.scratch(self.keys_at))
        ranks = constant(kind, 0)
        for j in range(self.n):
            other = b.splat(b.lane(mine, j), lanes)
            earlier = b.compare("icmp ugt", b.iota(kind), constant(kind, j))
            same = b.binary("and", b.compare("icmp eq", other, mine), earlier)
            before = b.binary("or", b.compare("icmp ult", other, mine), same)
            ranks = b.binary("sub", ranks, b.convert("sext", before, element))
        b.store(ranks, self.scratch(self.ranks_at))

    def _rank_block(self, block: Operand) -> None:
        """Count for a vector of elements how many come before each."""
        b, lanes, element = self.b, self.lanes, self.key.element
        first = b.scale(block, lanes)
        kind = Type(element, lanes)
        mine = b.load(kind, self.slot(self.keys_at, element, first))
        end = b.i64(self.n)
        after = b.intrinsic("smin", b.add(first, b.i64(lanes)), end)

        def counting(before: Callable[[Operand, Operand], Operand]) -> Callable[..., list[Operand]]:
            def step(j: Operand, state: list[Operand]) -> list[Operand]:
                one = b.load(self.key, self.slot(self.keys_at, element, j))
                earlier = before(b.splat(one, lanes), j)
                return [b.binary("sub", state[0], b.convert("sext", earlier, element))]

            return step

        def inside(other: Operand, j: Operand) -> Operand:
            number = b.binary("sub nsw", j, first)
            number = number if self.key.bits == 64 else b.convert("trunc", number, element)
            earlier = b.compare("icmp ult", b.splat(number, lanes), b.iota(kind))
            same = b.binary("and", b.compare("icmp eq", other, mine), earlier)
            return b.binary("or", b.compare("icmp ult", other, mine), same)

        state = [constant(kind, 0)]
        state = b.loop(
            b.i64(0), first, 1, state, counting(lambda o, _: b.compare("icmp ule", o, mine))
        )
        state = b.loop(first, after, 1, state, counting(inside))
        state = b.loop(after, end, 1, state, counting(lambda o, _: b.compare("icmp ult", o, mine)))
        b.store(state[0], self.slot(self.ranks_at, element, first))
