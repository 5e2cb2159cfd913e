"""One function that runs a recurrent cell over time: the loop of RNN, GRU and LSTM.

A step of a recurrence is a product of a vector and a matrix, then a few functions of its gates.
Calls, and memory for each gate, cost more than that; here the sums of all gates of some units stay
in registers until the new state of these units is stored. The hidden state that a step reads is
the row that the step before has written to the result.

Gates lie as ONNX has them: z, r, n of a GRU, i, o, f, g of an LSTM. A GRU's reset gate is applied
after its product, or (``GRU before``) before it: then the new value is a second product. Hidden
units are padded to whole vectors, with weights of zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TypeAlias

from irc.backends.cpu.features import Features, host
from irc.backends.cpu.jit import compile_module
from irc.backends.cpu.vector.builder import I64, PTR, Builder, Operand, Type, constant
from irc.backends.cpu.vector.pointwise import UNARY

GATES = {"RNN": 1, "GRU": 3, "GRU before": 3, "LSTM": 4}
CHAINS = {"RNN": 8, "GRU": 2, "GRU before": 4, "LSTM": 2}
"""Rows of the matrix that are added up apart, so that no sum waits for the one before."""
PARAMETERS = ("x", "r", "bias", "h", "c", "y")
NAME = "irc_recurrent"

Gates: TypeAlias = Sequence[Operand]


def lanes() -> int:
    """Return how many hidden units are computed at once."""
    return host().float_lanes


def padded(kind: str, hidden: int, features: Features | None = None) -> int:
    """Return what hidden units are padded to: whole vectors, and whole chains of them."""
    unit = max((features or host()).float_lanes, CHAINS[kind])
    return -(-hidden // unit) * unit


@cache
def sweep(kind: str, hidden: int, activations: tuple[str, ...]) -> int:
    """Return the address of a compiled loop over x, r, bias, h, c, y, steps, batch, backwards.

    With P padded units, all float32:

    - ``x [steps, batch, gates, P]``: the products with the inputs, biases added;
    - ``r [P / lanes, rows, gates, lanes]``: the recurrent weights, rows padded to whole chains;
    - ``bias [P]``: what is added to a GRU's product before the reset gate;
    - ``h [batch, P]``: the first state; ``c [batch, P]``: an LSTM's cell, the last one afterwards,
      or ``[2, P]`` for a GRU to work in;
    - ``y [steps, batch, P]``: all states.

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
    steps, batch, back = (Operand(I64, f"%{name}") for name in ("steps", "batch", "backwards"))
    state = cell.elements(batch)
    last = b.add(steps, b.i64(-1))
    is_back = b.compare("icmp ne", back, b.i64(0))

    def step(n: Operand, before: list[Operand]) -> list[Operand]:
        t = b.select(is_back, b.binary("sub nsw", last, n), n)
        y = b.address(cell.at["y"], "float", b.times(t, state))
        x = b.address(cell.at["x"], "float", b.scale(b.times(t, state), cell.gates))

        def row(i: Operand, _: list[Operand]) -> list[Operand]:
            cell.row(i, x, before[0], y)
            return []

        b.loop(b.i64(0), batch, 1, [], row)
        return [y]

    b.loop(b.i64(0), steps, 1, [cell.at["h"]], step)
    b.do("ret void")
    pointers = ", ".join(
        f"ptr %{name}" if name in ("h", "y") else f"ptr noalias %{name}" for name in PARAMETERS
    )
    header = f"define void @{NAME}({pointers}, i64 %steps, i64 %batch, i64 %backwards)"
    return "\n".join([b.function(header), *b.functions.values(), ""])


