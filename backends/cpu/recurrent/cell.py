"""What a step of a recurrent cell does to some rows of a batch: products, functions, new states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from irc.backends.cpu.features import Features
from irc.backends.cpu.vector.builder import Builder, Operand, Type, constant
from irc.backends.cpu.vector.pointwise import FLOATS
from irc.ops.recurrent import CHAINS, GATES, ROWS, UNIT, padded, rows

SUMS = {32: 24, 16: 10}
"""Registers of a product's sums, by how many there are: factors and weights need some too."""

Sums: TypeAlias = Callable[[int], Operand]
"""The sums of a row by gate."""


@dataclass(frozen=True)
class Row:
    """Where one row of the batch has its products, its states before and after, and its cell.

    ``index`` is its number among the rows of a step.
    """

    index: Operand
    inputs: Operand
    before: Operand
    new: Operand
    c: Operand


class Cell:
    """Writes what a step does to rows of the batch."""

    def __init__(
        self,
        b: Builder,
        kind: str,
        hidden: int,
        activations: Sequence[str],
        features: Features,
        at: Mapping[str, Operand],
    ) -> None:
        """Write with a builder.

        Args:
            b: where to write.
            kind: of loop.
            hidden: units.
            activations: names of flow: of the gates, of the new value, of the cell.
            features: of the processor.
            at: addresses: ``r`` and ``bias`` as :mod:`irc.ops.recurrent` has them, ``c [rows, P]``
                the cell of an LSTM, or ``[2, P]`` for a ``GRU before`` to work in.
        """
        self.b, self.kind, self.at = b, kind, at
        self.gates, self.padded = GATES[kind], padded(hidden)
        self._rows = rows(kind, hidden)
        self._apply = [FLOATS[name] for name in activations]
        self._vector = Type("float", UNIT)
        self._sums = max(1, SUMS[features.registers] * min(features.float_lanes, UNIT) // UNIT)
        # A GRU that resets before its product works in memory for one row.
        self.together = 1 if kind == "GRU before" else min(ROWS, 1 << self._sums.bit_length() - 1)

    def elements(self, count: Operand) -> Operand:
        """Append the number of elements of so many states."""
        return self.b.scale(count, self.padded)

    def advance(self, p: Operand, before: Operand, new: Operand, count: Operand) -> None:
        """Append a step of all rows.

        The matrix's part for some units stays in the first cache while all rows meet it.

        Args:
            p: the inputs' products, ``[count, gates, P]``.
            before: the states before, ``[count, P]``.
            new: where those afterwards go.
            count: rows of a batch.
        """
        b, together = self.b, self.together

        def each(write: Callable[[Sequence[Row]], None]) -> None:
            """Append a loop over the batch, some rows at a time, and one over what is left."""

            def block(size: int) -> Callable[[Operand, list[Operand]], list[Operand]]:
                def some(i: Operand, _: list[Operand]) -> list[Operand]:
                    places = [b.add(i, b.i64(more)) for more in range(size)]
                    write([self._row(place, p, before, new) for place in places])
                    return []

                return some

            whole = b.i64(0)
            if together > 1:
                whole = b.binary("and", count, b.i64(-together))
                b.loop(b.i64(0), whole, together, [], block(together))
            b.loop(whole, count, 1, [], block(1))

        if self.kind == "GRU before":
            each(self._row_before)
            return

        def units(at: Operand, _: list[Operand]) -> list[Operand]:
            each(lambda some: self._store(at, some))
            return []

        b.loop(b.i64(0), b.i64(self.padded), UNIT, [], units)

    def _row(self, index: Operand, p: Operand, before: Operand, new: Operand) -> Row:
        """Append where a row lies."""
        b = self.b
        start = b.scale(index, self.padded)
        h, y, c = (b.address(base, "float", start) for base in (before, new, self.at["c"]))
        return Row(index, b.address(p, "float", b.scale(start, self.gates)), h, y, c)

    def _store(self, at: Operand, some: Sequence[Row]) -> None:
        for value, row in zip(self._units(at, some), some, strict=True):
            self.b.store(value, self.b.address(row.new, "float", at))

    def _row_before(self, some: Sequence[Row]) -> None:
        """Append one row of a GRU that resets first: its second product reads all of the first."""
        b = self.b

        def gates(at: Operand, _: list[Operand]) -> list[Operand]:
            self._gates_before(at, some[0])
            return []

        def units(at: Operand, _: list[Operand]) -> list[Operand]:
            self._store(at, some)
            return []

        b.loop(b.i64(0), b.i64(self.padded), UNIT, [], gates)
        b.loop(b.i64(0), b.i64(self.padded), UNIT, [], units)

    def _place(self, at: Operand, inputs: Operand, gate: int) -> Operand:
        place = self.b.add(at, self.b.i64(gate * self.padded))
        return self.b.address(inputs, "float", place)

    def _projected(self, at: Operand, inputs: Operand, gate: int) -> Operand:
        return self.b.load(self._vector, self._place(at, inputs, gate))

    def _gates_before(self, at: Operand, row: Row) -> None:
        """Append z and r h of some units, stored where the second product finds them."""
        b = self.b
        (sums,) = self._products(at, [row.before], [row], (0, 1))
        z, r = (self._apply[0](b, sums(gate)) for gate in (0, 1))
        old = b.load(self._vector, b.address(row.before, "float", at))
        for i, value in enumerate((z, b.binary("fmul", r, old))):
            place = b.add(at, b.i64(i * self.padded))
            b.store(value, b.address(self.at["c"], "float", place))

    def _units(self, at: Operand, some: Sequence[Row]) -> list[Operand]:
        b = self.b
        if self.kind == "GRU before":
            kept, row = self.at["c"], some[0]
            reset = b.address(kept, "float", b.i64(self.padded))
            (total,) = self._products(at, [reset], [row], (2,))
            z = b.load(self._vector, b.address(kept, "float", at))
            return [self._mixed(z, self._apply[1](b, total(2)), at, row.before)]
        sums = self._products(at, [row.before for row in some], some, range(self.gates))
        return [self._new(own, at, row) for own, row in zip(sums, some, strict=True)]

    def _products(
        self, at: Operand, states: Sequence[Operand], some: Sequence[Row], gates: Sequence[int]
    ) -> list[Sums]:
        """Append for each state the sums of some gates, of its products, and return them.

        Gates whose sums do not all fit the registers are summed in parts, one after the other: the
        last ones stay there, the others take the place of the inputs' products.
        """
        parts = -(-len(gates) // max(1, self._sums // len(states)))
        each = -(-len(gates) // parts)
        last: list[dict[int, Operand]] = []
        for start in range(0, len(gates), each):
            part = gates[start : start + each]
            last = self._sums_of(at, states, some, part)
            if start + each < len(gates):
                for row, own in zip(some, last, strict=True):
                    for gate, value in own.items():
                        self.b.store(value, self._place(at, row.inputs, gate))

        def sums(row: Row, own: dict[int, Operand]) -> Sums:
            return lambda gate: own.get(gate) or self._projected(at, row.inputs, gate)

        return [sums(row, own) for row, own in zip(some, last, strict=True)]

    def _sums_of(
        self, at: Operand, states: Sequence[Operand], some: Sequence[Row], gates: Sequence[int]
    ) -> list[dict[int, Operand]]:
        """Append those of gates whose sums fit the registers, added to the inputs' products.

        Chains of several states are as many as of one: one weight that is loaded serves all.
        """
        b, zero = self.b, constant(self._vector, 0.0)
        matrix = b.address(self.at["r"], "float", b.scale(at, self._rows * self.gates))
        each = len(states) * len(gates)
        most = max(1, min(CHAINS[self.kind] // len(states), self._sums // each))
        chains = 1 << most.bit_length() - 1  # which divides the rows

        def products(k: Operand, carried: list[Operand]) -> list[Operand]:
            lines = b.address(matrix, "float", b.scale(k, UNIT))
            sums: list[Operand] = []
            for chain in range(chains):
                offsets = [b.i64((g * self._rows + chain) * UNIT) for g in gates]
                weights = [b.load(self._vector, b.address(lines, "float", o)) for o in offsets]
                row = b.add(k, b.i64(chain))
                for i, h in enumerate(states):
                    factor = b.splat(b.load(Type("float"), b.address(h, "float", row)), UNIT)
                    for j, weight in enumerate(weights):
                        place = chain * each + i * len(gates) + j
                        sums.append(b.fma(factor, weight, carried[place]))
            return sums

        begin = [self._first(at, row, gate) for row in some for gate in gates]
        carried = [*begin, *[zero] * (each * (chains - 1))]
        total = b.loop(b.i64(0), b.i64(self._rows), chains, carried, products)
        for chain in range(1, chains):
            for i in range(each):
                total[i] = b.binary("fadd", total[i], total[chain * each + i])
        return [
            dict(zip(gates, total[i : i + len(gates)], strict=True))
            for i in range(0, each, len(gates))
        ]

    def _first(self, at: Operand, row: Row, gate: int) -> Operand:
        """Append what a sum begins with: a GRU resets its last product without the inputs'."""
        if self.kind == "GRU" and gate == 2:
            return self.b.load(self._vector, self.b.address(self.at["bias"], "float", at))
        return self._projected(at, row.inputs, gate)

    def _mixed(self, z: Operand, n: Operand, at: Operand, h: Operand) -> Operand:
        """Append ``(1 - z) n + z h``."""
        b = self.b
        old = b.load(self._vector, b.address(h, "float", at))
        rest = b.binary("fsub", constant(self._vector, 1.0), z)
        return b.fma(rest, n, b.binary("fmul", z, old))

    def _new(self, sums: Sums, at: Operand, row: Row) -> Operand:
        b, apply = self.b, self._apply
        if self.kind == "RNN":
            return apply[0](b, sums(0))
        if self.kind == "GRU":
            z, r = (apply[0](b, sums(gate)) for gate in (0, 1))
            n = apply[1](b, b.fma(r, sums(2), self._projected(at, row.inputs, 2)))
            return self._mixed(z, n, at, row.before)
        i, o, f = (apply[0](b, sums(gate)) for gate in range(3))
        place = b.address(row.c, "float", at)
        kept = b.binary("fmul", f, b.load(self._vector, place))
        cell = b.fma(i, apply[1](b, sums(3)), kept)
        b.store(cell, place)
        return b.binary("fmul", o, apply[2](b, cell))
