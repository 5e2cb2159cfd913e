"""The loops of a kernel of template ``outer`` around its register tile.

    for rounds of tiles that fit the cache:
        for chunks of places: for tiles: add the chunk's products
        for tiles: what follows, and the stores

A thread has a run of tiles, so nothing is shared and no sum depends on how many threads there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from irc.backends.cpu.convolution.outer import Sums, make_blocking
from irc.backends.cpu.convolution.outer_tile import TILE, outer_tile
from irc.backends.cpu.convolution.windows import Windows, epilogue_nest
from irc.backends.cpu.features import Features
from irc.backends.cpu.loops.nest import Access, Bound, analyse
from irc.backends.cpu.loops.units import decode, thread_range
from irc.backends.cpu.matmul.epilogue import EpilogueWriter
from irc.backends.cpu.matmul.product import Product, Tiling
from irc.backends.cpu.vector.builder import PTR, Builder, Operand, Type, constant
from irc.backends.cpu.vector.storage import MEMORY

SMALL = 200_000
"""Arithmetic below which a second thread costs more than it saves."""
Indices = dict[int, Operand]
Range = tuple[Operand, Operand]


class OuterWriter:
    """Writes the body of a kernel of template ``outer`` into a builder."""

    def __init__(
        self, b: Builder, sums: Sums, features: Features, buffers: dict[int, Operand]
    ) -> None:
        self.b, self.sums, self.buffers = b, sums, buffers
        self.plan = make_blocking(sums, features)
        self.kind = Type(sums.element, self.plan.lanes)
        self.scratch = Operand(PTR, "%scratch")
        self.units = (
            *sums.sizes(sums.outer),
            -(-sums.columns // self.plan.columns),
            -(-sums.rows // self.plan.rows),
        )
        self.epilogue = self._epilogue(features)

    @property
    def tile_bytes(self) -> int:
        """Of a register tile."""
        return self.plan.rows * self.plan.columns * self.kind.bits // 8

    @property
    def scratch_bytes(self) -> int:
        """The tiles of a round; what follows may read a row past the last."""
        return self.tile_bytes * self.plan.together + self.plan.columns * self.kind.bits // 8

    @property
    def parallel(self) -> bool:
        """Whether several threads pay."""
        return 2.0 * prod(self.sums.nest.extents) > SMALL

    def _epilogue(self, features: Features) -> EpilogueWriter:
        s, plan = self.sums, self.plan
        rows = () if s.m is None else (s.m,)
        windows = Windows(s.nest, s.step, s.left, s.right, s.outer, rows, s.n, (), None)
        nest, *_ = epilogue_nest(windows)
        makers = nest.producers()
        left, right = (makers[value].access for value in s.step.operands)
        assert left is not None and right is not None
        step = next(each for each in nest.steps if each.kind == "contract")
        product = Product(nest, step, left, right, s.m, s.n, len(nest.extents) - 1)
        tiling = Tiling("packed", plan.lanes, plan.rows, plan.columns)
        return EpilogueWriter(
            self.b, product, analyse(nest), tiling, self.buffers, masked=features.masked
        )

    def write(self) -> None:
        """Write the loops over this thread's tiles."""
        b, plan = self.b, self.plan
        self._define_tile()
        count = b.i64(prod(self.units))
        low, high = thread_range(b, count, count)

        def together(base: Operand, _: list[Operand]) -> list[Operand]:
            number = b.intrinsic("smin", b.binary("sub nsw", high, base), b.i64(plan.together))
            zero, no = constant(Type("i8"), 0), constant(Type("i1"), 0)
            size = b.scale(number, self.tile_bytes)
            b.invoke("llvm.memset.p0.i64", self.scratch, zero, size, no)
            self._chunks(0, {}, lambda ranges: self._each(base, number, self._adder(ranges)))
            self._each(base, number, self._finish)
            return []

        b.loop(low, high, plan.together, [], together)

    def _define_tile(self) -> None:
        outer_tile(self.b, self.sums, self.plan)

    def _each(
        self, base: Operand, number: Operand, body: Callable[[Sequence[Operand], Operand], None]
    ) -> None:
        """Write a loop over the tiles of a round: their positions, and where they lie."""
        b = self.b

        def one(index: Operand, _: list[Operand]) -> list[Operand]:
            tile = b.address(self.scratch, "i8", b.scale(index, self.tile_bytes))
            body(decode(b, b.add(base, index), self.units), tile)
            return []

        b.loop(b.i64(0), number, 1, [], one)

    def _chunks(
        self, at: int, known: dict[int, Range], body: Callable[[dict[int, Range]], None]
    ) -> None:
        """Write loops over chunks: single indices of the dims before the one that is cut."""
        b, plan = self.b, self.plan
        dim = self.sums.inner[at]
        extent, step = self.sums.nest.extents[dim], plan.length if at == plan.chunk else 1

        def one(index: Operand, _: list[Operand]) -> list[Operand]:
            end = b.intrinsic("smin", b.add(index, b.i64(step)), b.i64(extent))
            chunk = {**known, dim: (index, end)}
            if at == plan.chunk:
                body(chunk)
            else:
                self._chunks(at + 1, chunk, body)
            return []

        b.loop(b.i64(0), b.i64(extent), step, [], one)

    def _adder(self, chunk: dict[int, Range]) -> Callable[[Sequence[Operand], Operand], None]:
        """Return what writes a call of the register tile for the places of a chunk."""
        b, s = self.b, self.sums
        walked, inside = s.inner[: self.plan.chunk], s.inner[self.plan.chunk :]
        conditional = [x for x in s.bounds if not any(x.strides[d] for d in inside)]

        def add(unit: Sequence[Operand], tile: Operand) -> None:
            outer = dict(zip(s.outer, unit, strict=False))
            known = {**outer, **{dim: chunk[dim][0] for dim in walked}}
            ranges = [self._range(dim, outer, chunk.get(dim)) for dim in inside]
            pointers = [self._at(x, {**known, **self._starts(unit)}) for x in (s.left, s.right)]
            arguments = (*pointers, tile, *(number for pair in ranges for number in pair))

            def call() -> None:
                b.do(f"call void @{TILE}({', '.join(map(str, arguments))})")

            self._where([self._is_inside(bound, known) for bound in conditional], call)

        return add

    def _where(self, conditions: Sequence[Operand], body: Callable[[], None]) -> None:
        if not conditions:
            body()
            return
        met, *others = conditions
        for condition in others:
            met = self.b.binary("and", met, condition)
        self.b.when(met, body)

    def _range(self, dim: int, outer: Indices, span: Range | None) -> Range:
        """From where to where a dim's products may be other than zero."""
        b = self.b
        low, high = span or (b.i64(0), b.i64(self.sums.nest.extents[dim]))
        for bound in self.sums.bounds:
            if not (step := bound.strides[dim]):
                continue
            start = self._linear(bound.start, bound.strides, outer)
            before = b.binary("sub nsw", b.i64(step - 1), start)
            within = b.binary("sub nsw", b.i64(bound.size - 1 + step), start)
            first, last = (
                b.binary("udiv", b.intrinsic("smax", n, b.i64(0)), b.i64(step))
                for n in (before, within)
            )
            low, high = b.intrinsic("smax", low, first), b.intrinsic("smin", high, last)
        return low, high

    def _is_inside(self, bound: Bound, known: Indices) -> Operand:
        """Whether a position is one of the tensor: compared as unsigned, a negative one is not."""
        position = self._linear(bound.start, bound.strides, known)
        return self.b.compare("icmp ult", position, self.b.i64(bound.size))

    def _linear(self, start: int, strides: Sequence[int], indices: Indices) -> Operand:
        total = self.b.i64(start)
        for dim, index in indices.items():
            total = self.b.add(total, self.b.scale(index, strides[dim]))
        return total

    def _at(self, access: Access, known: Indices) -> Operand:
        """An address that may lie before the tensor, where its first places are not read."""
        offset = self._linear(access.offset, access.strides, known)
        buffer = self.buffers[access.buffer]
        return self.b.emit(PTR, f"getelementptr {MEMORY[access.dtype]}, {buffer}, {offset}")

    def _starts(self, unit: Sequence[Operand]) -> Indices:
        """Where a tile begins: the last one begins earlier rather than being short."""
        s, plan, (*_, column, row) = self.sums, self.plan, unit
        starts = {s.n: self._start(column, plan.columns, s.columns)}
        if s.m is not None:
            starts[s.m] = self._start(row, plan.rows, s.rows)
        return starts

    def _start(self, number: Operand, part: int, size: int) -> Operand:
        start = self.b.scale(number, part)
        if size % part == 0 or size < part:
            return start
        return self.b.intrinsic("smin", start, self.b.i64(size - part))

    def _finish(self, unit: Sequence[Operand], tile: Operand) -> None:
        """Compute what follows a tile, without the rows and columns that another one has."""
        b, s, plan, (*outer, number, line) = self.b, self.sums, self.plan, unit
        starts = self._starts(unit)
        column, row = b.scale(number, plan.columns), b.scale(line, plan.rows)
        skipped = b.binary("sub nsw", column, starts[s.n])
        had = b.i64(0) if s.m is None else b.binary("sub nsw", row, starts[s.m])
        at = b.add(skipped, b.scale(had, plan.columns))
        rows = b.binary("sub nsw", b.i64(plan.rows), had)
        batch = dict(zip(s.outer, outer, strict=True))
        self.epilogue.finish(batch, row, rows, column, b.address(tile, self.kind.element, at))
