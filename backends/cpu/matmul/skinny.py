"""Matmul of few rows: B is read once, in place, at the speed of memory; nothing is packed.

With B contiguous along k, lanes lie along k (dots); along n, lanes lie along n (stream).
"""

from __future__ import annotations

from irc.backends.cpu.loops.sizes import is_named
from irc.backends.cpu.matmul.dots import dots_function
from irc.backends.cpu.matmul.tile import Factor, tile_function
from irc.backends.cpu.matmul.writer import MatmulWriter
from irc.backends.cpu.vector.builder import Operand, Type, constant

ROWS_AHEAD = 6


class SkinnyWriter(MatmulWriter):
    """Writes the forms dots and stream."""

    def write(self) -> None:
        """Write the forms that read B in place: each thread owns columns."""
        b, plan = self.b, self.tiling
        self.define_functions()
        everywhere = constant(Type("i1"), 1)
        low, high = self.share(b.times(b.i64(self.batch), self.panels), everywhere)

        def batch(which: Operand, _: list[Operand]) -> list[Operand]:
            indices = self.batch_indices(which)
            origin = b.times(which, self.panels)
            first = b.intrinsic("smax", b.binary("sub", low, origin), b.i64(0))
            last = b.intrinsic("smin", b.binary("sub", high, origin), self.panels)
            a = self.start_of(self.product.a, indices)
            if plan.copy:
                rows = (b.i64(0), b.i64(self.m))
                a = self.copy_rows(indices, rows, (b.i64(0), b.i64(self.k)))

            def panel(number: Operand, _: list[Operand]) -> list[Operand]:
                self.thin_tile(indices, a, b.scale(number, plan.columns))
                return []

            b.loop(first, last, 1, [], panel)
            return []

        stop = b.binary("udiv", b.binary("add", high, b.add(self.panels, b.i64(-1))), self.panels)
        b.loop(b.binary("udiv", low, self.panels), stop, 1, [], batch)

    def thin_tile(self, batch: dict[int, Operand], a: Operand, column: Operand) -> None:
        """Compute all rows of some columns and what follows."""
        b, plan = self.b, self.tiling
        first = column
        if plan.form == "stream" and self.n % plan.columns:
            # The last columns are computed twice rather than by narrower code, and stored once:
            # what is stored may be a state that is read here too.
            first = b.intrinsic("smin", column, b.i64(self.n - plan.columns))
        source = self.start_of(self.product.b, {**batch, self.product.n: first})
        if plan.form == "stream":
            symbol = self.symbol("tile")
            self.call(symbol, a, source, self.scratch, b.i64(self.k))
        else:
            left = b.binary("sub nsw", b.i64(self.n), column)
            valid = b.intrinsic("smin", left, b.i64(plan.columns))
            self.call(self.symbol("dots"), a, source, self.scratch, valid)
        skip = b.binary("sub nsw", column, first) if first is not column else b.i64(0)
        tile = b.address(self.scratch, self.kind.element, skip)
        self.epilogue.finish(batch, b.i64(0), b.i64(plan.rows), column, tile)

    def define_functions(self) -> None:
        """Define the inner product of a panel."""
        plan, p = self.tiling, self.product
        strides = (p.b.strides[p.k], p.b.strides[p.n])
        left = self.left_factor()
        if plan.form == "dots":
            shape = (plan.rows, plan.columns, self.k)
            right = Factor(p.b.dtype, strides)
            dots_function(self.b, self.symbol("dots"), self.kind, shape, plan.group, left, right)
            return
        right = Factor(p.b.dtype, strides, ROWS_AHEAD * strides[0])
        shape = (plan.rows, plan.columns // plan.lanes)
        odd = is_named(self.k) or bool(self.k % 2)
        tile_function(
            self.b, self.symbol("tile"), self.kind, shape, left, right, odd=odd, parts=self.in_parts
        )
