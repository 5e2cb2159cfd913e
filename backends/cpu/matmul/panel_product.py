"""Matmul on a weight that lies in panels: nothing is packed per call.

Few, wide rows: a register tile has six rows and as many columns as fill the registers. Rows of A
a multiple of 4 KiB apart fall on one set of the first cache, which has eight ways, so A can be read
in place. A long sum is cut into blocks whose panel stays in the second cache; the tiles of one
panel are then kept in scratch until the last block.

    for rows that fit the last cache: for each panel: for each block of k:
        for each tile: multiply (and finish)
"""

from __future__ import annotations

from irc.backends.cpu.loops.sizes import is_named, typical
from irc.backends.cpu.loops.units import decode, next_share
from irc.backends.cpu.matmul.packed import Share
from irc.backends.cpu.matmul.pair_tile import pair_tile_function
from irc.backends.cpu.matmul.tile import LINE, Factor, tile_function
from irc.backends.cpu.matmul.writer import MatmulWriter
from irc.backends.cpu.vector.builder import Operand, Type, constant
from irc.dialects.types import ITEM_BYTES

LEAST_TILES = 8
"""Tiles for which a panel is worth its way to the first cache again."""
AHEAD = 2048
"""Elements: eight to thirty rows of a panel, where one tile reads it once."""


