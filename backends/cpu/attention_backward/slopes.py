"""Scores and gradients of probabilities become probabilities and gradients of scores, in place.

A row's log-sum and delta are numbers, and its keys lie in the lanes. In powers of two:
``p = 2**(s c - sums log2(e))`` with ``c = scale log2(e)``, and ``ds = p (dp scale - delta scale)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from irc.backends.cpu.attention.pairs import HALVES, ROUND
from irc.backends.cpu.attention.softmax import LOG2E, NEVER, masked, power_of_two
from irc.backends.cpu.vector.builder import Builder, Operand, Type, constant
from irc.backends.cpu.vector.storage import MEMORY, unpack

if TYPE_CHECKING:
    from irc.backends.cpu.attention_backward.memory import GradientMemory, Rows


@dataclass(frozen=True)
class Line:
    """What is the same for all keys of a row.

    Attributes:
        minus: ``-sums * log2(e)``; minus infinity where the row sees nothing, whose powers are 0.
        delta: ``-delta * scale``.
        last: the last key that the row sees, as i32 in all lanes; None where it sees all.
    """

    minus: Operand
    delta: Operand
    last: Operand | None


class SlopesWriter:
    """Writes the pass over a block between the products."""

    def __init__(self, writer: GradientMemory) -> None:
        self.writer, self.b, self.plan = writer, writer.b, writer.gradients
        self.form, self.kind = writer.form, writer.kind

    def write(self, at: Rows, scores: Operand, slopes: Operand) -> None:
        """Write the pass; blocks below the diagonal for all rows need no comparison."""
        if at.offset is None:
            self._rows(at, scores, slopes, causal=False)
            return
        b = self.b
        last = b.add(at.key, at.count)
        crosses = b.compare("icmp sgt", last, b.add(b.add(at.row, at.offset), b.i64(1)))
        b.either(
            crosses,
            lambda: self._rows(at, scores, slopes, causal=True),
            lambda: self._rows(at, scores, slopes, causal=False),
        )

    def _rows(self, at: Rows, scores: Operand, slopes: Operand, *, causal: bool) -> None:
        b, keys = self.b, self.plan.blocks.keys

        def line(row: Operand, _: list[Operand]) -> list[Operand]:
            powers, more = self._row(at, row, scores, slopes, causal=causal)
            start = b.scale(row, keys)
            for v, (power, slope) in enumerate(zip(powers, more, strict=True)):
                index = b.add(start, b.i64(v * self.kind.lanes))
                b.store(power, b.address(scores, "float", index))
                b.store(slope, b.address(slopes, "float", index))
            return []

        if not self.plan.pairs:
            b.loop(b.i64(0), at.rows, 1, [], line)
            return
        even = b.binary("and", at.rows, b.i64(-2))

        def two(row: Operand, _: list[Operand]) -> list[Operand]:
            first = self._row(at, row, scores, slopes, causal=causal)
            second = self._row(at, b.add(row, b.i64(1)), scores, slopes, causal=causal)
            self._pair(row, first, second)
            return []

        def one(row: Operand, _: list[Operand]) -> list[Operand]:
            none = [constant(self.kind, 0.0)] * self.plan.vectors
            self._pair(row, self._row(at, row, scores, slopes, causal=causal), (none, none))
            return []

        b.loop(b.i64(0), even, 2, [], two)
        b.loop(even, at.rows, 1, [], one)

    def _row(
        self, at: Rows, row: Operand, scores: Operand, slopes: Operand, *, causal: bool
    ) -> tuple[list[Operand], list[Operand]]:
        """Return the powers and slopes of a row, by vectors of keys."""
        b, lanes = self.b, self.kind.lanes
        line = self._line(at, row, causal=causal)
        powers: list[Operand] = []
        row_slopes: list[Operand] = []
        start = b.scale(row, self.plan.blocks.keys)
        for v in range(self.plan.vectors):
            index = b.add(start, b.i64(v * lanes))
            score = b.load(self.kind, b.address(scores, "float", index))
            gradient = b.load(self.kind, b.address(slopes, "float", index))
            power = self._power(at, row, v, score, line)
            powers.append(power)
            rest = b.fma(gradient, constant(self.kind, self.form.scale), line.delta)
            row_slopes.append(b.binary("fmul", power, rest))
        return powers, row_slopes

    def _line(self, at: Rows, row: Operand, *, causal: bool) -> Line:
        b, lanes, scalar = self.b, self.kind.lanes, Type("float")
        row = b.add(at.row, row)
        sums = b.load(scalar, self.writer.first("sums", at.indices, row))
        minus = b.binary("fmul", sums, constant(scalar, -LOG2E))
        empty = b.compare("fcmp oeq", sums, constant(scalar, NEVER))
        minus = b.splat(b.select(empty, constant(scalar, NEVER), minus), lanes)
        delta = b.load(scalar, self.writer.first("delta", at.indices, row))
        delta = b.splat(b.binary("fmul", delta, constant(scalar, -self.form.scale)), lanes)
        if not causal or at.offset is None:
            return Line(minus, delta, None)
        last = b.binary("sub nsw", b.add(row, at.offset), at.key)
        return Line(minus, delta, b.splat(b.convert("trunc", last, "i32"), lanes))

    def _power(self, at: Rows, row: Operand, v: int, score: Operand, line: Line) -> Operand:
        b, kind, mask = self.b, self.kind, self.form.places.get("mask")
        x = b.fma(score, constant(kind, self.form.scale * LOG2E), line.minus)
        seen = None
        if mask is not None:
            value = self._mask(at, b.add(at.row, row), v)
            if mask.dtype == "i1":
                seen = value
            else:
                x = masked(b, value, x)
                # What a mask adds may round a score to more than its log-sum.
                zero = constant(kind, 0.0)
                x = b.select(b.compare("fcmp ogt", x, zero), zero, x)
        power = power_of_two(b, x)
        if line.last is not None:
            lanes = b.binary("add", b.iota(Type("i32", kind.lanes)), constant(
                Type("i32", kind.lanes), v * kind.lanes))  # fmt: skip
            below = b.compare("icmp sge", line.last, lanes)
            seen = below if seen is None else b.binary("and", seen, below)
        return power if seen is None else b.select(seen, power, constant(kind, 0.0))

    def _mask(self, at: Rows, row: Operand, v: int) -> Operand:
        """Return a row's mask of a vector of keys; lanes past the last key repeat it or are 0."""
        b, place, lanes = self.b, self.form.places["mask"], self.kind.lanes
        memory, stride = MEMORY[place.dtype], place.strides[-1]
        first = self.writer.mask_address(at, row)
        if stride == 0:
            return b.splat(unpack(b, b.load(Type(memory), first), place.dtype), lanes)
        if stride == 1:
            start = b.address(first, memory, b.i64(v * lanes))
            return unpack(b, self._some(start, Type(memory, lanes), at, v), place.dtype)
        raw = Operand(Type(memory, lanes), "poison")
        last = b.binary("sub nsw", at.count, b.i64(1))
        for lane in range(lanes):
            index = b.intrinsic("smin", b.i64(v * lanes + lane), last)
            value = b.load(Type(memory), b.address(first, memory, b.scale(index, stride)))
            raw = b.insert(raw, value, lane)
        return unpack(b, raw, place.dtype)

    def _some(self, start: Operand, kind: Type, at: Rows, v: int) -> Operand:
        """Load the lanes whose keys exist."""
        b, keys, form = self.b, self.plan.blocks.keys, self.form
        if form.keys % keys == 0 and form.chunk % keys == 0:
            return b.load(kind, start)
        index = Type("i32", kind.lanes)
        places = b.binary("add", b.iota(index), constant(index, v * kind.lanes))
        count = b.splat(b.convert("trunc", at.count, "i32"), kind.lanes)
        exists = b.compare("icmp slt", places, count)
        align = constant(Type("i32"), max(kind.bits // 8, 1))
        return b.call(
            kind, f"llvm.masked.load.{kind.mangled}.p0", start, align, exists, constant(kind, 0)
        )

    def _pair(
        self,
        row: Operand,
        first: tuple[Sequence[Operand], Sequence[Operand]],
        second: tuple[Sequence[Operand], Sequence[Operand]],
    ) -> None:
        """Store two rows: in pairs of rows for what is summed over rows, by rows for the other."""
        b, keys = self.b, self.plan.blocks.keys
        powers, slopes, lines = self.writer.halves()
        start = b.scale(row, keys)
        for v in range(self.plan.vectors):
            index = b.add(start, b.i64(v * 16))
            twice = b.add(start, b.i64(v * 32))
            both = rounded(b, first[0][v], second[0][v])
            b.store(interleaved(b, both), b.address(powers, "i16", twice), align=2)
            both = rounded(b, first[1][v], second[1][v])
            b.store(interleaved(b, both), b.address(slopes, "i16", twice), align=2)
            low = b.shuffle(both, both, list(range(16)))
            high = b.shuffle(both, both, list(range(16, 32)))
            b.store(low, b.address(lines, "i16", index), align=2)
            b.store(high, b.address(lines, "i16", b.add(index, b.i64(keys))), align=2)


def rounded(b: Builder, low: Operand, high: Operand) -> Operand:
    """Round two vectors to bfloat16, one behind the other."""
    b.functions[ROUND] = f"declare {HALVES} @{ROUND}(<16 x float>, <16 x float>)"
    both = b.emit(Type("i16", 32), f"call {HALVES} @{ROUND}({high}, {low})")
    return b.emit(both.type, f"bitcast {HALVES} {both.ref} to <32 x i16>")


def interleaved(b: Builder, both: Operand) -> Operand:
    """Put the lanes of two vectors in turn."""
    return b.shuffle(both, both, [i // 2 + i % 2 * 16 for i in range(32)])
