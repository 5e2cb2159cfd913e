"""Matmul of many rows: register tiles of A times packed panels of B.

Each thread owns columns (or rows, where columns do not divide well) and packs the panels that it
needs into its own scratch: nothing is shared, nothing waits. A long sum is cut into blocks of k
whose panels stay in cache; its tiles are then kept in scratch until the last block.

    for panels that fit the cache: for each block of k: pack
        for rows that fit the cache: for each panel: for each tile: multiply (and finish)
"""

from __future__ import annotations

from dataclasses import dataclass

from irc.backends.cpu.loops.sizes import is_named, typical
from irc.backends.cpu.loops.units import decode
from irc.backends.cpu.matmul.panels import define_pack
from irc.backends.cpu.matmul.tile import Factor, tile_function
from irc.backends.cpu.matmul.writer import ACCUMULATED, MatmulWriter, round_up
from irc.backends.cpu.vector.builder import Operand, Type, constant

AHEAD = 512
FEW_ROWS = 256


@dataclass(frozen=True)
class Share:
    """What a thread multiplies at a time: panels begin..end by tiles of rows first..last."""

    batch: dict[int, Operand]
    begin: Operand
    end: Operand
    first: Operand
    last: Operand


class PackedWriter(MatmulWriter):
    """Writes the form packed. Scratch: one tile, panels, the copy of A, tiles of a long sum."""

    @property
    def panel_bytes(self) -> int:
        """The size of one packed panel."""
        return round_up(self.tiling.columns * self.tiling.depth * self.item)

    @property
    def copy_at(self) -> int:
        """Where in scratch the copy of A begins."""
        return self.tile_bytes + self.tiling.group * self.panel_bytes

    @property
    def tiles_at(self) -> int:
        """Where in scratch the tiles of a long sum begin."""
        return round_up(super().scratch_bytes)

    @property
    def is_blocked(self) -> bool:
        """True where the sum is cut into blocks."""
        return self.tiling.depth != self.k and self.tiling.depth < self.k

    @property
    def scratch_bytes(self) -> int:
        """All scratch memory of a thread."""
        if not self.is_blocked:
            return self.tiles_at
        rows, group = self.tiling.rows, self.tiling.group
        if is_named(self.m):
            return self.tiles_at + (self.m + rows) * -(-self.tile_bytes // rows) * group
        return self.tiles_at + -(-self.m // rows) * group * self.tile_bytes

    def write(self) -> None:
        """Write the loop over the groups of panels that this thread has a share in."""
        b, plan = self.b, self.tiling
        self.define_functions()
        panels = self.panels
        units, tiles = b.times(b.i64(self.batch), panels), b.parts(self.m, plan.rows)
        by_columns = self.split_columns(units, tiles)
        low, high = self.share(units, by_columns)
        first, last = self.share(tiles, b.binary("xor", by_columns, constant(Type("i1"), 1)))
        groups = b.parts(panels, plan.group)

        def group_of(unit: Operand) -> Operand:
            which = b.binary("udiv", unit, panels)
            inside = b.binary("urem", unit, panels)
            inside = b.binary("udiv", inside, b.i64(plan.group))
            return b.add(b.times(which, groups), inside)

        def group(index: Operand, _: list[Operand]) -> list[Operand]:
            which, number = decode(b, index, [self.batch, groups])
            origin = b.times(which, panels)
            begin = b.scale(number, plan.group)
            end = b.intrinsic("smin", b.add(begin, b.i64(plan.group)), panels)
            begin = b.intrinsic("smax", begin, b.binary("sub", low, origin))
            end = b.intrinsic("smin", end, b.binary("sub", high, origin))
            self.group(Share(self.batch_indices(which), begin, end, first, last))
            return []

        def walk() -> None:
            stop = b.add(group_of(b.binary("sub", high, b.i64(1))), b.i64(1))
            b.loop(group_of(low), stop, 1, [], group)

        b.when(b.compare("icmp slt", low, high), walk)

    def group(self, share: Share) -> None:
        """Multiply the thread's rows by some panels."""
        b, plan = self.b, self.tiling
        if not self.is_blocked:
            self.multiply(share, b.i64(0), b.i64(self.k))
            return
        tiles = b.binary("sub nsw", share.last, share.first)
        count = b.binary("mul nsw", tiles, b.binary("sub nsw", share.end, share.begin))
        start = b.address(self.scratch, "i8", b.i64(self.tiles_at))
        zeros = (constant(Type("i8"), 0), b.scale(count, self.tile_bytes), constant(Type("i1"), 0))
        b.invoke("llvm.memset.p0.i64", start, *zeros)

        def block(k: Operand, _: list[Operand]) -> list[Operand]:
            left = b.binary("sub nsw", b.i64(self.k), k)
            self.multiply(share, k, b.intrinsic("smin", left, b.i64(plan.depth)))
            return []

        def tile(t: Operand, _: list[Operand]) -> list[Operand]:
            def panel(number: Operand, _: list[Operand]) -> list[Operand]:
                self.finish(share, t, number)
                return []

            return b.loop(share.begin, share.end, 1, [], panel)

        b.loop(b.i64(0), b.i64(self.k), plan.depth, [], block)
        b.loop(share.first, share.last, 1, [], tile)

    def multiply(self, share: Share, k: Operand, depth: Operand) -> None:
        """Pack a block of panels and multiply all tiles by them."""
        b, plan = self.b, self.tiling

        def pack(panel: Operand, _: list[Operand]) -> list[Operand]:
            column = b.scale(panel, plan.columns)
            left = b.binary("sub nsw", b.i64(self.n), column)
            valid = b.intrinsic("smin", left, b.i64(plan.columns))
            indices = {**share.batch, self.product.n: column, self.product.k: k}
            source, target = self.start_of(self.product.b, indices), self.slot(share, panel)
            self.call(self.symbol("pack"), source, target, valid, depth)
            return []

        def chunk(start: Operand, _: list[Operand]) -> list[Operand]:
            stop = b.intrinsic("smin", b.add(start, b.i64(plan.chunk)), share.last)
            copy = None
            if plan.copy:
                end = b.intrinsic("smin", self.first_row(stop), b.i64(self.m))
                copy = self.copy_rows(share.batch, (self.first_row(start), end), (k, depth))

            def panel(number: Operand, _: list[Operand]) -> list[Operand]:
                def tile(t: Operand, _: list[Operand]) -> list[Operand]:
                    if copy is None:
                        indices = {**share.batch, self.product.k: k}
                        row = self.first_row(t)
                        a = self.start_of(self.product.a, self.with_row(indices, row))
                    else:
                        skip = b.binary("sub nsw", self.first_row(t), self.first_row(start))
                        skip = b.scale(skip, plan.pitch)
                        a = b.address(copy, self.kind.element, skip)
                    self.tile(share, t, number, a, depth)
                    if not self.is_blocked:
                        self.finish(share, t, number)
                    return []

                return b.loop(start, stop, 1, [], tile)

            return b.loop(share.begin, share.end, 1, [], panel)

        b.loop(share.begin, share.end, 1, [], pack)
        b.loop(share.first, share.last, plan.chunk, [], chunk)

    def slot(self, share: Share, panel: Operand) -> Operand:
        """Return where a panel is packed."""
        packed = self.b.address(self.scratch, "i8", self.b.i64(self.tile_bytes))
        number = self.b.binary("sub nsw", panel, share.begin)
        return self.b.address(packed, "i8", self.b.scale(number, self.panel_bytes))

    def result(self, share: Share, t: Operand, panel: Operand) -> Operand:
        """Return where a tile's results are: in one place, or kept while the sum goes on."""
        b = self.b
        if not self.is_blocked:
            return self.scratch
        width = b.binary("sub nsw", share.end, share.begin)
        number = b.binary("mul nsw", b.binary("sub nsw", t, share.first), width)
        number = b.add(number, b.binary("sub nsw", panel, share.begin))
        start = b.add(b.scale(number, self.tile_bytes), b.i64(self.tiles_at))
        return b.address(self.scratch, "i8", start)

    def tile(self, share: Share, t: Operand, panel: Operand, a: Operand, depth: Operand) -> None:
        """Compute one register tile."""
        result, packed = self.result(share, t, panel), self.slot(share, panel)
        self.call_tile(t, "tile", (a, packed, result, depth))

    def finish(self, share: Share, t: Operand, panel: Operand) -> None:
        """Compute what follows the product for one tile."""
        b, plan = self.b, self.tiling
        row, rows = self.first_row(t), self.num_rows(t)
        column = b.scale(panel, plan.columns)
        self.epilogue.finish(share.batch, row, rows, column, self.result(share, t, panel))

    def define_functions(self) -> None:
        """Define packing and the register tiles."""
        plan, p = self.tiling, self.product
        strides = (p.b.strides[p.k], p.b.strides[p.n])
        # Larger squares transpose faster and cost four times as much to compile.
        square = plan.lanes if typical(self.m) <= FEW_ROWS else min(plan.lanes, 8)
        symbol = self.symbol("pack")
        define_pack(self.b, symbol, p.b, strides, self.kind, plan.columns, square)
        right = Factor(ACCUMULATED[self.kind.element], (plan.columns, 1), AHEAD)
        for rows in sorted(self.tile_rows()):
            tile_function(
                self.b,
                self.symbol(f"tile{rows}"),
                self.kind,
                (rows, plan.columns // plan.lanes),
                self.left_factor(),
                right,
                odd=is_named(self.k) or bool(self.k % 2),
                accumulate=self.is_blocked,
                parts=self.in_parts,
            )
