"""What an attention block leaves: rows divided by their sums, turned, stored; and log-sums."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import TYPE_CHECKING

from irc.backends.cpu.attention.pairs import rounded_pairs
from irc.backends.cpu.matmul.panels import transposed
from irc.backends.cpu.vector.builder import Operand, constant
from irc.backends.cpu.vector.logarithms import log as logarithm
from irc.backends.cpu.vector.storage import MEMORY, pack

if TYPE_CHECKING:
    from irc.backends.cpu.attention.blocks import AttentionWriter, Unit

LN2 = log(2.0)


def store_block(
    writer: AttentionWriter, unit: Unit, totals: Operand, sums: Sequence[Operand]
) -> None:
    """Store ``totals[features][rows] / sums[rows]`` as rows of y; rows without keys are zeros."""
    b, width, lanes = writer.b, writer.form.width, writer.plan.lanes
    place = writer.place("y")
    factors: list[Operand] = []
    for total in sums:
        one, zero = constant(total.type, 1.0), constant(total.type, 0.0)
        empty = b.compare("fcmp oeq", total, zero)
        factors.append(b.select(empty, zero, b.binary("fdiv", one, total)))
    if place.feature != 1 or width < lanes:
        _store_by_feature(writer, unit, totals, factors)
        return

    if writer.rounds and place.dtype == "bf16" and width >= 2 * lanes:
        _store_rounded(writer, unit, totals, factors)
        return

    def square(feature: Operand, _: list[Operand]) -> list[Operand]:
        first = feature
        if width % lanes:
            # The last square is moved back: some features are stored twice.
            first = b.intrinsic("smin", feature, b.i64(width - lanes))
        for v, factor in enumerate(factors):
            turned = transposed(
                b, [_column(writer, totals, first, j, v, factor) for j in range(lanes)]
            )
            for i in range(min(lanes, _valid(writer) - v * lanes)):
                _store(writer, unit, v * lanes + i, first, turned[i])
        return []

    b.loop(b.i64(0), b.i64(width), lanes, [], square)


def _store_rounded(
    writer: AttentionWriter, unit: Unit, totals: Operand, factors: Sequence[Operand]
) -> None:
    """Turn pairs of features that are rounded already: half as much to turn."""
    b, lanes, width = writer.b, writer.plan.lanes, writer.form.width
    columns = 2 * lanes

    def square(feature: Operand, _: list[Operand]) -> list[Operand]:
        first = feature
        if width % columns:
            # The last square is moved back: some features are stored twice.
            first = b.intrinsic("smin", feature, b.i64(width - columns))
        for v, factor in enumerate(factors):
            features = [_column(writer, totals, first, j, v, factor) for j in range(columns)]
            pairs = rounded_pairs(b, features[::2], features[1::2])
            for i, row in enumerate(transposed(b, pairs)):
                if i < _valid(writer) - v * lanes:
                    at = writer.address(
                        "y", unit, b.add(unit.first, writer.existing(v * lanes + i))
                    )
                    b.store(row, b.address(at, "i16", first), align=2)
        return []

    b.loop(b.i64(0), b.i64(width), columns, [], square)


def _valid(writer: AttentionWriter) -> int:
    """Rows of a block that are stored; where their number varies, the last one several times."""
    plan = writer.plan
    return plan.block if plan.varies else min(plan.rows, plan.block)


def _column(
    writer: AttentionWriter, totals: Operand, feature: Operand, j: int, v: int, factor: Operand
) -> Operand:
    """Return feature ``feature + j`` of the v-th vector of rows, divided."""
    b, plan = writer.b, writer.plan
    row = b.address(totals, "float", b.scale(b.add(feature, b.i64(j)), plan.block))
    value = b.load(factor.type, b.address(row, "float", b.i64(v * plan.lanes)))
    return b.binary("fmul", value, factor)


def _store(writer: AttentionWriter, unit: Unit, row: int, feature: Operand, value: Operand) -> None:
    b, place = writer.b, writer.place("y")
    memory = MEMORY[place.dtype]
    start = writer.address("y", unit, b.add(unit.first, writer.existing(row)))
    at = b.address(start, memory, b.scale(feature, place.feature))
    b.store(pack(b, value, place.dtype), at)


def _store_by_feature(
    writer: AttentionWriter, unit: Unit, totals: Operand, factors: Sequence[Operand]
) -> None:
    """Store element by element: fewer features than lanes, or features apart in memory."""
    b, lanes = writer.b, writer.plan.lanes

    def one(feature: Operand, _: list[Operand]) -> list[Operand]:
        for v, factor in enumerate(factors):
            column = _column(writer, totals, feature, 0, v, factor)
            for i in range(min(lanes, _valid(writer) - v * lanes)):
                _store(writer, unit, v * lanes + i, feature, b.lane(column, i))
        return []

    b.loop(b.i64(0), b.i64(writer.form.width), 1, [], one)


def store_sums(
    writer: AttentionWriter, unit: Unit, tops: Sequence[Operand], sums: Sequence[Operand]
) -> None:
    """Store ``top ln 2 + ln sum`` of each row; minus infinity where there were no keys."""
    b, lanes, place = writer.b, writer.plan.lanes, writer.place("sums")
    stride = place.strides[writer.plan.row]
    first = writer.address("sums", unit, unit.first)
    for v, (top, total) in enumerate(zip(tops, sums, strict=True)):
        value = b.fma(top, constant(top.type, LN2), logarithm(b, total))
        valid = _valid(writer) - v * lanes
        if stride == 1 and valid >= lanes and not writer.plan.varies:
            b.store(value, b.address(first, "float", b.i64(v * lanes)))
            continue
        for i in range(min(lanes, valid)):
            at = b.scale(writer.existing(v * lanes + i), stride)
            b.store(b.lane(value, i), b.address(first, "float", at))
