"""One function that runs a recurrent cell over time: the loop of RNN, GRU and LSTM.

First it multiplies the inputs of all steps, some rows by some vectors of gates at a time. A step of
a recurrence is a product of a vector and a matrix, then a few functions of its gates. Calls, and
memory for each gate, cost more than that; here the sums of all gates of some units stay in
registers until the new state of these units is stored. The hidden state that a step reads is the
row that the step before has written to the result.

Gates lie as ONNX has them: z, r, n of a GRU, i, o, f, g of an LSTM. A GRU's reset gate is applied
after its product, or (``GRU before``) before it: then the new value is a second product. Hidden
units are padded to whole vectors, with weights of zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from irc.backends.cpu.features import Features, host
from irc.backends.cpu.jit import compile_module
from irc.backends.cpu.vector.builder import I64, PTR, Builder, Operand, Type, constant
from irc.backends.cpu.vector.pointwise import UNARY
from irc.runtime.recurrent_sweep import GATES

CHAINS = {"RNN": 8, "GRU": 2, "GRU before": 4, "LSTM": 2}
"""Rows of the matrix that are added up apart, so that no sum waits for the one before."""
SUMS = 8
"""Vectors of a product with inputs that stay in registers."""
SUMS_OF_STATES = 24
"""The same of a product with states, of 32 registers; half as many of 16."""
PARAMETERS = ("x", "w", "added", "p", "r", "bias", "h", "c", "y")
NUMBERS = ("steps", "batch", "backwards", "inputs", "stride")
NAME = "irc_recurrent"

Gates: TypeAlias = Sequence[Operand]


def lanes() -> int:
    """Return how many hidden units are computed at once."""
    return host().float_lanes


def padded(kind: str, hidden: int, features: Features | None = None) -> int:
    """Return what hidden units are padded to: whole vectors, and whole chains of them."""
    unit = max((features or host()).float_lanes, CHAINS[kind])
    return -(-hidden // unit) * unit


def columns(kind: str, hidden: int, features: Features | None = None) -> int:
    """Return how many gates' units lie beside each other in the weights of the inputs."""
    count = (features or host()).float_lanes
    vectors = GATES[kind] * padded(kind, hidden, features) // count
    return count * (2 if vectors % 2 == 0 else 1)


@cache
def sweep(kind: str, hidden: int, activations: tuple[str, ...]) -> int:
    """Return the address of a compiled loop.

    Its arguments are the addresses of :data:`PARAMETERS` and the :data:`NUMBERS`, as i64. With P
    padded units, all float32:

    - ``x [steps, batch, inputs]``;
    - ``w [gates * P / columns, inputs, columns]``: the weights of the inputs;
    - ``added [gates * P]``: what is added to their products;
    - ``p [steps, batch, gates, P]``: memory for these;
    - ``r [P / lanes, rows, gates, lanes]``: the recurrent weights, rows padded to whole chains;
    - ``bias [P]``: what is added to a GRU's product before the reset gate;
    - ``h [batch, P]``: the first state; ``c [batch, P]``: an LSTM's cell, the last one afterwards,
      or ``[2, P]`` for a GRU to work in;
    - ``y [steps, batch, P]``: all states, those of a step ``stride`` elements behind the last's.

    Args:
        kind: of cell.
        hidden: units.
        activations: names of flow: of the gates, of the new value, of the cell.
    """
    return compile_module(written(kind, hidden, activations, host()), NAME)


