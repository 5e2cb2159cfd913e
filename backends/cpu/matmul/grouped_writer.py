"""The loops of a grouped product around its register tile (:mod:`irc.backends.cpu.matmul.grouped`).

The register tile is that of convolutions with one tap: rows behind pointers of their own.
"""

from __future__ import annotations

from collections.abc import Callable

from irc.backends.cpu.convolution.tile import Walk, element_of, window_tile
from irc.backends.cpu.features import Features
from irc.backends.cpu.loops.nest import Access, analyse
from irc.backends.cpu.loops.units import decode
from irc.backends.cpu.matmul.epilogue import EpilogueWriter
from irc.backends.cpu.matmul.grouped import Grouped, make_blocking
from irc.backends.cpu.matmul.product import Tiling
from irc.backends.cpu.vector.builder import I64, PTR, Builder, Operand, Type, constant
from irc.backends.cpu.vector.storage import MEMORY
from irc.kernels.weights.panels import COLUMNS

SMALL = 200_000
"""Arithmetic below which a second thread costs more than it saves."""
KEPT = 8
"""Tiles whose sums are kept between the parts of a long sum."""


class GroupedWriter:
    """Writes the body of a grouped product into a builder."""

    def __init__(
        self, b: Builder, grouped: Grouped, features: Features, buffers: dict[int, Operand]
    ) -> None:
        self.b, self.grouped, self.buffers = b, grouped, buffers
        self.plan = plan = make_blocking(grouped, features)
        self.most, self.columns = plan.rows[0], plan.lanes * plan.vectors
        self.extents = [grouped.product.nest.extents[d] for d in grouped.rows]
        self.kind = Type("float", plan.lanes)
        self.element = element_of(
            self.kind,
            (grouped.x.dtype, grouped.w.dtype),
            pairs=grouped.pair > 1,
            dots=features.dot_bf16,
        )
        tiling = Tiling("packed", plan.lanes, self.most, self.columns)
        facts = analyse(grouped.product.nest)
        self.epilogue = EpilogueWriter(
            b, grouped.product, facts, tiling, buffers, masked=features.masked
        )
        self.scratch = Operand(PTR, "%scratch")

    @property
    def tile_bytes(self) -> int:
        """The results of a register tile."""
        return self.most * self.columns * 4

    @property
    def pitch(self) -> int:
        """Pointers to rows: a tile may read past the last one's."""
        return self.grouped.num_rows + self.most

    @property
    def places(self) -> tuple[int, int, int, int]:
        """Where scratch memory holds ends of groups, the order of rows, and pointers; its size."""
        ends = self.tile_bytes * (KEPT if self.plan.parts > 1 else 1)
        order = ends + 8 * (self.grouped.matrices + 3)
        table = order + 8 * self.grouped.num_rows
        return ends, order, table, table + 8 * self.pitch * self.plan.parts

    @property
    def scratch_bytes(self) -> int:
        """All scratch memory of a thread."""
        return self.places[-1]

    @property
    def parallel(self) -> bool:
        """Whether several threads pay."""
        grouped = self.grouped
        return 2.0 * grouped.num_rows * grouped.depth * grouped.panels * COLUMNS > SMALL

    def write(self) -> None:
        """Write the sorting of rows, this thread's tiles, and its rows of no matrix."""
        self._define_tiles()
        self._sort()
        self._multiply()
        self._rest()

    # Sorting.

    def _sort(self) -> None:
        """Count the rows of each matrix, then place each row and pointers to it."""
        b, grouped = self.b, self.grouped
        size = 8 * (grouped.matrices + 3)
        zeros = (constant(Type("i8"), 0), b.i64(size), constant(Type("i1"), 0))
        b.invoke("llvm.memset.p0.i64", b.address(self.scratch, "i8", b.i64(self.places[0])), *zeros)

        def count(number: Operand, dims: list[Operand]) -> None:
            slot = self._end(b.add(self._group(dims), b.i64(2)))
            b.store(b.add(b.load(I64, slot, 8), b.i64(1)), slot, 8)

        def running(i: Operand, total: list[Operand]) -> list[Operand]:
            slot = self._end(i)
            summed = b.add(b.load(I64, slot, 8), total[0])
            b.store(summed, slot, 8)
            return [summed]

        def place(number: Operand, dims: list[Operand]) -> None:
            slot = self._end(b.add(self._group(dims), b.i64(1)))
            at = b.load(I64, slot, 8)
            b.store(b.add(at, b.i64(1)), slot, 8)
            b.store(number, self._number(at), 8)
            self._point(at, dims)

        self._each_row(count)
        b.loop(b.i64(2), b.i64(grouped.matrices + 3), 1, [b.i64(0)], running)
        self._each_row(place)
        for i in range(self.most):
            # What a tile reads past the last row: any row.
            self._point(b.i64(grouped.num_rows + i), [b.i64(0)] * len(grouped.rows))

    def _each_row(self, body: Callable[[Operand, list[Operand]], None]) -> None:
        """Write loops over the dims of rows; ``body`` is given a row's number and indices."""
        b, extents = self.b, self.extents

        def level(number: Operand, dims: list[Operand]) -> None:
            if len(dims) == len(extents):
                body(number, dims)
                return
            extent = extents[len(dims)]

            def one(i: Operand, _: list[Operand]) -> list[Operand]:
                level(b.add(b.scale(number, extent), i), [*dims, i])
                return []

            b.loop(b.i64(0), b.i64(extent), 1, [], one)

        level(b.i64(0), [])

    def _group(self, dims: list[Operand]) -> Operand:
        """The matrix of a row; their number for one that names none."""
        b, access = self.b, self.grouped.index
        at = self._offset(access, dims)
        kind = Type(access.dtype)
        pointer = b.address(self.buffers[access.buffer], kind.element, at)
        value = b.convert("sext", b.load(kind, pointer), "i64")
        count = b.i64(self.grouped.matrices)
        return b.select(b.compare("icmp ult", value, count), value, count)

    def _offset(self, access: Access, dims: list[Operand]) -> Operand:
        b, total = self.b, self.b.i64(access.offset)
        for dim, index in zip(self.grouped.rows, dims, strict=True):
            total = b.add(total, b.scale(index, self.grouped.stride(access, dim)))
        return total

    def _point(self, at: Operand, dims: list[Operand]) -> None:
        """Write pointers to a row of x, one for each part of the sum."""
        b, x = self.b, self.grouped.x
        start = b.address(self.buffers[x.buffer], MEMORY[x.dtype], self._offset(x, dims))
        for part in range(self.plan.parts):
            skip = part * (self.grouped.depth // self.plan.parts) * self.grouped.run
            row = b.address(start, MEMORY[x.dtype], b.i64(skip))
            b.store(row, self._pointers(at, part), 8)

    def _end(self, index: Operand) -> Operand:
        return self._slot(self.places[0], index)

    def _number(self, at: Operand) -> Operand:
        return self._slot(self.places[1], at)

    def _pointers(self, at: Operand, part: int) -> Operand:
        return self._slot(self.places[2] + 8 * part * self.pitch, at)

    def _slot(self, start: int, index: Operand) -> Operand:
        return self.b.address(self.b.address(self.scratch, "i8", self.b.i64(start)), "i64", index)

    # Multiplying.

    def _multiply(self) -> None:
        """Write the loops over matrices, panels and tiles of rows, cut to this thread's share."""
        b, grouped = self.b, self.grouped
        chunks = grouped.panels * self.plan.chunks

        def tiles_of(e: Operand) -> tuple[Operand, Operand, Operand]:
            begin, end = (b.load(I64, self._end(b.add(e, b.i64(i))), 8) for i in (0, 1))
            count = b.binary("sub nsw", end, begin)
            tiles = b.binary("udiv", b.add(count, b.i64(self.most - 1)), b.i64(self.most))
            return begin, count, tiles

        def counted(e: Operand, total: list[Operand]) -> list[Operand]:
            return [b.add(total[0], b.scale(tiles_of(e)[2], chunks))]

        every = b.i64(grouped.matrices)
        (total,) = b.loop(b.i64(0), every, 1, [b.i64(0)], counted)
        low, high = self._share(total)

        def matrix(e: Operand, base: list[Operand]) -> list[Operand]:
            begin, count, tiles = tiles_of(e)
            span = b.scale(tiles, chunks)
            first = b.intrinsic("smax", b.binary("sub nsw", low, base[0]), b.i64(0))
            last = b.intrinsic("smin", b.binary("sub nsw", high, base[0]), span)
            each = b.intrinsic("smax", tiles, b.i64(1))
            stop = b.binary("udiv", b.add(last, b.add(each, b.i64(-1))), each)
            stop = b.select(b.compare("icmp sgt", last, first), stop, b.i64(0))

            def panel(p: Operand, _: list[Operand]) -> list[Operand]:
                origin = b.binary("mul nsw", p, each)
                lowest = b.intrinsic("smax", b.binary("sub nsw", first, origin), b.i64(0))
                most = b.intrinsic("smin", b.binary("sub nsw", last, origin), tiles)
                self._tiles((e, p), (begin, count), (lowest, most))
                return []

            b.loop(b.binary("udiv", first, each), stop, 1, [], panel)
            return [b.add(base[0], span)]

        b.loop(b.i64(0), every, 1, [b.i64(0)], matrix)

    def _share(self, total: Operand) -> tuple[Operand, Operand]:
        """This thread's part of a number of units that is known at run time."""
        b = self.b
        thread, threads = Operand(I64, "%thread"), Operand(I64, "%threads")
        first = b.binary("udiv", b.binary("mul", thread, total), threads)
        after = b.binary("mul", b.add(thread, b.i64(1)), total)
        return first, b.binary("udiv", after, threads)

    def _tiles(
        self,
        where: tuple[Operand, Operand],
        rows: tuple[Operand, Operand],
        tiles: tuple[Operand, Operand],
    ) -> None:
        """Compute tiles of a matrix's rows in one run of columns, part after part of the sum."""
        b, parts, (begin, count) = self.b, self.plan.parts, rows

        def one(t: Operand, part: int, slot: Operand) -> None:
            row = b.scale(t, self.most)
            left = b.binary("sub nsw", count, row)
            tile = b.address(self.scratch, "i8", b.scale(slot, self.tile_bytes))
            self._call(where, b.add(begin, row), left, part, tile)
            if part == parts - 1:
                self._finish(where[1], b.add(begin, row), left, tile)

        def block(start: Operand, _: list[Operand]) -> list[Operand]:
            size = 1 if parts == 1 else KEPT
            end = b.intrinsic("smin", b.add(start, b.i64(size)), tiles[1])
            for part in range(parts):

                def tile(t: Operand, _: list[Operand], part: int = part) -> list[Operand]:
                    one(t, part, b.binary("sub nsw", t, start))
                    return []

                b.loop(start, end, 1, [], tile)
            return []

        b.loop(tiles[0], tiles[1], 1 if parts == 1 else KEPT, [], block)

    def _call(
        self,
        where: tuple[Operand, Operand],
        at: Operand,
        left: Operand,
        part: int,
        tile: Operand,
    ) -> None:
        """Call the smallest register tile that has the rows that are left."""
        b, grouped, plan = self.b, self.grouped, self.plan
        e, p = where
        panel = b.binary("udiv", p, b.i64(plan.chunks)) if plan.chunks > 1 else p
        start = b.add(b.scale(e, grouped.panels * grouped.panel), b.scale(panel, grouped.panel))
        start = b.add(start, b.i64(part * grouped.panel // plan.parts))
        if plan.chunks > 1:
            inside = b.binary("urem", p, b.i64(plan.chunks))
            start = b.add(start, b.scale(inside, self.columns * grouped.pair))
        weight = b.address(self.buffers[grouped.w.buffer], MEMORY[grouped.w.dtype], start)
        arguments = ", ".join(map(str, (self._pointers(at, part), weight, tile, b.i64(1), weight)))

        def chosen(sizes: tuple[int, ...]) -> None:
            size, *smaller = sizes

            def call() -> None:
                b.do(f"call void @{_symbol(size, adds=part > 0)}({arguments})")

            if not smaller:
                call()
                return
            more = b.compare("icmp sgt", left, b.i64(smaller[0]))
            b.either(more, call, lambda: chosen(tuple(smaller)))

        chosen(plan.rows)

    def _finish(self, p: Operand, at: Operand, left: Operand, tile: Operand) -> None:
        """Compute what follows, row by row: each lies at a place of its own."""
        b = self.b
        count = b.intrinsic("smin", left, b.i64(self.most))

        def row(i: Operand, _: list[Operand]) -> list[Operand]:
            number = b.load(I64, self._number(b.add(at, i)), 8)
            self._store(number, p, b.address(tile, "float", b.scale(i, self.columns)))
            return []

        b.loop(b.i64(0), count, 1, [], row)

    def _store(self, number: Operand, p: Operand, tile: Operand) -> None:
        b, grouped = self.b, self.grouped
        dims = dict(zip(grouped.rows, decode(b, number, self.extents), strict=True))
        self.epilogue.finish(dims, b.i64(0), b.i64(1), b.scale(p, self.columns), tile)

    def _rest(self) -> None:
        """Compute what follows zeros for the rows that name no matrix."""
        b, grouped = self.b, self.grouped
        zeros = (constant(Type("i8"), 0), b.i64(self.tile_bytes), constant(Type("i1"), 0))
        b.invoke("llvm.memset.p0.i64", self.scratch, *zeros)
        first = b.load(I64, self._end(b.i64(grouped.matrices)), 8)
        count = b.binary("sub nsw", b.i64(grouped.num_rows), first)
        low, high = self._share(count)

        def row(i: Operand, _: list[Operand]) -> list[Operand]:
            number = b.load(I64, self._number(b.add(first, i)), 8)

            def chunk(p: Operand, _: list[Operand]) -> list[Operand]:
                self._store(number, p, self.scratch)
                return []

            return b.loop(b.i64(0), b.i64(grouped.panels * self.plan.chunks), 1, [], chunk)

        b.loop(low, high, 1, [], row)

    def _define_tiles(self) -> None:
        grouped, plan = self.grouped, self.plan
        walk = Walk(0, 1, grouped.depth // plan.parts, grouped.run, COLUMNS * grouped.pair, 0)
        for rows in plan.rows:
            for adds in (False, True)[: 1 if plan.parts == 1 else 2]:
                symbol = _symbol(rows, adds=adds)
                window_tile(self.b, symbol, self.element, (rows, plan.vectors), walk, adds=adds)


def _symbol(rows: int, *, adds: bool) -> str:
    return f"irc.grouped.{'add' if adds else 'tile'}{rows}"
