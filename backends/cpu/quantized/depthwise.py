"""Depthwise convolution of bytes: one weight a channel and tap, lanes along channels, exact in i32.

    for places: for runs of channels: for taps: acc[i][j] += image[i, tap, c + j] * w[tap, c + j]

Where four products and their sum are one instruction (VNNI) taps go by fours: each thread first
interleaves its weights (four taps of a channel side by side), then the bytes of each place. Other
machines widen. The last run of channels begins earlier rather than being short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from irc.backends.cpu.features import Features
from irc.backends.cpu.loops.nest import Access, analyse
from irc.backends.cpu.loops.units import each_unit
from irc.backends.cpu.matmul.epilogue import EpilogueWriter
from irc.backends.cpu.matmul.product import Tiling
from irc.backends.cpu.quantized.dots import WORDS, dot, has_dots
from irc.backends.cpu.quantized.product import PackedProduct
from irc.backends.cpu.vector.builder import PTR, Builder, Operand, Type, constant
from irc.backends.cpu.vector.storage import MEMORY
from irc.kernels.quantized.loads import LANES, QUAD

TILE = "irc.taps.tile"
SERIAL_WORK = 100_000
"""Products below which a thread pool costs more than it saves."""
UNITS = 64
"""Parts that the work may be divided into."""
SHORT_RUN = 0.3
"""What a run of channels costs beside its products, in vectors."""


@dataclass(frozen=True)
class Plan:
    """The register tile: places by vectors of channels.

    Attributes:
        lanes: channels of a vector.
        vectors: of a run of channels.
        rows: places.
        dots: taps are multiplied by fours.
    """

    lanes: int
    vectors: int
    rows: int
    dots: bool

    @property
    def columns(self) -> int:
        """Channels of a run."""
        return self.lanes * self.vectors


def plan_taps(channels: int, places: int, features: Features) -> Plan:
    """Choose the register tile.

    >>> from irc.backends.cpu.features import AVX2
    >>> plan_taps(144, 56, AVX2)
    Plan(lanes=8, vectors=2, rows=4, dots=False)
    """
    lanes = min(LANES, features.vector_bytes // 4, 1 << (channels.bit_length() - 1))
    widths = [v for v in (2, 1) if v * lanes <= channels]
    vectors = min(widths, key=lambda v: -(-channels // (v * lanes)) * (v + SHORT_RUN))
    most = (16 if features.registers == 32 else 8) // vectors
    rows = -(-places // -(-places // most))
    return Plan(lanes, vectors, rows, lanes == LANES and has_dots(features))


class TapsWriter:
    """Writes the body of a depthwise convolution of bytes."""

    def __init__(
        self, b: Builder, packed: PackedProduct, features: Features, buffers: dict[int, Operand]
    ) -> None:
        self.b, self.packed, self.features, self.buffers = b, packed, features, buffers
        self.product, extents = packed.product, packed.product.nest.extents
        self.extents, self.m = extents, packed.product.m
        self.channels = extents[packed.product.n]
        self.places = 1 if self.m is None else extents[self.m]
        self.plan = plan = plan_taps(self.channels, self.places, features)
        nest = self.product.nest
        tiling = Tiling("packed", plan.lanes, plan.rows, plan.columns)
        self.epilogue = EpilogueWriter(
            b, self.product, analyse(nest), tiling, buffers, masked=features.masked
        )
        self.scratch = Operand(PTR, "%scratch")
        outer = [extents[d] for d in packed.row_dims]
        self.units = [*outer, -(-self.places // plan.rows)]

    @property
    def tile_bytes(self) -> int:
        """The results of a register tile, and a row more: the last run is read from its middle."""
        plan = self.plan
        return -(-(plan.rows + 1) * plan.columns * 4 // 64) * 64

    @property
    def quads(self) -> int:
        """Fours of taps."""
        return -(-self.packed.depth // QUAD)

    @property
    def scratch_bytes(self) -> int:
        """All scratch memory of a thread: a tile, and weights by fours of taps."""
        return self.tile_bytes + (self.quads * self.channels * QUAD if self.plan.dots else 0)

    @property
    def parallel(self) -> bool:
        """Whether several threads pay."""
        work = prod(self.extents[: self.product.nest.parallel]) * self.packed.depth
        return work > SERIAL_WORK

    def write(self) -> None:
        """Write the loops over this thread's places, and runs of channels of each."""
        b, plan = self.b, self.plan
        rest = self.places % plan.rows
        for rows in sorted({plan.rows, rest or plan.rows}):
            self.define_tile(rows)
        weight = self.start(self.packed.w, {})
        if plan.dots:
            weight = self.interleave(weight)

        def unit(places: list[Operand]) -> None:
            outer = dict(zip(self.packed.row_dims, places, strict=False))
            first = b.scale(places[-1], plan.rows)

            def run(column: Operand, _: list[Operand]) -> list[Operand]:
                self.tile(outer, first, column, weight)
                return []

            b.loop(b.i64(0), b.i64(self.channels), plan.columns, [], run)

        each_unit(b, self.units, min(prod(self.units), UNITS), unit)

    def start(self, access: Access, indices: dict[int, Operand]) -> Operand:
        """Return the address of an access at some indices."""
        b, at = self.b, self.b.i64(access.offset)
        for d, index in indices.items():
            at = b.add(at, b.scale(index, self.packed.stride(access, d)))
        return b.address(self.buffers[access.buffer], MEMORY[access.dtype], at)

    def tile(
        self, outer: dict[int, Operand], first: Operand, column: Operand, weight: Operand
    ) -> None:
        """Compute one register tile and what follows."""
        b, plan = self.b, self.plan
        begin = column
        if self.channels % plan.columns:
            begin = b.intrinsic("smin", column, b.i64(self.channels - plan.columns))
        at = outer if self.m is None else {**outer, self.m: first}
        x = b.address(self.start(self.packed.x, at), "i8", begin)
        w = b.address(weight, "i8", b.scale(begin, QUAD if plan.dots else 1))

        def call(rows: int) -> Callable[[], None]:
            return lambda: b.do(f"call void @{TILE}{rows}({x}, {w}, {self.scratch})")

        rest, count = self.places % plan.rows, b.i64(plan.rows)
        if rest:
            left = b.binary("sub nsw", b.i64(self.places), first)
            count = b.intrinsic("smin", left, count)
            whole = b.compare("icmp sge", left, b.i64(plan.rows))
            b.either(whole, call(plan.rows), call(rest))
        else:
            call(plan.rows)()
        skipped = b.binary("sub nsw", column, begin)
        tile = b.address(self.scratch, "i32", skipped)
        self.epilogue.finish(outer, first, count, column, tile)

    def interleave(self, weight: Operand) -> Operand:
        """Write this thread's weights by fours of taps of each channel; returns where."""
        b, target = self.b, self.b.address(self.scratch, "i8", self.b.i64(self.tile_bytes))
        last, size = b.i64(self.channels - LANES), self.packed.depth * self.channels

        def run(column: Operand, _: list[Operand]) -> list[Operand]:
            first = b.intrinsic("smin", column, last)
            for quad in range(self.quads):
                at = [(QUAD * quad + j) * self.channels for j in range(QUAD)]
                four = by_fours(b, b.address(weight, "i8", first), at, size)
                place = b.add(b.scale(first, QUAD), b.i64(quad * self.channels * QUAD))
                b.store(four, b.address(target, "i8", place))
            return []

        b.loop(b.i64(0), b.i64(self.channels), LANES, [], run)
        return target

    def define_tile(self, rows: int) -> None:
        """Define ``void TILE<rows>(ptr x, ptr w, ptr tile)``."""
        f, plan = self.b.child(), self.plan
        x, w, tile = (Operand(PTR, f"%{n}") for n in ("x", "w", "tile"))
        pitch = 0 if self.m is None else self.packed.stride(self.packed.x, self.m)
        taps = [sum(steps) for steps in product(*(
            range(0, size * stride, stride) if stride else [0] * size
            for size, stride in self.packed.sums()
        ))]  # fmt: skip
        starts = [
            f.address(x, "i8", f.i64(r * pitch + v * plan.lanes))
            for r in range(rows)
            for v in range(plan.vectors)
        ]
        multiply = self.multiply_fours if plan.dots else self.multiply
        for i, total in enumerate(multiply(f, starts, taps, w)):
            f.store(total, f.address(tile, "i32", f.i64(i * plan.lanes)))
        f.do("ret void")
        self.b.functions[f"{TILE}{rows}"] = f.function(
            f"define internal void @{TILE}{rows}(ptr %x, ptr %w, ptr %tile) noinline"
        )

    def multiply_fours(
        self, f: Builder, starts: Sequence[Operand], taps: Sequence[int], w: Operand
    ) -> list[Operand]:
        """Sum products, four taps at a time; taps that are not there have weights of zero."""
        vectors = self.plan.vectors
        totals = [constant(WORDS, 0) for _ in starts]
        for quad in range(self.quads):
            skip = quad * self.channels
            weights = [
                f.load(WORDS, f.address(w, "i32", f.i64(skip + v * LANES)), 1)
                for v in range(vectors)
            ]
            four = [taps[min(QUAD * quad + j, len(taps) - 1)] for j in range(QUAD)]
            for i, start in enumerate(starts):
                bytes_ = by_fours(f, start, four)
                left = f.emit(WORDS, f"bitcast {bytes_} to {WORDS}")
                totals[i] = dot(f, self.features, left, weights[i % vectors], totals[i])
        return totals

    def multiply(
        self, f: Builder, starts: Sequence[Operand], taps: Sequence[int], w: Operand
    ) -> list[Operand]:
        """Sum products of widened bytes, tap by tap."""
        narrow, vectors = Type("i8", self.plan.lanes), self.plan.vectors
        totals = [constant(narrow.of("i32"), 0) for _ in starts]
        for number, tap in enumerate(taps):
            at = [f.i64(number * self.channels + v * self.plan.lanes) for v in range(vectors)]
            weights = [
                f.convert("sext", f.load(narrow, f.address(w, "i8", place)), "i32") for place in at
            ]
            for i, start in enumerate(starts):
                image = f.load(narrow, f.address(start, "i8", f.i64(tap)))
                wide = f.convert("zext", image, "i32")
                product_ = f.binary("mul", wide, weights[i % vectors])
                totals[i] = f.binary("add", totals[i], product_)
        return totals


def by_fours(b: Builder, start: Operand, at: Sequence[int], end: int | None = None) -> Operand:
    """Load 16 bytes at each of four offsets and interleave them: <64 x i8>, by fours of a lane.

    Args:
        b: where to write.
        start: to which the offsets are added.
        at: in bytes.
        end: offsets from here on give zeros.
    """
    row = Type("i8", LANES)
    rows = [
        constant(row, 0) if end is not None and skip >= end
        else b.load(row, b.address(start, "i8", b.i64(skip)))
        for skip in at
    ]  # fmt: skip
    low, high = (b.shuffle(rows[i], rows[i + 1], range(2 * LANES)) for i in (0, 2))
    return b.shuffle(low, high, [i % QUAD * LANES + i // QUAD for i in range(QUAD * LANES)])
