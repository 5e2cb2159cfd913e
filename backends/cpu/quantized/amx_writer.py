"""Kernels of template ``packed`` whose bytes meet in tile registers (AMX): exact sums in i32.

Panels ``[k / 4][16][4]`` are tiles as they lie; rows of x are read in place, a constant stride
apart. Threads share out panels, or rows where there are few panels.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TypeAlias

from irc.backends.cpu.amx import tiles
from irc.backends.cpu.amx.tiles import ROW_BYTES, ROWS, Shape
from irc.backends.cpu.features import Features
from irc.backends.cpu.loops.nest import Access, analyse
from irc.backends.cpu.loops.units import decode, each_unit
from irc.backends.cpu.matmul.epilogue import EpilogueWriter
from irc.backends.cpu.matmul.product import Tiling
from irc.backends.cpu.matmul.tile import prefetch
from irc.backends.cpu.quantized.amx_plan import ABREAST, KEPT_BLOCKS, Pass, TilePlan
from irc.backends.cpu.quantized.product import PackedProduct
from irc.backends.cpu.vector.builder import PTR, Builder, Operand
from irc.backends.cpu.vector.storage import MEMORY
from irc.kernels.quantized.loads import LANES, QUAD

FEW_UNITS = 16
"""Blocks of columns below which threads share out rows."""
UNITS = 64
"""Parts that the work may be divided into."""
_SUM, _ROWS, _PANEL = 0, ABREAST * ABREAST, ABREAST * ABREAST + ABREAST
"""The first tile of sums, of rows and of panels."""

Indices: TypeAlias = dict[int, Operand]
Body: TypeAlias = Callable[[list[Operand], list[Operand], Operand, Operand], None]


class TileProductWriter:
    """Writes the body of a product of bytes by tiles."""

    def __init__(
        self,
        b: Builder,
        packed: PackedProduct,
        plan: TilePlan,
        features: Features,
        buffers: dict[int, Operand],
    ) -> None:
        assert packed.product.m is not None
        self.b, self.packed, self.plan, self.buffers = b, packed, plan, buffers
        self.product, self.extents = packed.product, packed.product.nest.extents
        self.m = packed.product.m
        self.pitch = packed.stride(packed.x, self.m)
        self.panels = -(-self.extents[packed.product.n] // LANES)
        # What follows goes over two vectors at a time.
        lanes = LANES if plan.panels % 2 == 0 else LANES // 2
        tiling = Tiling("packed", lanes, plan.along, plan.columns)
        nest = self.product.nest
        self.epilogue = EpilogueWriter(
            b, self.product, analyse(nest), tiling, buffers, masked=features.masked
        )
        self.scratch = Operand(PTR, "%scratch")
        columns = [*(self.extents[d] for d in packed.column_dims), -(-self.panels // plan.panels)]
        rows = [*(self.outer(d) for d in packed.row_dims), -(-self.extents[self.m] // plan.along)]
        self.by_rows = prod(columns) < FEW_UNITS and prod(rows) > prod(columns)
        self.own, self.other = (rows, columns) if self.by_rows else (columns, rows)
        several = len(plan.passes) > 1
        self.kept = min(prod(self.other), KEPT_BLOCKS) if several else 1
        # Blocks that read the same part of the panels share out asking for the part that follows.
        self.askers = 0 if self.by_rows else self.kept if several else prod(self.other)

    def outer(self, dim: int) -> int:
        """How many blocks there are along a dim of rows other than m."""
        size = self.extents[dim]
        return -(-size // ABREAST) if dim == self.plan.down else size

    @property
    def block_bytes(self) -> int:
        """The sums of a block."""
        return sum(self.plan.rows) * self.plan.columns * 4

    @property
    def scratch_bytes(self) -> int:
        """All scratch memory of a thread."""
        return self.kept * self.block_bytes

    def write(self) -> None:
        """Write the loops over this thread's blocks."""
        b, plan = self.b, self.plan
        alike = len({each.step for each in plan.passes}) == 1
        if alike:
            self.configure(plan.passes[0])
        count = prod(self.other)

        def unit(own: list[Operand]) -> None:
            def group(first: Operand) -> None:
                last = b.i64(count)
                if count % self.kept:
                    last = b.intrinsic("smin", b.add(first, b.i64(self.kept)), last)
                elif self.kept < count:
                    last = b.add(first, b.i64(self.kept))
                for number, each in enumerate(plan.passes):
                    if not alike:
                        self.configure(each)
                    self.blocks(own, first, last, self.sum_of(number))
                self.blocks(own, first, last, self.finish)

            if self.kept == count:
                group(b.i64(0))
                return

            def one(first: Operand, _: list[Operand]) -> list[Operand]:
                group(first)
                return []

            b.loop(b.i64(0), b.i64(count), self.kept, [], one)

        each_unit(b, self.own, min(prod(self.own), UNITS), unit)
        tiles.release(b)

    def blocks(
        self,
        own: list[Operand],
        first: Operand,
        last: Operand,
        body: Body,
    ) -> None:
        """Write a loop over blocks of a unit: ``body(columns, rows, number, its sums)``."""
        b = self.b

        def one(index: Operand, _: list[Operand]) -> list[Operand]:
            other = decode(b, index, self.other)
            kept = b.binary("sub nsw", index, first)
            sums = b.address(self.scratch, "i8", b.scale(kept, self.block_bytes))
            columns, rows = (other, own) if self.by_rows else (own, other)
            body(columns, rows, index if self.kept == 1 else kept, sums)
            return []

        b.loop(first, last, 1, [], one)

    def configure(self, each: Pass) -> None:
        """Configure the tiles for the steps of a pass."""
        plan, rows = self.plan, [*self.plan.rows, *self.plan.rows[-1:]][:ABREAST]
        totals = [Shape(r) for r in rows for _ in range(ABREAST)]
        left = [Shape(r, each.step) for r in rows]
        right = [Shape(each.step // QUAD)] * plan.panels
        tiles.configure(self.b, [*totals, *left, *right])

    def at(self, columns: list[Operand], rows: list[Operand]) -> tuple[Indices, Operand, Operand]:
        """Return the indices where a block begins: of outer dims, along m, and its first panel."""
        plan, packed = self.plan, self.packed
        dims = dict(zip(packed.row_dims, rows, strict=False))
        dims |= dict(zip(packed.column_dims, columns, strict=False))
        if plan.down is not None:
            dims[plan.down] = self.begin(dims[plan.down], ABREAST, self.extents[plan.down])
        first = self.begin(rows[-1], plan.along, self.extents[self.m])
        return dims, first, self.begin(columns[-1], plan.panels, self.panels)

    def begin(self, block: Operand, size: int, end: int) -> Operand:
        """Return where a block begins: the last one earlier, to be whole."""
        first = self.b.scale(block, size)
        return self.b.intrinsic("smin", first, self.b.i64(end - size)) if end % size else first

    def start(self, access: Access, indices: Indices) -> Operand:
        """Return the address of an access at some indices."""
        b, at = self.b, self.b.i64(access.offset)
        for d, index in indices.items():
            at = b.add(at, b.scale(index, self.packed.stride(access, d)))
        return b.address(self.buffers[access.buffer], MEMORY[access.dtype], at)

    def sum_of(self, number: int) -> Body:
        """Return what adds a pass to the sums of a block."""
        b, packed, passes = self.b, self.packed, self.plan.passes
        each, begins = passes[number], number == 0
        symbol = f"irc.tiles.{each.taps}.{each.steps}.{each.step}{'' if begins else '.more'}"
        if symbol not in b.functions:
            self.define(symbol, each, begins=begins)
        outer = packed.sums()[0][1] if len(packed.sums()) > 1 else 0
        skipped = each.tap * outer + each.start

        def body(
            columns: list[Operand], rows: list[Operand], index: Operand, sums: Operand
        ) -> None:
            dims, first, panel = self.at(columns, rows)
            x = b.address(self.start(packed.x, {**dims, self.m: first}), "i8", b.i64(skipped))
            own = {d: dims[d] for d in packed.column_dims}
            panels = self.start(packed.w, own)
            arguments = [x, self.part(panels, panel, each), sums]
            if self.askers:
                after, at = panel, passes[(number + 1) % len(passes)]
                if number + 1 == len(passes):
                    last = b.i64(self.panels - self.plan.panels)
                    after = b.intrinsic("smin", b.add(panel, b.i64(self.plan.panels)), last)
                share = b.intrinsic("smin", b.scale(index, self.lines(each)), b.i64(ROWS - 1))
                asked = self.part(panels, after, at)
                arguments.append(b.address(asked, "i8", b.scale(share, ROW_BYTES)))
            b.do(f"call void @{symbol}({', '.join(map(str, arguments))})")

        return body

    def part(self, panels: Operand, panel: Operand, each: Pass) -> Operand:
        """Return where a pass begins in a panel."""
        tap = prod(size for size, _ in self.packed.sums()[1:])
        skip = (each.tap * tap if each.tap else 0) + each.start
        at = self.b.add(self.b.scale(panel, self.packed.panel), self.b.i64(skip * LANES))
        return self.b.address(panels, "i8", at)

    def lines(self, each: Pass) -> int:
        """How many lines of each tile of the panels that follow a block asks for."""
        return -(-each.step // QUAD // self.askers) if self.askers else 0

    def define(self, symbol: str, each: Pass, *, begins: bool) -> None:
        """Define ``void symbol(ptr x, ptr w, ptr sums, ptr next)``: the sums of one block.

        What comes after its panels is asked for meanwhile: they come from memory, once.
        """
        f, plan, packed = self.b.child(), self.plan, self.packed
        x, w, place, after = (Operand(PTR, f"%{n}") for n in ("x", "w", "sums", "next"))
        wide, line = f.i64(plan.columns * 4), f.i64(ROW_BYTES)
        pitch = f.i64(self.pitch)
        apart = plan.rows[0] * self.pitch
        if plan.down is not None:
            apart = packed.stride(packed.x, plan.down)
        each_sum = [
            (_SUM + ABREAST * t + p, (t * plan.rows[0] * plan.columns + p * LANES) * 4)
            for t in range(len(plan.rows))
            for p in range(plan.panels)
        ]
        for tile, skip in each_sum:
            if begins:
                tiles.zero(f, tile)
            else:
                tiles.load(f, tile, f.address(place, "i8", f.i64(skip)), wide)

        def step(at: Operand, depth: Operand) -> None:
            for t in range(len(plan.rows)):
                rows = f.address(x, "i8", f.add(at, f.i64(t * apart)))
                tiles.load(f, _ROWS + t, rows, pitch)
                for p in range(plan.panels):
                    if t == 0:
                        skip = f.add(f.scale(depth, LANES), f.i64(p * packed.panel))
                        tiles.load(f, _PANEL + p, f.address(w, "i8", skip), line)
                        for i in range(self.lines(each)):
                            ahead = f.address(after, "i8", f.add(skip, f.i64(i * ROW_BYTES)))
                            prefetch(f, ahead, 2)
                    tiles.dot(f, "busd", _SUM + ABREAST * t + p, _ROWS + t, _PANEL + p)

        self.walk(f, each, step)
        for tile, skip in each_sum:
            tiles.store(f, tile, f.address(place, "i8", f.i64(skip)), wide)
        f.do("ret void")
        arguments = "ptr %x, ptr %w, ptr %sums" + (", ptr %next" if self.askers else "")
        self.b.functions[symbol] = f.function(
            f"define internal void @{symbol}({arguments}) noinline"
        )

    def walk(self, f: Builder, each: Pass, step: Callable[[Operand, Operand], None]) -> None:
        """Write the loops over a pass: ``step(bytes of x, bytes of the sum so far)``."""
        sums = self.packed.sums()
        outer = [(each.taps, sums[0][1]), *sums[1:-1]] if len(sums) > 1 else []
        below = [prod(size for size, _ in sums[level + 1 :]) for level in range(len(outer))]

        def level(number: int, at: Operand, depth: Operand) -> None:
            if number == len(outer):

                def run(i: Operand, _: list[Operand]) -> list[Operand]:
                    step(f.add(at, i), f.add(depth, i))
                    return []

                f.loop(f.i64(0), f.i64(each.steps * each.step), each.step, [], run)
                return
            size, stride = outer[number]

            def tap(i: Operand, _: list[Operand]) -> list[Operand]:
                inner = f.add(depth, f.scale(i, below[number]))
                level(number + 1, f.add(at, f.scale(i, stride)), inner)
                return []

            f.loop(f.i64(0), f.i64(size), 1, [], tap)

        level(0, f.i64(0), f.i64(0))

    def finish(
        self, columns: list[Operand], rows: list[Operand], _: Operand, place: Operand
    ) -> None:
        """Write what follows a block: of what comes out twice, once."""
        b, plan = self.b, self.plan
        dims, first, panel = self.at(columns, rows)
        column = b.scale(columns[-1], plan.columns)
        skipped = b.binary("sub nsw", column, b.scale(panel, LANES))
        tile = b.address(place, "i32", skipped)
        row = b.scale(rows[-1], plan.along)
        left = b.binary("sub nsw", b.i64(self.extents[self.m]), row)
        count = b.intrinsic("smin", left, b.i64(plan.along))
        twice = b.binary("sub nsw", row, first)
        tile = b.address(tile, "i32", b.scale(twice, plan.columns))
        if plan.down is None:
            self.epilogue.finish(dims, row, count, column, tile)
            return
        begin = dims[plan.down]
        number = self.packed.row_dims.index(plan.down)
        done = b.binary("sub nsw", b.scale(rows[number], ABREAST), begin)

        def each(index: Operand, _: list[Operand]) -> list[Operand]:
            assert plan.down is not None
            own = {**dims, plan.down: b.add(begin, index)}
            sums = b.address(tile, "i32", b.scale(index, plan.rows[0] * plan.columns))
            self.epilogue.finish(own, row, count, column, sums)
            return []

        b.loop(done, b.i64(ABREAST), 1, [], each)
