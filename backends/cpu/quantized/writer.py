"""Kernels of template ``packed``: rows times panels of integer weights.

    few rows of floats     each thread streams its panels once, all rows in registers (skinny)
    many rows of floats    a panel becomes floats in scratch, then register tiles as of any matmul
    bytes                  register tiles of integer dot products, no scratch but the tile

Threads share out panels, or rows where there are few panels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from irc.backends.cpu.features import Features
from irc.backends.cpu.loops.nest import Access, analyse
from irc.backends.cpu.loops.units import each_unit
from irc.backends.cpu.matmul.epilogue import EpilogueWriter
from irc.backends.cpu.matmul.product import SKINNY, Tiling
from irc.backends.cpu.matmul.tile import Factor, tile_function
from irc.backends.cpu.quantized.dots import Reads, dot_function
from irc.backends.cpu.quantized.product import PackedProduct
from irc.backends.cpu.quantized.tile import Weights, skinny_function, widen_function
from irc.backends.cpu.vector.builder import PTR, Builder, Operand, Type
from irc.backends.cpu.vector.storage import MEMORY, unpack
from irc.kernels.quantized.loads import LANES, NIBBLES

SERIAL_WORK = 100_000
"""Products below which a thread pool costs more than it saves."""
FEW_UNITS = 16
"""Column tiles below which threads share out rows."""
UNITS = 64
"""Parts that the work may be divided into."""

Indices = dict[int, Operand]


@dataclass(frozen=True)
class Plan:
    """How a packed product is computed.

    Attributes:
        form: ``skinny``, ``widened`` or ``dot``.
        rows: of a register tile.
        panels: of a register tile.
        copy: whether rows of x become contiguous floats first.
        parallel: whether a thread pool is worth its start.
    """

    form: str
    rows: int
    panels: int
    copy: bool
    parallel: bool


def plan_packed(packed: PackedProduct, features: Features) -> Plan:
    """Decide how a packed product is computed."""
    extents, m = packed.product.nest.extents, packed.product.m
    rows = 1 if m is None else extents[m]
    every = rows * prod(extents[d] for d in packed.row_dims)
    panels = extents[packed.product.n] // LANES if packed.panel else 1
    wide = features.registers == 32
    parallel = every * packed.depth * prod(extents[d] for d in packed.column_dims) * panels * LANES
    if packed.form == "dot":
        most = 14 if wide else 2
        if packed.groups_of_panel[0] > 1:
            # Each column has words of its own group: one panel, and registers for those words.
            return Plan("dot", _even(rows, most), 1, copy=False, parallel=parallel > SERIAL_WORK)
        count = _divisor(panels, (4, 2, 1) if rows <= 6 and wide else (2, 1))
        tile = _even(rows, 28 // count if count > 1 and wide else most)
        return Plan("dot", tile, count, copy=False, parallel=parallel > SERIAL_WORK)
    if every <= SKINNY:
        count = _divisor(panels, (4, 2, 1) if rows <= 3 and wide else (2, 1))
        copy = packed.x.dtype != "f32" or packed.sums() != [(packed.depth, 1)]
        return Plan("skinny", rows, count, copy, parallel > SERIAL_WORK)
    count = _divisor(panels, (2, 1))
    return Plan(
        "widened",
        _even(rows, 12 if wide else 3),
        count,
        copy=False,
        parallel=parallel > SERIAL_WORK,
    )


def _divisor(size: int, choices: Sequence[int]) -> int:
    return next(choice for choice in choices if size % choice == 0)


def _even(size: int, most: int) -> int:
    """Split into equal tiles of at most ``most``.

    >>> _even(49, 14), _even(28, 14)
    (13, 14)
    """
    return -(-size // -(-size // most))


class PackedWeightsWriter:
    """Writes the body of a packed kernel into a builder."""

    def __init__(
        self, b: Builder, packed: PackedProduct, features: Features, buffers: dict[int, Operand]
    ) -> None:
        self.b, self.packed, self.features, self.buffers = b, packed, features, buffers
        self.plan = plan = plan_packed(packed, features)
        self.product, self.extents = packed.product, packed.product.nest.extents
        self.m = 1 if self.product.m is None else self.extents[self.product.m]
        self.columns = plan.panels * LANES
        # What follows goes over two vectors at a time.
        lanes = LANES if plan.panels % 2 == 0 else LANES // 2
        tiling = Tiling("packed", lanes, plan.rows, self.columns)
        nest = self.product.nest
        self.epilogue = EpilogueWriter(
            b, self.product, analyse(nest), tiling, buffers, masked=features.masked
        )
        self.weights = Weights(
            packed.form,
            packed.w.dtype == "i8",
            packed.middle,
            packed.zero is not None,
            packed.groups,
            packed.depth,
            features.masked,
        )
        self.scratch = Operand(PTR, "%scratch")

    @property
    def tile_bytes(self) -> int:
        """The results of a register tile."""
        return -(-self.plan.rows * self.columns * 4 // 64) * 64

    @property
    def pitch(self) -> int:
        """Elements from row to row of x as tiles read it."""
        if self.plan.copy:
            return self.packed.depth + LANES
        return 0 if self.product.m is None else self.packed.stride(self.packed.x, self.product.m)

    @property
    def scratch_bytes(self) -> int:
        """All scratch memory of a thread."""
        if self.plan.form == "widened":
            return self.tile_bytes + self.packed.depth * self.columns * 4
        return self.tile_bytes + (self.plan.rows * self.pitch * 4 if self.plan.copy else 0)

    def write(self) -> None:
        """Write the loops over this thread's tiles."""
        self.define_functions()
        tiles = self.extents[self.product.n] // self.columns
        columns = [*(self.extents[d] for d in self.packed.column_dims), tiles]
        rows = [*(self.extents[d] for d in self.packed.row_dims), -(-self.m // self.plan.rows)]
        by_rows = (
            self.plan.form == "dot" and prod(columns) < FEW_UNITS and prod(rows) > prod(columns)
        )
        own, other = (rows, columns) if by_rows else (columns, rows)
        chunks = min(prod(own), UNITS)
        copied = None
        if self.plan.copy and not self.packed.row_dims:
            copied = self.copy({})

        def unit(outer: list[Operand]) -> None:
            if self.plan.form == "widened":
                self.widen(outer)

            def inside(inner: list[Operand]) -> None:
                self.tile(*((inner, outer) if by_rows else (outer, inner)), copied)

            self.nested(other, inside)

        each_unit(self.b, own, chunks, unit)

    def nested(self, extents: Sequence[int], body: Callable[[list[Operand]], None]) -> None:
        """Write loops over some extents."""
        b = self.b

        def level(places: list[Operand]) -> None:
            if len(places) == len(extents):
                body(places)
                return
            if extents[len(places)] == 1:
                level([*places, b.i64(0)])
                return

            def one(index: Operand, _: list[Operand]) -> list[Operand]:
                level([*places, index])
                return []

            b.loop(b.i64(0), b.i64(extents[len(places)]), 1, [], one)

        level([])

    def start(self, access: Access, indices: Indices, own: int) -> Operand:
        """Return the address of an access: indices of outer dims, and elements of its own."""
        b, at = self.b, self.b.i64(access.offset)
        for d, index in indices.items():
            at = b.add(at, b.scale(index, self.packed.stride(access, d)))
        base = b.address(self.buffers[access.buffer], MEMORY[access.dtype], at)
        return b.address(base, MEMORY[access.dtype], b.i64(own)) if own else base

    def weight_starts(self, columns: list[Operand]) -> list[Operand]:
        """Return the addresses of a tile's words, scales and zeros."""
        b, packed = self.b, self.packed
        outer = dict(zip(packed.column_dims, columns, strict=False))
        starts: list[Operand] = []
        per_panel = (
            (packed.w, packed.panel),
            *((a, packed.groups * LANES) for a in (packed.scale, packed.zero)),
        )
        for access, panel in per_panel:
            if access is None:
                starts.append(Operand(PTR, "null"))
                continue
            at = b.scale(columns[-1], self.plan.panels * panel)
            base = self.start(access, outer, 0)
            starts.append(b.address(base, MEMORY[access.dtype], at))
        return starts

    def tile(self, columns: list[Operand], rows: list[Operand], copied: Operand | None) -> None:
        """Compute one register tile and what follows."""
        b, plan, packed = self.b, self.plan, self.packed
        outer = dict(zip(packed.row_dims, rows, strict=False))
        first = b.scale(rows[-1], plan.rows)
        rest = self.m % plan.rows
        left = b.binary("sub nsw", b.i64(self.m), first)
        count = b.intrinsic("smin", left, b.i64(plan.rows)) if rest else b.i64(plan.rows)
        dims = {**outer, **dict(zip(packed.column_dims, columns, strict=False))}
        x = copied or (self.copy(outer) if plan.copy else self.rows_of_x(dims, first, columns[-1]))
        starts = self.weight_starts(columns)

        def call(rows: int) -> Callable[[], None]:
            symbol = f"irc.packed.{plan.form}{rows}"
            match plan.form:
                case "dot":
                    args = f"{x}, {starts[0]}, {self.scratch}"
                case "skinny":
                    args = ", ".join(map(str, (x, *starts, self.scratch)))
                case _:
                    panel = b.address(self.scratch, "i8", b.i64(self.tile_bytes))
                    args = f"{x}, {panel}, {self.scratch}, {b.i64(packed.depth)}"
            return lambda: b.do(f"call void @{symbol}({args})")

        if rest and self.m > plan.rows:
            b.either(b.compare("icmp sge", left, b.i64(plan.rows)), call(plan.rows), call(rest))
        else:
            call(plan.rows)()
        self.epilogue.finish(dims, first, count, b.scale(columns[-1], self.columns), self.scratch)

    def rows_of_x(self, outer: Indices, first: Operand, column: Operand) -> Operand:
        """Return where a tile's rows of x begin: its columns may be of groups of their own."""
        at = outer if self.product.m is None else {**outer, self.product.m: first}
        start = self.start(self.packed.x, at, 0)
        skip = self.b.scale(column, self.plan.panels * self.packed.panel_of_x)
        return self.b.address(start, MEMORY[self.packed.x.dtype], skip)

    def widen(self, columns: list[Operand]) -> None:
        """Make floats of a tile's panels."""
        panel = self.b.address(self.scratch, "i8", self.b.i64(self.tile_bytes))
        args = ", ".join(map(str, (*self.weight_starts(columns), panel)))
        self.b.do(f"call void @irc.packed.widen({args})")

    def copy(self, outer: Indices) -> Operand:
        """Copy rows of x as contiguous floats."""
        b, packed = self.b, self.packed
        target = b.address(self.scratch, "i8", b.i64(self.tile_bytes))
        memory = MEMORY[packed.x.dtype]

        def row(index: Operand, _: list[Operand]) -> list[Operand]:
            own = {} if self.product.m is None else {self.product.m: index}
            source = self.start(packed.x, {**outer, **own}, 0)
            line = b.address(target, "float", b.scale(index, self.pitch))
            self.copy_line(source, line, memory)
            return []

        b.loop(b.i64(0), b.i64(self.plan.rows), 1, [], row)
        return target

    def copy_line(self, source: Operand, line: Operand, memory: str) -> None:
        """Copy one row of x, whose summed dims may lie anyhow."""
        b, sums = self.b, self.packed.sums()
        sizes = [size for size, _ in sums]
        lanes = LANES if sums[-1][1] == 1 and sums[-1][0] % LANES == 0 else 1

        def place(indices: list[Operand]) -> None:
            at, to = b.i64(0), b.i64(0)
            for d, index in enumerate(indices):
                step = lanes if d == len(sums) - 1 else 1
                at = b.add(at, b.scale(index, step * sums[d][1]))
                to = b.add(to, b.scale(index, step * prod(sizes[d + 1 :])))
            raw = b.load(Type(memory, lanes), b.address(source, memory, at))
            b.store(unpack(b, raw, self.packed.x.dtype), b.address(line, "float", to))

        self.nested([*sizes[:-1], sizes[-1] // lanes], place)

    def define_functions(self) -> None:
        """Define the register tiles."""
        b, plan, packed = self.b, self.plan, self.packed
        name = f"irc.packed.{plan.form}"
        for rows in sorted({plan.rows, self.m % plan.rows or plan.rows}):
            shape = (rows, plan.panels)
            if plan.form == "dot":
                groups, step = packed.groups_of_panel
                reads = Reads(packed.sums(), self.pitch, packed.panel_of_x, groups, step)
                dot_function(b, f"{name}{rows}", self.features, shape, reads, packed.panel)
            elif plan.form == "skinny":
                skinny_function(b, f"{name}{rows}", self.weights, shape, self.pitch, packed.panel)
            else:
                size, stride = packed.sums()[0]
                assert size == packed.depth, "rows of many are read by one stride"
                left = Factor("f32", (self.pitch, stride))
                right = Factor("f32", (self.columns, 1))
                kind = Type("float", LANES)
                tile_function(
                    b, f"{name}{rows}", kind, shape, left, right, odd=bool(packed.depth % NIBBLES)
                )
        if plan.form == "widened":
            widen_function(b, "irc.packed.widen", self.weights, plan.panels, packed.panel)
