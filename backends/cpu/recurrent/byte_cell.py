"""An LSTM's products of bytes: of the inputs of some steps, and of a state in a step.

Sums are exact; what the zero points of both sides add to them is taken off afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from irc.backends.cpu.features import Features
from irc.backends.cpu.quantized.dots import dot
from irc.backends.cpu.recurrent.cell import Cell, Row
from irc.backends.cpu.recurrent.rounding import (
    FLOATS,
    GRID_WORDS,
    WORDS,
    Grid,
    bounds,
    each_row,
    grid,
    nothing,
    round_row,
)
from irc.backends.cpu.vector.builder import Builder, Operand, Type, constant
from irc.ops.recurrent import BYTE_CHAINS, GATES, QUAD, UNIT, depth, padded

PANELS = {32: 4, 16: 2}
"""Vectors of columns of a product of inputs, by how many registers there are."""
TOGETHER = {32: 4, 16: 2}
"""Its rows."""


class Columns:
    """What makes floats of a product's sums: scales, sums and zero points of columns.

    Args:
        b: where to write.
        at: addresses of ``scale``, ``sums`` and ``zeros``.
        role: whose they are, ``w`` or ``r``.
    """

    def __init__(self, b: Builder, at: Mapping[str, Operand], role: str) -> None:
        self.b, self.at, self.role = b, at, role

    def read(self, column: Operand) -> tuple[Operand, Operand, Operand]:
        """Append loads of some columns' scales, sums and zero points."""
        b, at, role = self.b, self.at, self.role
        return (
            b.load(FLOATS, b.address(at[f"{role}_scale"], "float", column)),
            b.load(WORDS, b.address(at[f"{role}_sums"], "i32", column)),
            b.load(WORDS, b.address(at[f"{role}_zeros"], "i32", column)),
        )

    def added(
        self,
        columns: tuple[Operand, Operand, Operand],
        total: Operand,
        used: Grid,
        bytes_sum: Operand,
        other: Operand,
    ) -> Operand:
        """Append what sums of bytes stand for, added to something.

        Args:
            columns: of :meth:`read`.
            total: the sums.
            used: the grid of the row.
            bytes_sum: the sum of the row's bytes.
            other: what is added.
        """
        b, (scale, sums, zeros) = self.b, columns
        less = b.binary("mul", b.splat(used.zero, UNIT), sums)
        more = b.binary("mul", b.splat(bytes_sum, UNIT), zeros)
        whole = b.binary("sub", b.binary("sub", total, less), more)
        step = b.binary("fmul", b.splat(used.step, UNIT), scale)
        return b.fma(b.convert("sitofp", whole, "float"), step, other)


def project_bytes(
    b: Builder,
    hidden: int,
    inputs: int,
    features: Features,
    at: Mapping[str, Operand],
    count: Operand,
    used: Grid,
) -> None:
    """Append the products of rounded inputs, some rows by some columns at a time.

    Args:
        b: where to write.
        hidden: units.
        inputs: features of each input.
        features: of the processor.
        at: addresses: ``x [count, D]`` and ``x_sums [count]`` the inputs' bytes and their sums,
            ``w``, ``w_scale``, ``w_sums``, ``w_zeros`` and ``added`` as :mod:`irc.ops.recurrent`
            has them, ``p [count, 4 * P]``, which is written.
        count: rows of x.
        used: the grid of all inputs.
    """
    long, each = depth(inputs), GATES["LSTM"] * padded(hidden)
    panels, together = PANELS[features.registers], TOGETHER[features.registers]
    columns = Columns(b, at, "w")

    def block(column: Operand, _: list[Operand]) -> list[Operand]:
        weights = b.address(at["w"], "i8", b.scale(column, long))

        def some(row: Operand, size: int) -> list[Operand]:
            places = [b.add(row, b.i64(more)) for more in range(size)]
            lines = [b.address(at["x"], "i8", b.scale(place, long)) for place in places]

            def quad(k: Operand, sums: list[Operand]) -> list[Operand]:
                words: list[Operand] = []
                for panel in range(panels):
                    place = b.add(b.scale(k, UNIT), b.i64(panel * long * UNIT))
                    words.append(b.load(WORDS, b.address(weights, "i8", place), 1))
                more: list[Operand] = []
                for i, line in enumerate(lines):
                    four = b.load(Type("i32"), b.address(line, "i8", k), 1)
                    more += [
                        dot(b, features, four, word, sums[i * panels + j])
                        for j, word in enumerate(words)
                    ]
                return more

            zero = [constant(WORDS, 0)] * (size * panels)
            totals = b.loop(b.i64(0), b.i64(long), QUAD, zero, quad)
            for panel in range(panels):
                here = b.add(column, b.i64(panel * UNIT))
                read = columns.read(here)
                bias = b.load(FLOATS, b.address(at["added"], "float", here))
                for i, place in enumerate(places):
                    sums = b.load(Type("i32"), b.address(at["x_sums"], "i32", place))
                    value = columns.added(read, totals[i * panels + panel], used, sums, bias)
                    target = b.add(b.scale(place, each), here)
                    b.store(value, b.address(at["p"], "float", target))
            return []

        whole = b.binary("and", count, b.i64(-together))
        b.loop(b.i64(0), whole, together, [], lambda row, _: some(row, together))
        b.loop(whole, count, 1, [], lambda row, _: some(row, 1))
        return []

    b.loop(b.i64(0), b.i64(each), panels * UNIT, [], block)


