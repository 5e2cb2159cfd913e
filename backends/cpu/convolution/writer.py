"""The loops of a convolution kernel around its register tile.

    for blocks of places: write the table of pointers
        for panels of output channels: for parts of the sum: for tiles: multiply
                                       then what follows

A thread has a run of (block, panel) pairs: few blocks of many channels divide as well as many
blocks of few. Nothing is shared, nothing waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from irc.backends.cpu.convolution.table import TableWriter
from irc.backends.cpu.convolution.tile import Element, Walk, element_of, window_tile
from irc.backends.cpu.convolution.windows import (
    Blocking,
    Windows,
    epilogue_nest,
    make_blocking,
    scratch_layout,
)
from irc.backends.cpu.features import Features
from irc.backends.cpu.loops.nest import analyse
from irc.backends.cpu.loops.sizes import is_named
from irc.backends.cpu.loops.units import Turn, decode, next_share, pieces_of, thread_range
from irc.backends.cpu.matmul.epilogue import EpilogueWriter
from irc.backends.cpu.matmul.product import Product, Tiling
from irc.backends.cpu.matmul.tile import LINE
from irc.backends.cpu.vector.builder import PTR, Builder, Operand, Type, constant
from irc.backends.cpu.vector.storage import MEMORY
from irc.dialects.types import ITEM_BYTES

TILE, ADD = "irc.windows.tile", "irc.windows.add"
SMALL = 200_000
"""Arithmetic below which a second thread costs more than it saves."""


@dataclass(frozen=True)
class Block:
    """A block of places: its group, its first place, its first tile, and how many tiles."""

    batch: dict[int, Operand]
    place: Operand
    first: Operand
    tiles: Operand


class ConvolutionWriter:
    """Writes the body of a convolution into a builder."""

    def __init__(
        self, b: Builder, windows: Windows, features: Features, buffers: dict[int, Operand]
    ) -> None:
        self.b, self.windows, self.buffers = b, windows, buffers
        self.blocking = self.divide(features)
        self.places = scratch_layout(windows, self.blocking)
        self.scratch = Operand(PTR, "%scratch")
        self.kind = Type(windows.element, self.blocking.lanes)
        self.dots = features.dot_bf16
        self.all_tiles = b.parts(self.blocking.places, self.blocking.rows)
        self.panels = -(-windows.nest.extents[windows.n] // self.blocking.columns)
        self.epilogue = self._epilogue(features)

    def divide(self, features: Features) -> Blocking:
        """Choose the blocks and the register tile."""
        return make_blocking(self.windows, features)

    @cached_property
    def element(self) -> Element:
        """What the register tile multiplies."""
        w = self.windows
        dtypes = (w.image.dtype, w.weight.dtype)
        return element_of(self.kind, dtypes, pairs=w.pair > 1, dots=self.dots)

    @property
    def scratch_bytes(self) -> int:
        """All scratch memory of a thread."""
        return self.places.size

    @property
    def parallel(self) -> bool:
        """Whether several threads pay."""
        products = prod(self.windows.nest.extents)
        return is_named(products) or 2.0 * products > SMALL

    @property
    def pieces(self) -> int:
        """Into how many parts each thread's share is divided."""
        return pieces_of(prod(self.windows.nest.extents))

    @property
    def parts(self) -> list[tuple[int, int]]:
        """The first tap and the number of taps of each part of the sum."""
        taps, chunk = self.windows.num_taps, self.blocking.chunk
        return [(first, min(chunk, taps - first)) for first in range(0, taps, chunk)]

    def _epilogue(self, features: Features) -> EpilogueWriter:
        nest, groups, places, n = epilogue_nest(self.windows)
        self.groups = dict(zip(self.windows.groups, groups, strict=True))
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
            along=places, ahead=features.roomy,
        )  # fmt: skip

    def write(self) -> None:
        """Write the loops over this thread's blocks and panels."""
        b, w, plan = self.b, self.windows, self.blocking
        self._define_tiles()
        if w.image.bounds:
            size = self.places.table - self.places.zeros
            zeros = (constant(Type("i8"), 0), b.i64(size), constant(Type("i1"), 0))
            b.invoke("llvm.memset.p0.i64", self._at(self.places.zeros), *zeros)
        groups = w.sizes(w.groups)
        blocks = b.i64(plan.blocks) if plan.blocks else b.parts(self.all_tiles, plan.tiles)
        units = b.scale(blocks, prod(groups) * self.panels)
        low, high = thread_range(b, units, units)
        turn = Turn.of(b, self.pieces)
        self.later, last_turn = next_share(b, turn), turn.is_last(b)

        def block(index: Operand, _: list[Operand]) -> list[Operand]:
            current = self._block(decode(b, index, [*groups, blocks]))
            origin = b.scale(index, self.panels)
            first = b.intrinsic("smax", b.binary("sub nsw", low, origin), b.i64(0))
            last = b.intrinsic("smin", b.binary("sub nsw", high, origin), b.i64(self.panels))

            def panel(number: Operand, _: list[Operand]) -> list[Operand]:
                after = b.add(b.add(origin, number), b.i64(1))
                final = b.binary("and", b.compare("icmp eq", after, high), last_turn)
                self._panel(current, number, final)
                return []

            return b.loop(first, last, 1, [], panel)

        stop = b.binary("udiv", b.add(high, b.i64(self.panels - 1)), b.i64(self.panels))
        b.loop(b.binary("udiv", low, b.i64(self.panels)), stop, 1, [], block)

    def _block(self, parts: Sequence[Operand]) -> Block:
        """Find the places of a block, and write the table of pointers to their windows."""
        b, plan = self.b, self.blocking
        batch = dict(zip(self.windows.groups, parts, strict=False))
        first = b.scale(parts[-1], plan.tiles)
        left = b.binary("sub nsw", self.all_tiles, first)
        tiles = b.intrinsic("smin", left, b.i64(plan.tiles))
        place, end = self._place(first), b.scale(b.add(first, tiles), plan.rows)
        table, zeros = self._at(self.places.table), self._at(self.places.zeros)
        writer = TableWriter(b, self.windows, plan, self.buffers[self.windows.image.buffer])
        writer.write(table, zeros, batch, (place, b.intrinsic("smin", end, b.i64(plan.places))))
        return Block(batch, place, first, tiles)

    def _place(self, tile: Operand) -> Operand:
        """The first place of a tile; the last tile begins earlier rather than being short."""
        b, plan = self.b, self.blocking
        place = b.scale(tile, plan.rows)
        if not is_named(plan.places) and plan.places % plan.rows == 0:
            return place
        return b.intrinsic("smin", place, b.i64(plan.places - plan.rows))

    def _define_tiles(self) -> None:
        w, plan = self.windows, self.blocking
        stride = 0 if w.c is None else w.image.strides[w.c]
        taps = min(plan.chunk, w.num_taps)
        walk = Walk(plan.pitch, taps, w.channels, stride, w.panel * w.pair, self._lines)
        shape = (plan.rows, plan.columns // plan.lanes)
        for symbol in (TILE, ADD) if len(self.parts) > 1 else (TILE,):
            window_tile(self.b, symbol, self.element, shape, walk, adds=symbol == ADD)

    @property
    def _row_bytes(self) -> int:
        """Of a panel, from step to step."""
        return self.windows.panel * self.windows.pair * ITEM_BYTES[self.windows.weight.dtype]

    @property
    def _steps(self) -> int:
        """Of one tap along the channels."""
        return -(-self.windows.channels // self.element.group)

    @property
    def _lines(self) -> int:
        """How many lines of what is multiplied next a tile asks for in two steps.

        The first tile of a panel would wait for memory: all tiles together fetch what follows.
        """
        plan, w = self.blocking, self.windows
        whole = plan.columns == w.panel and plan.tiles > 1 and self._steps > 1
        return -(-2 * self._row_bytes // LINE // plan.tiles) if whole else 0

    def _at(self, offset: int) -> Operand:
        return self.b.address(self.scratch, "i8", self.b.i64(offset))

    def _weight(self, batch: dict[int, Operand], number: Operand) -> Operand:
        """The address of a panel, or of a part of one."""
        b, w, columns = self.b, self.windows, self.blocking.columns
        start, inside = b.i64(w.weight.offset), w.panel // columns
        for dim, index in batch.items():
            start = b.add(start, b.scale(index, w.weight.strides[dim]))
        which, part = number, b.i64(0)
        if inside > 1:
            which = b.binary("udiv", number, b.i64(inside))
            part = b.binary("urem", number, b.i64(inside))
        start = b.add(start, b.scale(which, w.weight.strides[w.n]))
        start = b.add(start, b.scale(part, columns * w.pair))
        return b.address(self.buffers[w.weight.buffer], MEMORY[w.weight.dtype], start)

    def _finish(
        self, block: Block, t: Operand, column: Operand, tile: Operand, skipped: Operand
    ) -> None:
        """Compute what follows a tile, without the places and columns that another one has had.

        Each result is stored once: it may lie where something read here lies.
        """
        b, plan = self.b, self.blocking
        row = b.scale(b.add(block.first, t), plan.rows)
        rows, start = b.i64(plan.rows), skipped
        if is_named(plan.places) or plan.places % plan.rows:
            had = b.binary("sub nsw", row, self._place(b.add(block.first, t)))
            rows = b.binary("sub nsw", rows, had)
            start = b.add(start, b.scale(had, plan.columns))
        at = b.address(tile, self.kind.element, start)
        batch = {self.groups[dim]: index for dim, index in block.batch.items()}
        self.epilogue.finish(batch, row, rows, column, at)

    def _panel(self, block: Block, number: Operand, final: Operand) -> None:
        """Compute a block's results in one panel of channels, ``final``: the thread's last one."""
        b, plan = self.b, self.blocking
        weight = self._weight(block.batch, number)
        column = b.scale(number, plan.columns)
        parts, step = self.parts, self._steps * self._row_bytes

        def tile(t: Operand, first: int, taps: int) -> None:
            place = self._place(b.add(block.first, t))
            skip = b.add(b.binary("sub nsw", place, block.place), b.i64(first * plan.pitch))
            pointers = b.address(self._at(self.places.table), "ptr", skip)
            result = self.scratch
            if len(parts) > 1:
                result = b.address(result, "i8", b.scale(t, self.places.tile))
            start = b.address(weight, "i8", b.i64(first * step))
            own = self._lines * LINE * taps * self._steps // 2
            ahead = b.intrinsic("smin", b.scale(t, own), b.i64(taps * step))
            following = b.address(start, "i8", b.i64(taps * step))
            if first + taps == self.windows.num_taps:
                following = b.select(final, self.later, following)
            later = b.address(following, "i8", ahead)
            symbol = ADD if first else TILE
            arguments = (pointers, start, result, b.i64(taps), later)
            b.do(f"call void @{symbol}({', '.join(map(str, arguments))})")
            if first + taps == self.windows.num_taps:
                self._finish(block, t, column, result, b.i64(0))

        for first, taps in parts:

            def one(
                t: Operand, _: list[Operand], first: int = first, taps: int = taps
            ) -> list[Operand]:
                tile(t, first, taps)
                return []

            b.loop(b.i64(0), block.tiles, 1, [], one)