class PanelWriter(MatmulWriter):
    """Writes the form panels. Scratch: one tile, or those of a panel where the sum is cut."""

    divides = True
    asking = 2
    """After so much of k a tile asks for some lines of the next panel."""

    @property
    def is_blocked(self) -> bool:
        """True where the sum is cut into blocks."""
        return self.tiling.depth < self.k

    @property
    def scratch_bytes(self) -> int:
        """All scratch memory of a thread."""
        return self.tile_bytes * (self.tiling.chunk if self.is_blocked else 1)

    def write(self) -> None:
        """Write the loops over this thread's columns, or rows where columns divide badly."""
        b, plan, at = self.b, self.tiling, self.turn
        self.later = next_share(b, at)
        self.define_functions()
        units, tiles = b.times(b.i64(self.batch), self.panels), b.parts(self.m, plan.rows)
        by_columns = self.split_columns(units, tiles)
        low, high = self.share(units, by_columns)
        first, last = self.share(tiles, b.binary("xor", by_columns, constant(Type("i1"), 1)))
        width, height = b.binary("sub nsw", high, low), b.binary("sub nsw", last, first)
        self.alone = b.compare("icmp eq", width, b.i64(1))
        divisor = b.intrinsic("umax", width, b.i64(1))
        cuts = self.cuts(divisor, height)
        items = b.binary("mul", cuts, width)

        def edge(cut: Operand) -> Operand:
            return b.add(first, b.binary("udiv", b.binary("mul", height, cut), cuts))

        def item(index: Operand, _: list[Operand]) -> list[Operand]:
            cut, inside = b.binary("udiv", index, divisor), b.binary("urem", index, divisor)
            which, panel = decode(b, b.add(low, inside), [self.batch, self.panels])
            one, following = b.add(panel, b.i64(1)), b.add(index, b.i64(1))
            rows = edge(cut), edge(b.add(cut, b.i64(1)))
            final = b.compare("icmp eq", following, items)
            self.panel(Share(self.batch_indices(which), panel, one, *rows), final)
            return []

        start, stop = (
            b.binary("udiv", b.binary("mul", items, turn), at.turns)
            for turn in (at.turn, b.add(at.turn, b.i64(1)))
        )
        b.loop(start, stop, 1, [], item)

    def cuts(self, panels: Operand, tiles: Operand) -> Operand:
        """Return into how many parts rows are cut: those that fit a cache, or enough to take turns.

        There are enough of them without cuts where a thread has as many panels as turns.
        """
        b, chunk = self.b, self.tiling.chunk
        fitting = b.binary("udiv", b.add(tiles, b.i64(chunk - 1)), b.i64(chunk))
        wanted = b.binary("udiv", self.turn.turns, panels)
        most = b.binary("udiv", tiles, b.i64(LEAST_TILES))
        return b.intrinsic("umax", fitting, b.intrinsic("umin", wanted, most))

    def panel(self, share: Share, final: Operand) -> None:
        """Multiply some rows by one panel; ``final`` says that it is the thread's last one."""
        b, plan = self.b, self.tiling
        if not self.is_blocked:
            self.block(share, b.i64(0), b.i64(self.k), "first", final)
            return
        last = (self.k - 1) // plan.depth * plan.depth
        self.block(share, b.i64(0), b.i64(plan.depth), "first")

        def middle(k: Operand, _: list[Operand]) -> list[Operand]:
            self.block(share, k, b.i64(plan.depth), "more")
            return []

        b.loop(b.i64(plan.depth), b.i64(last), plan.depth, [], middle)
        self.block(share, b.i64(last), b.i64(self.k - last), "last", final)

    def block(
        self, share: Share, k: Operand, depth: Operand, which: str, final: Operand | None = None
    ) -> None:
        """Multiply a block of the sum; what follows the product comes after the last one."""
        b, plan, p = self.b, self.tiling, self.product
        column = b.scale(share.begin, plan.columns)
        panel = self.start_of(p.b, {**share.batch, p.n: column, p.k: k})

        def tile(t: Operand, _: list[Operand]) -> list[Operand]:
            inside = b.binary("sub nsw", t, share.first)
            row = self.first_row(t)
            a = self.start_of(p.a, self.with_row({**share.batch, p.k: k}, row))
            place = self.scratch
            if self.is_blocked:
                place = b.address(place, "i8", b.scale(inside, self.tile_bytes))
            arguments = (a, panel, place, depth, *self.next_part(panel, depth, inside, final))
            self.call_tile(t, "add" if which != "first" else "tile", arguments)
            if which == "last" or not self.is_blocked:
                self.finish(share, t, place)
            return []

        b.loop(share.first, share.last, 1, [], tile)

    @property
    def lines(self) -> int:
        """How many lines of what is multiplied next a tile asks for in ``asking`` steps of k.

        The first tile would wait for memory: all tiles together fetch the next panel, or its next
        block, which lies behind this one.
        """
        whole = self.product.b.blocks[0][1] == self.tiling.columns
        tiles = min(self.tiling.chunk, -(-typical(self.m) // self.tiling.rows))
        return self.lines_of(tiles) if whole and tiles > 1 else 0

    def lines_of(self, tiles: int) -> int:
        """How many they are where so many tiles ask."""
        return -(-self.asking * self.row_bytes // LINE // tiles)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of a panel."""
        return self.tiling.columns * ITEM_BYTES[self.product.b.dtype]

    def next_part(
        self, panel: Operand, depth: Operand, inside: Operand, final: Operand | None
    ) -> list[Operand]:
        """Return where the lines begin that a tile prefetches: of this weight, or of the next."""
        if not self.lines:
            return []
        b = self.b
        if final is not None:
            # So that what lies behind `panel` by one block is where the next share begins, or this
            # panel again, where it is the thread's only one.
            before = b.scale(depth, -self.row_bytes)
            panel = b.select(self.alone, b.address(panel, "i8", before), panel)
            panel = b.select(final, b.address(self.later, "i8", before), panel)
        own = b.scale(b.binary("udiv", depth, b.i64(self.asking)), self.lines * LINE)
        start = b.scale(depth, self.row_bytes)
        skip = b.add(start, b.binary("mul nsw", own, inside))
        beyond = b.compare("icmp sge", skip, b.scale(start, 2))
        return [b.address(panel, "i8", b.select(beyond, start, skip))]

    def finish(self, share: Share, t: Operand, place: Operand) -> None:
        """Compute what follows the product for one tile."""
        b, plan = self.b, self.tiling
        row, rows = self.first_row(t), self.num_rows(t)
        column = b.scale(share.begin, plan.columns)
        self.epilogue.finish(share.batch, row, rows, column, place)

    def define_functions(self) -> None:
        """Define the register tiles: those that begin a sum and those that add to it."""
        plan, p = self.tiling, self.product
        odd = bool(self.k % 2 or plan.depth % 2)
        for role in ("tile", "add") if self.is_blocked else ("tile",):
            for rows in sorted(self.tile_rows()):
                # Where the number of rows is open, a short tile may be the only one.
                ahead = AHEAD if not self.lines or (is_named(self.m) and rows < plan.rows) else 0
                right = Factor(p.b.dtype, (p.b.strides[p.k], 1), ahead, self.lines)
                shape, symbol = (rows, plan.columns // plan.lanes), self.symbol(f"{role}{rows}")
                add = role == "add"
                if p.pair == 1:
                    left = self.left_factor()
                    tile_function(
                        self.b, symbol, self.kind, shape, left, right, odd=odd, accumulate=add,
                        parts=self.in_parts,
                    )  # fmt: skip
                else:
                    pair_tile_function(
                        self.b, symbol, shape, self.left_factor(), right, plan.lanes,
                        odd=odd, accumulate=add, dots=self.features.dot_bf16,
                    )  # fmt: skip
