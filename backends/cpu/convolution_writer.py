"""The loops of a convolution kernel around its register tile.

    for blocks of places: write the table of pointers
        for panels of output channels: for tiles: multiply, then what follows

A thread has a run of (block, panel) pairs: few blocks of many channels divide as well as many
blocks of few. Nothing is shared, nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from irc.backends.cpu.builder import I64, PTR, Builder, Operand, Type, constant
from irc.backends.cpu.convolution import (
    Blocking,
    Windows,
    epilogue_nest,
    make_blocking,
    pitch,
    scratch_layout,
)
from irc.backends.cpu.convolution_tile import Element, Walk, window_tile
from irc.backends.cpu.epilogue import EpilogueWriter
from irc.backends.cpu.features import Features
from irc.backends.cpu.nest import analyse
from irc.backends.cpu.product import Product, Tiling
from irc.backends.cpu.storage import MEMORY
from irc.backends.cpu.units import decode, thread_range
from irc.dialects.types import ITEM_BYTES

TILE = "irc.windows.tile"
POINTERS = 8
"""Pointers of the table that are written at a time."""
SMALL = 200_000
"""Arithmetic below which a second thread costs more than it saves."""


class ConvolutionWriter:
    """Writes the body of a convolution into a builder."""

    def __init__(
        self, b: Builder, windows: Windows, features: Features, buffers: dict[int, Operand]
    ) -> None:
        self.b, self.windows, self.buffers = b, windows, buffers
        self.blocking = make_blocking(windows, features)
        self.zeros_at, self.table_at, self.scratch_bytes = scratch_layout(windows, self.blocking)
        self.scratch = Operand(PTR, "%scratch")
        self.kind = Type(windows.element, self.blocking.lanes)
        self.item = ITEM_BYTES[windows.image.dtype]
        n = windows.nest.extents[windows.n]
        self.panels = -(-n // self.blocking.columns)
        self.epilogue = self._epilogue(features)

    @property
    def parallel(self) -> bool:
        """Whether several threads pay."""
        w = self.windows
        points = prod(w.nest.extents)
        return 2.0 * points > SMALL

    def _epilogue(self, features: Features) -> EpilogueWriter:
        nest, places, n = epilogue_nest(self.windows)
        producers = nest.producers()
        a, weight = (producers[v].access for v in self.windows.step.operands)
        assert a is not None and weight is not None
        step = next(s for s in nest.steps if s.kind == "contract")
        row = places[-1] if places else None
        product = Product(nest, step, a, weight, row, n, len(nest.extents) - 1)
        plan = self.blocking
        tiling = Tiling("packed", plan.lanes, plan.rows, plan.columns)
        return EpilogueWriter(
            self.b, product, analyse(nest), tiling, self.buffers, masked=features.masked,
            along=places,
        )  # fmt: skip

    def write(self) -> None:
        """Write the loops over this thread's blocks and panels."""
        b, w, plan = self.b, self.windows, self.blocking
        self._define_tile()
        if w.image.bounds:
            size = self.table_at - self.zeros_at
            zeros = (constant(Type("i8"), 0), b.i64(size), constant(Type("i1"), 0))
            b.invoke("llvm.memset.p0.i64", self._at(self.zeros_at), *zeros)
        groups = w.sizes(w.groups)
        blocks = prod(groups) * prod(plan.counts)
        units = blocks * self.panels
        low, high = thread_range(b, units, units)

        def block(index: Operand, _: list[Operand]) -> list[Operand]:
            parts = decode(b, index, [*groups, *plan.counts])
            batch = dict(zip(w.groups, parts, strict=False))
            starts = self._starts(parts[len(groups) :])
            self._table(batch, starts)
            origin = b.scale(index, self.panels)
            first = b.intrinsic("smax", b.binary("sub nsw", low, origin), b.i64(0))
            last = b.intrinsic("smin", b.binary("sub nsw", high, origin), b.i64(self.panels))

            def panel(number: Operand, _: list[Operand]) -> list[Operand]:
                self._panel(batch, self._row(starts), number)
                return []

            return b.loop(first, last, 1, [], panel)

        stop = b.binary("udiv", b.add(high, b.i64(self.panels - 1)), b.i64(self.panels))
        b.loop(b.binary("udiv", low, b.i64(self.panels)), stop, 1, [], block)

    def _define_tile(self) -> None:
        w, plan = self.windows, self.blocking
        element = Element(self.kind, w.image.dtype, w.weight.dtype)
        stride = 0 if w.c is None else w.image.strides[w.c]
        walk = Walk(w.num_taps, pitch(plan), w.channels, stride, w.panel * w.pair)
        window_tile(self.b, TILE, element, (plan.rows, plan.columns // plan.lanes), walk)

    def _at(self, offset: int) -> Operand:
        return self.b.address(self.scratch, "i8", self.b.i64(offset))

    def _starts(self, blocks: Sequence[Operand]) -> list[Operand]:
        """The first index of a block in each place dim; the last block begins earlier."""
        b, plan = self.b, self.blocking
        found: list[Operand] = []
        for index, size, part in zip(
            blocks, self.windows.sizes(self.windows.places), plan.block, strict=True
        ):
            start = b.scale(index, part)
            found.append(start if size % part == 0 else b.intrinsic("smin", start, b.i64(size - part)))
        return found

    def _row(self, starts: Sequence[Operand]) -> Operand:
        """The first place of a block in row-major order."""
        b, total = self.b, self.b.i64(0)
        for start, size in zip(starts, self.windows.sizes(self.windows.places), strict=True):
            total = b.add(b.scale(total, size), start)
        return total

    def _panel(self, batch: dict[int, Operand], row: Operand, number: Operand) -> None:
        """Compute a block's results in one panel of channels."""
        b, w, plan = self.b, self.windows, self.blocking
        column = b.scale(number, plan.columns)
        inside = w.panel // plan.columns
        start = b.i64(w.weight.offset)
        for dim, index in batch.items():
            start = b.add(start, b.scale(index, w.weight.strides[dim]))
        which, part = number, b.i64(0)
        if inside > 1:
            which = b.binary("udiv", number, b.i64(inside))
            part = b.binary("urem", number, b.i64(inside))
        start = b.add(start, b.scale(which, w.weight.strides[w.n]))
        start = b.add(start, b.scale(part, plan.columns * w.pair))
        weight = b.address(self.buffers[w.weight.buffer], MEMORY[w.weight.dtype], start)
        table = self._at(self.table_at)

        def tile(t: Operand, _: list[Operand]) -> list[Operand]:
            place = b.scale(t, plan.rows)
            if plan.places % plan.rows:
                place = b.intrinsic("smin", place, b.i64(plan.places - plan.rows))
            pointers = b.address(table, "ptr", place)
            b.do(f"call void @{TILE}({pointers}, {weight}, {self.scratch})")
            first, rows = b.add(row, place), b.i64(plan.rows)
            self.epilogue.finish(batch, first, rows, column, self.scratch)
            return []

        b.loop(b.i64(0), b.i64(plan.tiles), 1, [], tile)

    # The table.

    def _table(self, batch: dict[int, Operand], starts: Sequence[Operand]) -> None:
        """Write a pointer for each tap and place of a block."""
        b, w, plan = self.b, self.windows, self.blocking
        base = b.address(self.buffers[w.image.buffer], MEMORY[w.image.dtype], b.i64(0))

        def tap(number: Operand, indices: dict[int, Operand]) -> None:
            row = b.address(self._at(self.table_at), "ptr", b.scale(number, pitch(plan)))
            self._lines(base, row, {**batch, **indices}, starts)

        self._each(w.taps, w.sizes(w.taps), {}, b.i64(0), tap)

    def _each(
        self,
        dims: Sequence[int],
        extents: Sequence[int],
        indices: dict[int, Operand],
        number: Operand,
        body: Callable[[Operand, dict[int, Operand]], None],
    ) -> None:
        """Write nested loops over some dims; ``number`` counts them in row-major order."""
        if not dims:
            body(number, indices)
            return
        b, extent = self.b, extents[0]

        def one(index: Operand, _: list[Operand]) -> list[Operand]:
            count = b.add(b.scale(number, extent), index)
            self._each(dims[1:], extents[1:], {**indices, dims[0]: index}, count, body)
            return []

        b.loop(b.i64(0), b.i64(extent), 1, [], one)

    def _lines(
        self, base: Operand, row: Operand, known: dict[int, Operand], starts: Sequence[Operand]
    ) -> None:
        """Write the pointers of one tap, by lines of the last place dim."""
        b, w, plan = self.b, self.windows, self.blocking
        if not w.places:
            self._vector(base, row, known, None)
            return
        *outer, last = zip(w.places, starts, plan.block, strict=True)
        dims, extents = [d for d, _, _ in outer], [part for _, _, part in outer]
        first = {d: start for d, start, _ in outer}

        def line(number: Operand, indices: dict[int, Operand]) -> None:
            places = {d: b.add(first[d], index) for d, index in indices.items()}
            dim, start, length = last
            target = b.address(row, "ptr", b.scale(number, length))

            def vector(x: Operand, _: list[Operand]) -> list[Operand]:
                at = b.address(target, "ptr", x)
                self._vector(base, at, {**known, **places, dim: b.add(start, x)}, dim)
                return []

            b.loop(b.i64(0), b.i64(length), POINTERS, [], vector)

        self._each(dims, extents, {}, b.i64(0), line)

    def _vector(
        self, base: Operand, target: Operand, known: dict[int, Operand], moving: int | None
    ) -> None:
        """Write pointers to some places from one on: to zeros where they lie outside."""
        b, w = self.b, self.windows
        kind = Type("i64", POINTERS)

        def linear(start: int, strides: Sequence[int], scale: int, origin: Operand | None) -> Operand:
            total = b.i64(start * scale)
            for dim, index in known.items():
                total = b.add(total, b.scale(index, strides[dim] * scale))
            if origin is not None:
                total = b.add(total, origin)
            step = 0 if moving is None else strides[moving] * scale
            if not step:
                return total
            steps = b.binary("mul nsw", b.iota(kind), constant(kind, step))
            return b.binary("add nsw", b.splat(total, POINTERS), steps)

        origin = b.emit(I64, f"ptrtoint {base} to i64")
        found = linear(w.image.offset, w.image.strides, self.item, origin)
        outside = b.emit(I64, f"ptrtoint {self._at(self.zeros_at)} to i64")
        for bound in w.image.bounds:
            position = linear(bound.start, bound.strides, 1, None)
            inside = b.compare("icmp ult", position, constant(position.type, bound.size))
            lanes = max(found.type.lanes, inside.type.lanes)
            wide = (b.splat(inside, lanes), b.splat(found, lanes), b.splat(outside, lanes))
            found = b.select(*wide)
        b.store(b.splat(found, POINTERS), target, 8)