def rows(kind: str, hidden: int) -> int:
    """Return how many rows the recurrent weights are padded to."""
    return -(-hidden // CHAINS[kind]) * CHAINS[kind]


def written(kind: str, hidden: int, activations: Sequence[str], features: Features) -> str:
    """Return the text of the function."""
    b = Builder(fma=features.fma, half=features.half)
    cell = _Cell(b, kind, hidden, activations, features)
    steps, batch, back, inputs, stride = (Operand(I64, f"%{name}") for name in NUMBERS)
    _project(b, cell, b.times(steps, batch), inputs, columns(kind, hidden, features))
    state = cell.elements(batch)
    last = b.add(steps, b.i64(-1))
    is_back = b.compare("icmp ne", back, b.i64(0))

    def step(n: Operand, before: list[Operand]) -> list[Operand]:
        t = b.select(is_back, b.binary("sub nsw", last, n), n)
        y = b.address(cell.at["y"], "float", b.times(t, stride))
        p = b.address(cell.at["p"], "float", b.scale(b.times(t, state), cell.gates))
        together = cell.together
        whole = b.i64(0) if together == 1 else b.binary("and", batch, b.i64(-together))

        def each(write: Callable[[Sequence[_Row]], None]) -> None:
            """Append a loop over the batch, some rows at a time, and one over what is left."""

            def block(count: int) -> Callable[[Operand, list[Operand]], list[Operand]]:
                def rows_of(i: Operand, _: list[Operand]) -> list[Operand]:
                    places = [b.add(i, b.i64(more)) for more in range(count)]
                    write([cell.row(place, p, before[0], y) for place in places])
                    return []

                return rows_of

            if together > 1:
                b.loop(b.i64(0), whole, together, [], block(together))
            b.loop(whole, batch, 1, [], block(1))

        cell.step(each)
        return [y]

    b.loop(b.i64(0), steps, 1, [cell.at["h"]], step)
    b.do("ret void")
    pointers = ", ".join(
        f"ptr %{name}" if name in ("h", "y") else f"ptr noalias %{name}" for name in PARAMETERS
    )
    numbers = ", ".join(f"i64 %{name}" for name in NUMBERS)
    header = f"define void @{NAME}({pointers}, {numbers})"
    return "\n".join([b.function(header), *b.functions.values(), ""])


def _project(b: Builder, cell: _Cell, count: Operand, inputs: Operand, width: int) -> None:
    """Append the products of all inputs, some rows by ``width`` columns at a time."""
    vectors, each = width // cell.lanes, cell.elements(b.i64(cell.gates))
    kind = Type("float", cell.lanes)
    together = SUMS // vectors
    whole = b.binary("and", count, b.i64(-together))

    def block(column: Operand, _: list[Operand]) -> list[Operand]:
        weights = b.address(cell.at["w"], "float", b.times(column, inputs))
        first = [
            b.load(kind, b.address(cell.at["added"], "float", b.add(column, b.i64(v * cell.lanes))))
            for v in range(vectors)
        ]

        def some(row: Operand, count: int) -> list[Operand]:
            places = [b.add(row, b.i64(more)) for more in range(count)]
            lines = [b.address(cell.at["x"], "float", b.times(at, inputs)) for at in places]

            def products(k: Operand, sums: list[Operand]) -> list[Operand]:
                line = b.address(weights, "float", b.scale(k, width))
                loaded = [
                    b.load(kind, b.address(line, "float", b.i64(v * cell.lanes)))
                    for v in range(vectors)
                ]
                more: list[Operand] = []
                for i, x in enumerate(lines):
                    factor = b.splat(b.load(Type("float"), b.address(x, "float", k)), cell.lanes)
                    more += [b.fma(factor, loaded[v], sums[i * vectors + v])
                             for v in range(vectors)]  # fmt: skip
                return more

            sums = b.loop(b.i64(0), inputs, 1, first * count, products)
            for i, at in enumerate(places):
                target = b.address(cell.at["p"], "float", b.add(b.times(at, each), column))
                for v in range(vectors):
                    place = b.address(target, "float", b.i64(v * cell.lanes))
                    b.store(sums[i * vectors + v], place)
            return []

        b.loop(b.i64(0), whole, together, [], lambda row, _: some(row, together))
        b.loop(whole, count, 1, [], lambda row, _: some(row, 1))
        return []

    b.loop(b.i64(0), each, width, [], block)


@dataclass(frozen=True)
class _Row:
    """Where one row of the batch has its products, its states before and after, and its cell."""

    inputs: Operand
    before: Operand
    new: Operand
    c: Operand


class _Cell:
    """Writes what a step does to rows of the batch."""

    def __init__(
        self, b: Builder, kind: str, hidden: int, activations: Sequence[str], features: Features
    ) -> None:
        self.b, self.kind, self.lanes = b, kind, (count := features.float_lanes)
        self.gates, self.padded = GATES[kind], padded(kind, hidden, features)
        self._rows = rows(kind, hidden)
        self._apply = [UNARY[name] for name in activations]
        self._vector = Type("float", count)
        self.at = {name: Operand(PTR, f"%{name}") for name in PARAMETERS}
        # A GRU that resets before its product works in memory for one row.
        self.together = 1 if kind == "GRU before" else 4
        self._sums = SUMS_OF_STATES if features.registers == 32 else SUMS_OF_STATES // 2

    def elements(self, count: Operand) -> Operand:
        """Append the number of elements of so many states."""
        return self.b.scale(count, self.padded)

    def row(self, index: Operand, p: Operand, before: Operand, y: Operand) -> _Row:
        """Append where a row lies."""
        b = self.b
        start = b.scale(index, self.padded)
        h, new, c = (b.address(base, "float", start) for base in (before, y, self.at["c"]))
        return _Row(b.address(p, "float", b.scale(start, self.gates)), h, new, c)

    def step(self, each: Callable[[Callable[[Sequence[_Row]], None]], None]) -> None:
        """Append a step: all units, a vector at a time, of all rows.

        The matrix's part for some units stays in the first cache while all rows meet it.
        """
        b = self.b
        if self.kind == "GRU before":
            each(self._row_before)
            return

        def units(at: Operand, _: list[Operand]) -> list[Operand]:
            each(lambda some: self._store(at, some))
            return []

        b.loop(b.i64(0), b.i64(self.padded), self.lanes, [], units)

    def _store(self, at: Operand, some: Sequence[_Row]) -> None:
        for value, row in zip(self._units(at, some), some, strict=True):
            self.b.store(value, self.b.address(row.new, "float", at))

    def _row_before(self, some: Sequence[_Row]) -> None:
        """Append one row of a GRU that resets first: its second product reads all of the first."""
        b = self.b

        def gates(at: Operand, _: list[Operand]) -> list[Operand]:
            self._gates_before(at, some[0])
            return []

        def units(at: Operand, _: list[Operand]) -> list[Operand]:
            self._store(at, some)
            return []

        b.loop(b.i64(0), b.i64(self.padded), self.lanes, [], gates)
        b.loop(b.i64(0), b.i64(self.padded), self.lanes, [], units)

    def _projected(self, at: Operand, inputs: Operand, gate: int) -> Operand:
        place = self.b.add(at, self.b.i64(gate * self.padded))
        return self.b.load(self._vector, self.b.address(inputs, "float", place))

    def _gates_before(self, at: Operand, row: _Row) -> None:
        """Append z and r h of some units, stored where the second product finds them."""
        b = self.b
        projected = {g: self._projected(at, row.inputs, g) for g in (0, 1)}
        (sums,) = self._products(at, [row.before], [projected])
        z, r = (self._apply[0](b, total) for total in sums)
        old = b.load(self._vector, b.address(row.before, "float", at))
        for i, value in enumerate((z, b.binary("fmul", r, old))):
            place = b.add(at, b.i64(i * self.padded))
            b.store(value, b.address(self.at["c"], "float", place))

    def _units(self, at: Operand, some: Sequence[_Row]) -> list[Operand]:
        b = self.b
        if self.kind == "GRU before":
            kept, row = self.at["c"], some[0]
            reset = b.address(kept, "float", b.i64(self.padded))
            ((total,),) = self._products(at, [reset], [{2: self._projected(at, row.inputs, 2)}])
            z = b.load(self._vector, b.address(kept, "float", at))
            return [self._mixed(z, self._apply[1](b, total), at, row.before)]
        projected = [
            {g: self._projected(at, row.inputs, g) for g in range(self.gates)} for row in some
        ]
        first = [dict(each) for each in projected]
        if self.kind == "GRU":
            bias = b.load(self._vector, b.address(self.at["bias"], "float", at))
            first = [{**each, 2: bias} for each in first]
        sums = self._products(at, [row.before for row in some], first)
        return [self._new(s, g, at, row) for s, g, row in zip(sums, projected, some, strict=True)]

    def _products(
        self, at: Operand, states: Sequence[Operand], first: Sequence[Mapping[int, Operand]]
    ) -> list[list[Operand]]:
        """Append for each state the sums of some gates, of its products, to what they begin with.

        Gates whose sums do not all fit the registers are summed in parts, one after the other.
        """
        gates = list(first[0])
        parts = -(-len(states) * len(gates) // self._sums)
        each = -(-len(gates) // parts)
        every: list[list[Operand]] = [[] for _ in states]
        for start in range(0, len(gates), each):
            some = gates[start : start + each]
            sums = self._sums_of(at, states, [{g: one[g] for g in some} for one in first])
            for own, more in zip(every, sums, strict=True):
                own.extend(more)
        return every

    def _sums_of(
        self, at: Operand, states: Sequence[Operand], first: Sequence[Mapping[int, Operand]]
    ) -> list[list[Operand]]:
        """Append those of gates whose sums fit the registers.

        Chains of several states are as many as of one: one weight that is loaded serves all.
        """
        b, zero, gates = self.b, constant(self._vector, 0.0), list(first[0])
        matrix = b.address(self.at["r"], "float", b.scale(at, self._rows * self.gates))
        chains = max(1, CHAINS[self.kind] // len(states))
        each = len(states) * len(gates)

        def products(k: Operand, carried: list[Operand]) -> list[Operand]:
            lines = b.address(matrix, "float", b.scale(k, self.gates * self.lanes))
            sums: list[Operand] = []
            for chain in range(chains):
                offsets = [b.i64((chain * self.gates + g) * self.lanes) for g in gates]
                weights = [b.load(self._vector, b.address(lines, "float", o)) for o in offsets]
                row = b.add(k, b.i64(chain))
                for i, h in enumerate(states):
                    factor = b.splat(b.load(Type("float"), b.address(h, "float", row)), self.lanes)
                    for j, weight in enumerate(weights):
                        place = chain * each + i * len(gates) + j
                        sums.append(b.fma(factor, weight, carried[place]))
            return sums

        begin = [value for one in first for value in one.values()]
        carried = [*begin, *[zero] * (each * (chains - 1))]
        total = b.loop(b.i64(0), b.i64(self._rows), chains, carried, products)
        for chain in range(1, chains):
            for i in range(each):
                total[i] = b.binary("fadd", total[i], total[chain * each + i])
        return [total[i : i + len(gates)] for i in range(0, each, len(gates))]

    def _mixed(self, z: Operand, n: Operand, at: Operand, h: Operand) -> Operand:
        """Append ``(1 - z) n + z h``."""
        b = self.b
        old = b.load(self._vector, b.address(h, "float", at))
        rest = b.binary("fsub", constant(self._vector, 1.0), z)
        return b.fma(rest, n, b.binary("fmul", z, old))

    def _new(
        self, sums: Gates, projected: Mapping[int, Operand], at: Operand, row: _Row
    ) -> Operand:
        b, apply = self.b, self._apply
        if self.kind == "RNN":
            return apply[0](b, sums[0])
        if self.kind == "GRU":
            z, r = (apply[0](b, sums[g]) for g in (0, 1))
            n = apply[1](b, b.fma(r, sums[2], projected[2]))
            return self._mixed(z, n, at, row.before)
        i, o, f = (apply[0](b, sums[g]) for g in range(3))
        place = b.address(row.c, "float", at)
        kept = b.binary("fmul", f, b.load(self._vector, place))
        cell = b.fma(i, apply[1](b, sums[3]), kept)
        b.store(cell, place)
        return b.binary("fmul", o, apply[2](b, cell))
