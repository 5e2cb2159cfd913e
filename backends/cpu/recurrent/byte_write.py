"""Kernels of an LSTM of 8 bits as the emitter calls them.

All inputs have one range, which each thread reads off all of them before it begins.
"""

from __future__ import annotations

from irc.backends.cpu.recurrent.byte_cell import ByteCell, project_bytes
from irc.backends.cpu.recurrent.cell import Cell
from irc.backends.cpu.recurrent.rounding import (
    GRID_WORDS,
    Grid,
    bounds,
    each_row,
    grid,
    nothing,
    round_row,
)
from irc.backends.cpu.recurrent.write import WORD_BYTES, Writer
from irc.backends.cpu.vector.builder import Operand, Type, constant
from irc.dialects.size import Dim
from irc.ops.recurrent import depth


class ByteWriter(Writer):
    """Writes a kernel of an LSTM of 8 bits."""

    _grid: Grid

    def parts(self) -> dict[str, Dim]:
        """Return the bytes of each part of scratch memory, words first."""
        form, rows = self.form, self.form.batch * self.chunk
        words = {name: size for name, size in super().parts().items() if name != "x"}
        return {
            **words,
            "x_sums": rows * WORD_BYTES,
            "h_sums": form.batch * WORD_BYTES,
            "h_grids": form.batch * (GRID_WORDS * WORD_BYTES),
            "x": rows * depth(form.inputs),
            "h": form.batch * depth(form.hidden),
        }

    def begin(self) -> None:
        """Write the range of the inputs: behind the longest sequence they have no part in it."""
        b, form = self.b, self.form
        of_steps, of_rows = form.strides
        first = b.address(self.roles["x"], "float", b.i64(form.offset))
        steps = self.steps
        if "lengths" in self.roles:

            def longer(row: Operand, most: list[Operand]) -> list[Operand]:
                return [b.intrinsic("smax", most[0], self.length(row))]

            (steps,) = b.loop(b.i64(0), self.batch, 1, [constant(steps.type, 0)], longer)

        def step(t: Operand, known: list[Operand]) -> list[Operand]:
            here = b.address(first, "float", b.scale(t, of_steps))

            def row(i: Operand, known: list[Operand]) -> list[Operand]:
                place = b.address(here, "float", b.scale(i, of_rows))
                return bounds(b, place, form.inputs, known)

            return b.loop(b.i64(0), self.batch, 1, known, row)

        self._grid = grid(b, b.loop(b.i64(0), steps, 1, nothing(), step))

    def cell(self, at: dict[str, Operand]) -> Cell:
        """Return what writes a step."""
        return ByteCell(self.b, self.form.hidden, self.form.activations, self.features, at)

    def clear(self, at: dict[str, Operand], count: Operand) -> None:
        """Write zeros behind the bytes of rows: they meet weights of zero."""
        b, form = self.b, self.form
        for name, units, rows in (
            ("x", form.inputs, b.scale(count, self.chunk)),
            ("h", form.hidden, count),
        ):
            if units == depth(units):
                continue

            def row(i: Operand, name: str = name, units: int = units) -> None:
                place = b.scale(i, depth(units))
                for more in range(units, depth(units)):
                    byte = b.address(at[name], "i8", b.add(place, b.i64(more)))
                    b.store(constant(Type("i8"), 0), byte)

            each_row(b, rows, row)

    def take(self, source: Operand, at: dict[str, Operand], place: Operand) -> None:
        """Write the bytes of an input, and their sum."""
        b, inputs = self.b, self.form.inputs
        target = b.address(at["x"], "i8", b.scale(place, depth(inputs)))
        total = round_row(b, source, target, inputs, self._grid)
        b.store(total, b.address(at["x_sums"], "i32", place))

    def project(self, at: dict[str, Operand], rows: Operand) -> None:
        """Write the products of some inputs."""
        form = self.form
        project_bytes(self.b, form.hidden, form.inputs, self.features, at, rows, self._grid)