class _Cell:
    """Writes what a step does to one row of the batch."""

    def __init__(
        self, b: Builder, kind: str, hidden: int, activations: Sequence[str], features: Features
    ) -> None:
        self.b, self.kind, self.lanes = b, kind, (count := features.float_lanes)
        self.gates, self.padded = GATES[kind], padded(kind, hidden, features)
        self._rows = rows(kind, hidden)
        self._apply = [UNARY[name] for name in activations]
        self._vector = Type("float", count)
        self.at = {name: Operand(PTR, f"%{name}") for name in PARAMETERS}

    def elements(self, batch: Operand) -> Operand:
        """Append the number of elements of a state."""
        return self.b.scale(batch, self.padded)

    def row(self, index: Operand, x: Operand, before: Operand, y: Operand) -> None:
        """Append one row: all its units, some at a time."""
        b = self.b
        start = b.scale(index, self.padded)
        h, new, c = (b.address(p, "float", start) for p in (before, y, self.at["c"]))
        inputs = b.address(x, "float", b.scale(start, self.gates))

        def units(at: Operand, _: list[Operand]) -> list[Operand]:
            value = self._units(at, inputs, h, c)
            b.store(value, b.address(new, "float", at))
            return []

        def gates(at: Operand, _: list[Operand]) -> list[Operand]:
            self._gates_before(at, inputs, h)
            return []

        if self.kind == "GRU before":
            b.loop(b.i64(0), b.i64(self.padded), self.lanes, [], gates)
        b.loop(b.i64(0), b.i64(self.padded), self.lanes, [], units)

    def _given(self, at: Operand, inputs: Operand, gate: int) -> Operand:
        place = self.b.add(at, self.b.i64(gate * self.padded))
        return self.b.load(self._vector, self.b.address(inputs, "float", place))

    def _gates_before(self, at: Operand, inputs: Operand, h: Operand) -> None:
        """Append z and r h of some units, stored where the second product finds them."""
        b = self.b
        given = {g: self._given(at, inputs, g) for g in (0, 1)}
        z, r = (self._apply[0](b, total) for total in self._products(at, h, given))
        old = b.load(self._vector, b.address(h, "float", at))
        for i, value in enumerate((z, b.binary("fmul", r, old))):
            place = b.add(at, b.i64(i * self.padded))
            b.store(value, b.address(self.at["c"], "float", place))

    def _units(self, at: Operand, inputs: Operand, h: Operand, c: Operand) -> Operand:
        b = self.b
        if self.kind == "GRU before":
            kept = self.at["c"]
            reset = b.address(kept, "float", b.i64(self.padded))
            (total,) = self._products(at, reset, {2: self._given(at, inputs, 2)})
            z = b.load(self._vector, b.address(kept, "float", at))
            return self._mixed(z, self._apply[1](b, total), at, h)
        given = {g: self._given(at, inputs, g) for g in range(self.gates)}
        first = dict(given)
        if self.kind == "GRU":
            first[2] = b.load(self._vector, b.address(self.at["bias"], "float", at))
        return self._new(self._products(at, h, first), given, at, h, c)

    def _products(self, at: Operand, h: Operand, first: Mapping[int, Operand]) -> list[Operand]:
        """Append the sums of some gates, of products with a state, to what they begin with."""
        b, zero, gates = self.b, constant(self._vector, 0.0), list(first)
        matrix = b.address(self.at["r"], "float", b.scale(at, self._rows * self.gates))
        chains = CHAINS[self.kind]

        def products(k: Operand, carried: list[Operand]) -> list[Operand]:
            lines = b.address(matrix, "float", b.scale(k, self.gates * self.lanes))
            found: list[Operand] = []
            for chain in range(chains):
                place = b.address(h, "float", b.add(k, b.i64(chain)))
                factor = b.splat(b.load(Type("float"), place), self.lanes)
                for i, g in enumerate(gates):
                    offset = b.i64((chain * self.gates + g) * self.lanes)
                    weight = b.load(self._vector, b.address(lines, "float", offset))
                    found.append(b.fma(factor, weight, carried[chain * len(gates) + i]))
            return found

        carried = [*first.values(), *[zero] * (len(gates) * (chains - 1))]
        found = b.loop(b.i64(0), b.i64(self._rows), chains, carried, products)
        for chain in range(1, chains):
            for i in range(len(gates)):
                found[i] = b.binary("fadd", found[i], found[chain * len(gates) + i])
        return found[: len(gates)]

    def _mixed(self, z: Operand, n: Operand, at: Operand, h: Operand) -> Operand:
        """Append ``(1 - z) n + z h``."""
        b = self.b
        old = b.load(self._vector, b.address(h, "float", at))
        rest = b.binary("fsub", constant(self._vector, 1.0), z)
        return b.fma(rest, n, b.binary("fmul", z, old))

    def _new(
        self, sums: Gates, given: Mapping[int, Operand], at: Operand, h: Operand, c: Operand
    ) -> Operand:
        b, apply = self.b, self._apply
        if self.kind == "RNN":
            return apply[0](b, sums[0])
        if self.kind == "GRU":
            z, r = (apply[0](b, sums[g]) for g in (0, 1))
            n = apply[1](b, b.fma(r, sums[2], given[2]))
            return self._mixed(z, n, at, h)
        i, o, f = (apply[0](b, sums[g]) for g in range(3))
        place = b.address(c, "float", at)
        kept = b.binary("fmul", f, b.load(self._vector, place))
        cell = b.fma(i, apply[1](b, sums[3]), kept)
        b.store(cell, place)
        return b.binary("fmul", o, apply[2](b, cell))