class ByteCell(Cell):
    """Writes what a step of an LSTM of 8 bits does to rows of the batch.

    Beside what a cell has, ``at`` has ``r_scale``, ``r_sums`` and ``r_zeros``, and memory to work
    in: ``h [rows, D]`` for the states' bytes, ``h_sums [rows]`` for their sums, ``h_grids [rows]``.
    """

    def __init__(
        self,
        b: Builder,
        hidden: int,
        activations: Sequence[str],
        features: Features,
        at: Mapping[str, Operand],
    ) -> None:
        super().__init__(b, "LSTM", hidden, activations, features, at)
        self._hidden, self._features = hidden, features
        self._columns = Columns(b, at, "r")

    def advance(self, p: Operand, before: Operand, new: Operand, count: Operand) -> None:
        """Append a step of all rows; each row's state is rounded first."""
        b, at = self.b, self.at

        def row(i: Operand) -> None:
            state = b.address(before, "float", b.scale(i, self.padded))
            used = grid(b, bounds(b, state, self._hidden, nothing()))
            used.store(b, self._grid(i))
            place = b.address(at["h"], "i8", b.scale(i, depth(self._hidden)))
            total = round_row(b, state, place, self._hidden, used)
            b.store(total, b.address(at["h_sums"], "i32", i))

        each_row(b, count, row)
        super().advance(p, before, new, count)

    def _grid(self, row: Operand) -> Operand:
        return self.b.address(self.at["h_grids"], "i32", self.b.scale(row, GRID_WORDS))

    def _sums_of(
        self, at: Operand, states: Sequence[Operand], some: Sequence[Row], gates: Sequence[int]
    ) -> list[dict[int, Operand]]:
        b, long, each = self.b, depth(self._hidden), len(some) * len(gates)
        matrix = b.address(self.at["r"], "i8", b.scale(at, self.gates * long))
        lines = [b.address(self.at["h"], "i8", b.scale(row.index, long)) for row in some]
        chains = BYTE_CHAINS if len(some) == 1 and each * BYTE_CHAINS <= self._sums else 1

        def quads(k: Operand, carried: list[Operand]) -> list[Operand]:
            sums: list[Operand] = []
            for chain in range(chains):
                here = b.add(k, b.i64(chain * QUAD))
                words: list[Operand] = []
                for gate in gates:
                    place = b.add(b.scale(here, UNIT), b.i64(gate * long * UNIT))
                    words.append(b.load(WORDS, b.address(matrix, "i8", place), 1))
                for i, line in enumerate(lines):
                    four = b.load(Type("i32"), b.address(line, "i8", here), 1)
                    for j, word in enumerate(words):
                        old = carried[chain * each + i * len(gates) + j]
                        sums.append(dot(b, self._features, four, word, old))
            return sums

        zero = [constant(WORDS, 0)] * (each * chains)
        totals = b.loop(b.i64(0), b.i64(long), QUAD * chains, zero, quads)
        for chain in range(1, chains):
            for i in range(each):
                totals[i] = b.binary("add", totals[i], totals[chain * each + i])
        read = [self._columns.read(b.add(at, b.i64(gate * self.padded))) for gate in gates]
        values: list[dict[int, Operand]] = []
        for i, row in enumerate(some):
            used = Grid.load(b, self._grid(row.index))
            bytes_sum = b.load(Type("i32"), b.address(self.at["h_sums"], "i32", row.index))
            values.append({})
            for j, gate in enumerate(gates):
                other = self._projected(at, row.inputs, gate)
                total = totals[i * len(gates) + j]
                values[-1][gate] = self._columns.added(read[j], total, used, bytes_sum, other)
        return values
