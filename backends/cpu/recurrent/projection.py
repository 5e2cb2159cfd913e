"""The products of the inputs of some steps with their weights."""

from __future__ import annotations

from collections.abc import Mapping

from irc.backends.cpu.features import Features
from irc.backends.cpu.vector.builder import Builder, Operand, Type
from irc.ops.recurrent import GATES, UNIT, columns, padded

SUMS = 8
"""Registers of sums that stay there while an input's features are walked."""


def project(
    b: Builder,
    kind: str,
    hidden: int,
    features: Features,
    at: Mapping[str, Operand],
    count: Operand,
    inputs: Operand,
) -> None:
    """Append the products of all inputs, some rows by some columns at a time.

    Args:
        b: where to write.
        kind: of loop.
        hidden: units.
        features: of the processor.
        at: addresses: ``x [count, inputs]``, ``w`` and ``added`` as :mod:`irc.ops.recurrent` has
            them, ``p [count, gates * P]``, which is written.
        count: rows of x.
        inputs: features of each.
    """
    width, each = columns(kind, hidden), GATES[kind] * padded(hidden)
    vectors, vector = width // UNIT, Type("float", UNIT)
    registers = vectors * UNIT // min(features.float_lanes, UNIT)
    together = max(1, SUMS // registers)
    whole = b.binary("and", count, b.i64(-together))

    def block(column: Operand, _: list[Operand]) -> list[Operand]:
        weights = b.address(at["w"], "float", b.times(column, inputs))
        first = [
            b.load(vector, b.address(at["added"], "float", b.add(column, b.i64(v * UNIT))))
            for v in range(vectors)
        ]

        def some(row: Operand, count: int) -> list[Operand]:
            places = [b.add(row, b.i64(more)) for more in range(count)]
            lines = [b.address(at["x"], "float", b.times(place, inputs)) for place in places]

            def products(k: Operand, sums: list[Operand]) -> list[Operand]:
                line = b.address(weights, "float", b.scale(k, width))
                loaded = [
                    b.load(vector, b.address(line, "float", b.i64(v * UNIT)))
                    for v in range(vectors)
                ]
                more: list[Operand] = []
                for i, x in enumerate(lines):
                    factor = b.splat(b.load(Type("float"), b.address(x, "float", k)), UNIT)
                    more += [b.fma(factor, loaded[v], sums[i * vectors + v])
                             for v in range(vectors)]  # fmt: skip
                return more

            sums = b.loop(b.i64(0), inputs, 1, first * count, products)
            for i, place in enumerate(places):
                target = b.address(at["p"], "float", b.add(b.scale(place, each), column))
                for v in range(vectors):
                    b.store(sums[i * vectors + v], b.address(target, "float", b.i64(v * UNIT)))
            return []

        b.loop(b.i64(0), whole, together, [], lambda row, _: some(row, together))
        b.loop(whole, count, 1, [], lambda row, _: some(row, 1))
        return []

    b.loop(b.i64(0), b.i64(each), width, [], block)
