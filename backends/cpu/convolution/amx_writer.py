"""A convolution of bfloat16 by tile registers (AMX).

    for blocks of places: write the table of pointers, gather the rows of all tiles
        for panels of output channels: for parts of the sum: for tiles: multiply
                                       then what follows

The loops, the table and what follows are those of :mod:`irc.backends.cpu.convolution.writer`. A
part of a panel is short enough to stay in the first cache while all tiles of the block pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from irc.backends.cpu.amx import tiles
from irc.backends.cpu.convolution.amx_plan import DEPTH, Rows, divide_places, lay_out
from irc.backends.cpu.convolution.amx_rows import gather_function, pad_function
from irc.backends.cpu.convolution.windows import Blocking, Windows
from irc.backends.cpu.convolution.writer import ADD, TILE, Block, ConvolutionWriter
from irc.backends.cpu.features import Features
from irc.backends.cpu.matmul.amx_tile import Panel, amx_function, lines_of, whole_tiles
from irc.backends.cpu.matmul.tile import LINE
from irc.backends.cpu.vector.builder import Builder, Operand

GATHER, PAD = "irc.windows.gather", "irc.windows.pad"


class TilesWriter(ConvolutionWriter):
    """Writes the body of a convolution for which :func:`by_tiles` holds."""

    def __init__(
        self, b: Builder, windows: Windows, features: Features, buffers: dict[int, Operand]
    ) -> None:
        super().__init__(b, windows, features, buffers)
        plan, rows = self.blocking, self.rows
        self.sums = self.places.tile if len(rows.parts) > 1 else 0
        self.gathered = self.places.size + self.sums * plan.tiles
        self.padded = self.gathered + rows.tile * (1 if rows.alone else plan.tiles)

    def divide(self, features: Features) -> Blocking:
        """Choose the blocks and the rows of a tile."""
        plan = divide_places(self.windows)
        self.rows: Rows = lay_out(self.windows, plan.rows)
        return plan

    @property
    def scratch_bytes(self) -> int:
        """All scratch memory of a thread."""
        rows = self.rows
        return self.padded + (rows.steps * rows.step_bytes if rows.padded else 0)

    @property
    def pieces(self) -> int:
        """Into how many parts each thread's share is divided.

        The rows of a block are gathered for all its panels: parts of a block would do it again.
        """
        return super().pieces if self.rows.alone else 1

    @property
    def _lines(self) -> int:
        """How many lines of the next panel a tile asks for in a step of the sum."""
        rows = self.rows
        return 0 if rows.padded else lines_of(rows.columns, self.blocking.tiles)

    def write(self) -> None:
        """Write the loops between a configuration of the tiles and their release."""
        tiles.configure(self.b, whole_tiles(self.rows.halves))
        super().write()
        tiles.release(self.b)

    def _define_tiles(self) -> None:
        b, rows = self.b, self.rows
        panel = Panel(rows.columns, DEPTH, lines=self._lines, step=rows.step, rows=rows.halves)
        for symbol in (TILE, ADD) if len(rows.parts) > 1 else (TILE,):
            amx_function(b, symbol, panel, 2, accumulate=symbol == ADD)
        gather_function(b, GATHER, rows, self.blocking.pitch)
        if rows.padded:
            pad_function(b, PAD, rows)

    def _block(self, parts: Sequence[Operand]) -> Block:
        """Write the table of a block, and gather the rows of its tiles."""
        b, block = self.b, super()._block(parts)

        def one(t: Operand, _: list[Operand]) -> list[Operand]:
            self._gather(block, t)
            return []

        if not self.rows.alone:
            b.loop(b.i64(0), block.tiles, 1, [], one)
        return block

    def _gather(self, block: Block, t: Operand) -> None:
        """Gather the rows of a tile."""
        b = self.b
        skip = b.binary("sub nsw", self._place(b.add(block.first, t)), block.place)
        pointers = b.address(self._at(self.places.table), "ptr", skip)
        b.do(f"call void @{GATHER}({pointers}, {self._rows_of(t)})")

    def _rows_of(self, t: Operand) -> Operand:
        """Where the rows of a tile begin."""
        start = self._at(self.gathered)
        if self.rows.alone:
            return start
        return self.b.address(start, "i8", self.b.scale(t, self.rows.tile))

    def _sums_of(self, t: Operand) -> Operand:
        """Where the sums of a tile lie: each has a place where parts of them follow one another."""
        if not self.sums:
            return self.scratch
        return self.b.address(self._at(self.places.size), "i8", self.b.scale(t, self.sums))

    def _panel(self, block: Block, number: Operand, final: Operand) -> None:
        """Compute a block's results in one panel of channels, ``final``: the thread's very last."""
        b, rows = self.b, self.rows
        weight = self._weight(block.batch, number)
        column = b.scale(number, rows.columns)
        following = b.address(weight, "i8", b.i64(rows.steps * rows.step_bytes))
        following = b.select(final, self.later, following)
        if rows.padded:
            b.do(f"call void @{PAD}({weight}, {self._at(self.padded)})")
            weight = self._at(self.padded)
        for first, steps in rows.parts:
            start, later = (
                b.address(at, "i8", b.i64(first * rows.step_bytes)) for at in (weight, following)
            )

            def one(
                t: Operand,
                _: list[Operand],
                first: int = first,
                steps: int = steps,
                start: Operand = start,
                later: Operand = later,
            ) -> list[Operand]:
                if rows.alone:
                    self._gather(block, t)
                a = b.address(self._rows_of(t), "i8", b.i64(first * rows.step))
                arguments = [a, start, self._sums_of(t), b.i64(steps * DEPTH)]
                if self._lines:
                    arguments.append(self._asked(t, steps, start, later))
                more = ", ".join(map(str, arguments))
                b.do(f"call void @{ADD if first else TILE}({more}{b.size_argument})")
                if first + steps == rows.steps:
                    self._finish(block, t, column, self._sums_of(t), b.i64(0))
                return []

            b.loop(b.i64(0), block.tiles, 1, [], one)

    def _asked(self, t: Operand, steps: int, start: Operand, later: Operand) -> Operand:
        """Where the lines begin that a tile asks for; near ones where others have asked for all."""
        b = self.b
        skip = b.scale(t, self._lines * LINE * steps)
        beyond = b.compare("icmp sge", skip, b.i64(steps * self.rows.step_bytes))
        return b.select(beyond, start, b.address(later, "i8", skip))
