"""The template ``matmul``: register tiles over packed panels, or streams of B for few rows.

Each thread owns columns (or rows, where columns do not divide well) and packs the panels that it
needs into its own scratch: nothing is shared, nothing waits. What follows the product in the kernel
is computed row by row from the tile, which is still in the nearest cache.
"""

from __future__ import annotations

from collections.abc import Callable

from irc.backends.cpu.builder import I64, PTR, Builder, Operand, Type, constant
from irc.backends.cpu.dots import dots_function
from irc.backends.cpu.epilogue import EpilogueWriter
from irc.backends.cpu.features import Features
from irc.backends.cpu.nest import Access, Facts
from irc.backends.cpu.panels import define_pack
from irc.backends.cpu.product import Product, Tiling
from irc.backends.cpu.rows import decode
from irc.backends.cpu.steps import Place, StepWriter
from irc.backends.cpu.storage import MEMORY, unpack
from irc.backends.cpu.tile import Factor, tile_function

AHEAD = 512
ROWS_AHEAD = 6
ACCUMULATED = {"float": "f32", "double": "f64"}


class MatmulWriter:
    """Writes the body of a matmul kernel into a builder."""

    def __init__(
        self,
        b: Builder,
        product: Product,
        facts: Facts,
        tiling: Tiling,
        features: Features,
        buffers: dict[int, Operand],
    ) -> None:
        self.b, self.product, self.tiling = b, product, tiling
        self.nest, self.buffers = product.nest, buffers
        self.steps = StepWriter(b, product.nest, facts, buffers)
        self.epilogue = EpilogueWriter(b, product, facts, tiling, buffers, masked=features.masked)
        self.kind = Type(product.element, tiling.lanes)
        self.item = self.kind.bits // 8
        self.batch, self.m, self.n, self.k = product.sizes
        self.panels = -(-self.n // tiling.columns)
        self.thread, self.threads = Operand(I64, "%thread"), Operand(I64, "%threads")
        self.scratch = Operand(PTR, "%scratch")

    # scratch: tile, then panels, then the copy of A

    @property
    def tile_bytes(self) -> int:
        """The size of the tile in scratch."""
        return _round(self.tiling.rows * self.tiling.columns * self.item)

    @property
    def panel_bytes(self) -> int:
        """The size of one packed panel."""
        return _round(self.tiling.columns * self.k * self.item)

    @property
    def scratch_bytes(self) -> int:
        """All scratch memory of a thread."""
        rows = self.tiling.chunk * self.tiling.rows if self.tiling.copy else 0
        return self.panels_end + rows * self.tiling.pitch * self.item

    @property
    def panels_end(self) -> int:
        """Where the copy of A begins."""
        packed = self.tiling.form == "packed"
        return self.tile_bytes + (self.tiling.group * self.panel_bytes if packed else 0)

    def write(self) -> None:
        """Write the kernel."""
        if self.tiling.form == "packed":
            self.packed()
        else:
            self.skinny()

    # few rows

    def skinny(self) -> None:
        """Write the forms that read B in place: each thread owns columns."""
        b, plan = self.b, self.tiling
        self.define_functions()
        everywhere = constant(Type("i1"), 1)
        low, high = self.share(self.batch * self.panels, everywhere)

        def batch(which: Operand, _: list[Operand]) -> list[Operand]:
            indices = self.batch_indices(which)
            origin = b.scale(which, self.panels)
            first = b.intrinsic("smax", b.binary("sub", low, origin), b.i64(0))
            last = b.intrinsic("smin", b.binary("sub", high, origin), b.i64(self.panels))
            a = self.start_of(self.product.a, indices)
            if plan.copy:
                a = self.copy_rows(indices, b.i64(0), b.i64(1))

            def panel(number: Operand, _: list[Operand]) -> list[Operand]:
                self.thin_tile(indices, a, b.scale(number, plan.columns))
                return []

            b.loop(first, last, 1, [], panel)
            return []

        stop = b.binary("udiv", b.binary("add", high, b.i64(self.panels - 1)), b.i64(self.panels))
        b.loop(b.binary("udiv", low, b.i64(self.panels)), stop, 1, [], batch)

    def thin_tile(self, batch: dict[int, Operand], a: Operand, column: Operand) -> None:
        """Compute all rows of some columns and what follows."""
        b, plan = self.b, self.tiling
        if plan.form == "stream" and self.n % plan.columns:
            # The last columns are computed twice rather than by narrower code.
            column = b.intrinsic("smin", column, b.i64(self.n - plan.columns))
        source = self.start_of(self.product.b, {**batch, self.product.n: column})
        if plan.form == "stream":
            symbol = self.symbol(f"tile{plan.rows}")
            b.do(f"call void @{symbol}({a}, {source}, {self.scratch})")
        else:
            left = b.binary("sub nsw", b.i64(self.n), column)
            valid = b.intrinsic("smin", left, b.i64(plan.columns))
            b.do(f"call void @{self.symbol('dots')}({a}, {source}, {self.scratch}, {valid})")
        rows = b.i64(plan.rows)
        self.epilogue.finish(batch, b.i64(0), rows, column, self.scratch)

    # packed

    def packed(self) -> None:
        """Write the packed form."""
        b, plan = self.b, self.tiling
        self.define_functions()
        units, tiles = self.batch * self.panels, -(-self.m // plan.rows)
        by_columns = self.split_columns(units, tiles)
        low, high = self.share(units, by_columns)
        first, last = self.share(tiles, b.binary("xor", by_columns, constant(Type("i1"), 1)))
        groups = -(-self.panels // plan.group)

        def group_of(unit: Operand) -> Operand:
            which = b.binary("udiv", unit, b.i64(self.panels))
            inside = b.binary("urem", unit, b.i64(self.panels))
            inside = b.binary("udiv", inside, b.i64(plan.group))
            return b.add(b.scale(which, groups), inside)

        def group(index: Operand, _: list[Operand]) -> list[Operand]:
            which, number = decode(b, index, [self.batch, groups])
            origin = b.scale(which, self.panels)
            begin = b.scale(number, plan.group)
            end = b.intrinsic("smin", b.add(begin, b.i64(plan.group)), b.i64(self.panels))
            begin = b.intrinsic("smax", begin, b.binary("sub", low, origin))
            end = b.intrinsic("smin", end, b.binary("sub", high, origin))
            self.group(self.batch_indices(which), begin, end, first, last)
            return []

        some = b.compare("icmp slt", low, high)
        stop = b.add(group_of(b.binary("sub", high, b.i64(1))), b.i64(1))

        def walk() -> None:
            b.loop(group_of(low), stop, 1, [], group)

        b.when(some, walk)

    def split_columns(self, units: int, tiles: int) -> Operand:
        """Return whether threads share out panels; else they share out rows."""
        b = self.b
        even = b.compare("icmp eq", b.binary("urem", b.i64(units), self.threads), b.i64(0))
        many = b.compare("icmp uge", b.i64(units), b.binary("mul", self.threads, b.i64(16)))
        flat = b.compare("icmp ult", b.i64(tiles), b.binary("mul", self.threads, b.i64(2)))
        return b.binary("or", even, b.binary("or", many, flat))

    def share(self, count: int, divided: Operand) -> tuple[Operand, Operand]:
        """Return this thread's range of count, or all where it is not divided."""
        b = self.b
        one = b.add(self.thread, b.i64(1))
        low, high = (
            b.binary("udiv", b.binary("mul", t, b.i64(count)), self.threads)
            for t in (self.thread, one)
        )
        return b.select(divided, low, b.i64(0)), b.select(divided, high, b.i64(count))

    def batch_indices(self, which: Operand) -> dict[int, Operand]:
        """Return the index in each batch dim."""
        dims = self.product.batch
        return dict(
            zip(dims, decode(self.b, which, [self.nest.extents[d] for d in dims]), strict=True)
        )

    def start_of(self, access: Access, indices: dict[int, Operand]) -> Operand:
        """Return the address of an access with the given indices, others 0."""
        at = self.steps.offset(access, Place(indices), 0)
        return self.b.address(self.buffers[access.buffer], MEMORY[access.dtype], at)

    def group(
        self,
        batch: dict[int, Operand],
        begin: Operand,
        end: Operand,
        first: Operand,
        last: Operand,
    ) -> None:
        """Pack some panels and multiply the thread's rows by them."""
        b, plan = self.b, self.tiling
        packed = b.address(self.scratch, "i8", b.i64(self.tile_bytes))

        def slot(panel: Operand) -> Operand:
            number = b.binary("sub nsw", panel, begin)
            return b.address(packed, "i8", b.scale(number, self.panel_bytes))

        def pack(panel: Operand, _: list[Operand]) -> list[Operand]:
            column = b.scale(panel, plan.columns)
            left = b.binary("sub nsw", b.i64(self.n), column)
            valid = b.intrinsic("smin", left, b.i64(plan.columns))
            source = self.start_of(self.product.b, {**batch, self.product.n: column})
            b.do(f"call void @{self.symbol('pack')}({source}, {slot(panel)}, {valid})")
            return []

        def chunk(start: Operand, _: list[Operand]) -> list[Operand]:
            stop = b.intrinsic("smin", b.add(start, b.i64(plan.chunk)), last)
            rows = self.copy_rows(batch, start, stop) if plan.copy else None

            def panel(number: Operand, _: list[Operand]) -> list[Operand]:
                def tile(t: Operand, _: list[Operand]) -> list[Operand]:
                    row = b.scale(t, plan.rows)
                    if rows is None:
                        a = self.start_of(self.product.a, self.with_row(batch, row))
                    else:
                        skip = b.scale(b.binary("sub nsw", t, start), plan.rows * plan.pitch)
                        a = b.address(rows, self.kind.element, skip)
                    self.tile(batch, row, b.scale(number, plan.columns), a, slot(number))
                    return []

                b.loop(start, stop, 1, [], tile)
                return []

            b.loop(begin, end, 1, [], panel)
            return []

        b.loop(begin, end, 1, [], pack)
        b.loop(first, last, plan.chunk, [], chunk)

    def with_row(self, batch: dict[int, Operand], row: Operand) -> dict[int, Operand]:
        """Return indices with that of m, where m is a dim."""
        return batch if self.product.m is None else {**batch, self.product.m: row}

    def tile(
        self,
        batch: dict[int, Operand],
        row: Operand,
        column: Operand,
        a: Operand,
        panel: Operand,
    ) -> None:
        """Compute one register tile and what follows it."""
        b, plan = self.b, self.tiling
        rest = self.m % plan.rows

        def call(rows: int) -> Callable[[], None]:
            symbol = self.symbol(f"tile{rows}")
            return lambda: b.do(f"call void @{symbol}({a}, {panel}, {self.scratch})")

        rows = b.i64(plan.rows)
        if rest == 0:
            call(plan.rows)()
        else:
            left = b.binary("sub nsw", b.i64(self.m), row)
            rows = b.intrinsic("smin", left, rows)
            b.either(b.compare("icmp sge", left, b.i64(plan.rows)), call(plan.rows), call(rest))
        self.epilogue.finish(batch, row, rows, column, self.scratch)

    def symbol(self, role: str) -> str:
        """Return the name of a helper function."""
        return f"irc.matmul.{role}"

    def define_functions(self) -> None:
        """Define packing and the register tiles."""
        plan, p = self.tiling, self.product
        along = 0 if p.m is None else p.a.strides[p.m]
        left = Factor(p.a.dtype, (along, p.a.strides[p.k]))
        if plan.copy:
            left = Factor(ACCUMULATED[self.kind.element], (plan.pitch, 1))
        strides = (p.b.strides[p.k], p.b.strides[p.n])
        vectors = plan.columns // plan.lanes
        if plan.form == "dots":
            shape = (plan.rows, plan.columns, self.k)
            right = Factor(p.b.dtype, strides)
            dots_function(self.b, self.symbol("dots"), self.kind, shape, plan.group, left, right)
            return
        if plan.form == "packed":
            right = Factor(ACCUMULATED[self.kind.element], (plan.columns, 1), AHEAD)
            define_pack(self.b, self.symbol("pack"), p.b, strides, self.k, self.kind, plan.columns)
        else:
            right = Factor(p.b.dtype, strides, ROWS_AHEAD * strides[0])
        for rows in {plan.rows, self.m % plan.rows or plan.rows}:
            shape = (rows, vectors, self.k)
            tile_function(self.b, self.symbol(f"tile{rows}"), self.kind, shape, left, right)

    def copy_rows(self, batch: dict[int, Operand], start: Operand, stop: Operand) -> Operand:
        """Copy the rows of some tiles into scratch, as the accumulator's type."""
        b, plan, p = self.b, self.tiling, self.product
        rows = b.address(self.scratch, "i8", b.i64(self.panels_end))
        memory = MEMORY[p.a.dtype]
        begin = b.scale(start, plan.rows)
        end = b.intrinsic("smin", b.scale(stop, plan.rows), b.i64(self.m))
        stride = p.a.strides[p.k]

        def row(index: Operand, _: list[Operand]) -> list[Operand]:
            source = self.start_of(p.a, self.with_row(batch, index))
            skip = b.scale(b.binary("sub nsw", index, begin), plan.pitch)
            target = b.address(rows, self.kind.element, skip)

            def vector(lanes: int) -> Callable[[Operand, list[Operand]], list[Operand]]:
                def inside(k: Operand, _: list[Operand]) -> list[Operand]:
                    at = b.address(source, memory, b.scale(k, stride))
                    value = unpack(b, b.load(Type(memory, lanes), at), p.a.dtype)
                    b.store(value, b.address(target, self.kind.element, k))
                    return []

                return inside

            whole = self.k - self.k % plan.lanes if stride == 1 else 0
            b.loop(b.i64(0), b.i64(whole), plan.lanes, [], vector(plan.lanes))
            b.loop(b.i64(whole), b.i64(self.k), 1, [], vector(1))
            return []

        b.loop(begin, end, 1, [], row)
        return rows


def _round(size: int) -> int:
    return -(-size // 64) * 64
