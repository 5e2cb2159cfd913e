"""Rows of floats rounded to bytes by their range, as ``DynamicQuantizeLinear`` of ONNX says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from irc.backends.cpu.vector.builder import Builder, Operand, Type, constant
from irc.ops.recurrent import UNIT

FLOATS, WORDS = Type("float", UNIT), Type("i32", UNIT)
GRID_WORDS = 2
"""Words that a grid takes in memory."""


@dataclass(frozen=True)
class Grid:
    """What bytes stand for: ``(byte - zero) * step``; a float32 and an i32."""

    step: Operand
    zero: Operand

    def store(self, b: Builder, place: Operand) -> None:
        """Append a store of both."""
        b.store(self.step, place)
        b.store(self.zero, b.address(place, "i32", b.i64(1)))

    @staticmethod
    def load(b: Builder, place: Operand) -> Grid:
        """Append a load of both."""
        zero = b.load(Type("i32"), b.address(place, "i32", b.i64(1)))
        return Grid(b.load(Type("float"), place), zero)


def nothing() -> list[Operand]:
    """Return the bounds of no elements: zero is always in a range."""
    return [constant(FLOATS, 0.0)] * 3


def bounds(b: Builder, row: Operand, count: int, known: list[Operand]) -> list[Operand]:
    """Append the least and the greatest of a row's floats, by lanes, and of those that are known.

    The third value is NaN where one of the floats is, else 0.

    Args:
        b: where to write.
        row: the address of the first.
        count: how many there are.
        known: of :func:`nothing` or of this.
    """

    def wider(at: Operand, carried: list[Operand]) -> list[Operand]:
        x = b.load(FLOATS, b.address(row, "float", at))
        return _wider(b, x, carried)

    whole = count // UNIT * UNIT
    known = b.loop(b.i64(0), b.i64(whole), UNIT, known, wider) if whole else known
    if whole == count:
        return known
    if whole:
        return wider(b.i64(count - UNIT), known)  # some once more

    def one(at: Operand, carried: list[Operand]) -> list[Operand]:
        x = b.splat(b.load(Type("float"), b.address(row, "float", at)), UNIT)
        return _wider(b, x, carried)

    return b.loop(b.i64(0), b.i64(count), 1, known, one)


def _wider(b: Builder, x: Operand, known: list[Operand]) -> list[Operand]:
    low, high, unknown = known
    return [
        b.select(b.compare("fcmp olt", x, low), x, low),
        b.select(b.compare("fcmp ogt", x, high), x, high),
        b.select(b.compare("fcmp uno", x, x), x, unknown),
    ]


def grid(b: Builder, known: list[Operand]) -> Grid:
    """Append the grid of 256 numbers over a range; one with NaN in it stands for NaN."""
    scalar, (*ends, unknown) = Type("float"), known
    low, high = (
        b.call(scalar, f"llvm.vector.reduce.{name}.v{UNIT}f32", value, flags="nnan ")
        for name, value in zip(("fmin", "fmax"), ends, strict=True)
    )
    start, name = constant(scalar, 0.0), f"llvm.vector.reduce.fadd.v{UNIT}f32"
    unknown = b.call(scalar, name, start, unknown, flags="reassoc ")
    each = b.binary("fdiv", b.binary("fsub", high, low), constant(scalar, 255.0))
    step = b.select(b.compare("fcmp ogt", high, low), each, constant(scalar, 1.0))
    step = b.binary("fadd", step, unknown)
    zero = b.binary("fdiv", b.emit(scalar, f"fneg {low}"), step)
    return Grid(step, b.convert("fptosi", b.intrinsic("rint", _held(b, zero)), "i32"))


def round_row(b: Builder, source: Operand, target: Operand, count: int, used: Grid) -> Operand:
    """Append a row's bytes, and return their sum as an i32.

    Args:
        b: where to write.
        source: the address of the first float.
        target: where the first byte goes.
        count: how many there are.
        used: what they are to stand for.
    """
    zero = b.convert("sitofp", used.zero, "float")

    def rounded(at: Operand, lanes: int) -> Operand:
        x = b.load(Type("float", lanes), b.address(source, "float", at))
        steps = b.intrinsic("rint", b.binary("fdiv", x, b.splat(used.step, lanes)))
        held = _held(b, b.binary("fadd", steps, b.splat(zero, lanes)))
        words = b.convert("fptosi", held, "i32")
        b.store(b.convert("trunc", words, "i8"), b.address(target, "i8", at))
        return words

    def some(at: Operand, carried: list[Operand]) -> list[Operand]:
        return [b.binary("add", carried[0], rounded(at, UNIT))]

    whole = count // UNIT * UNIT
    (words,) = b.loop(b.i64(0), b.i64(whole), UNIT, [constant(WORDS, 0)], some)
    total = _total(b, words)
    while whole < count:
        lanes = 1 << (count - whole).bit_length() - 1
        total = b.binary("add", total, _total(b, rounded(b.i64(whole), lanes)))
        whole += lanes
    return total


def _total(b: Builder, words: Operand) -> Operand:
    """Append the sum of all lanes."""
    if words.type.lanes == 1:
        return words
    return b.call(Type("i32"), f"llvm.vector.reduce.add.{words.type.mangled}", words)


def _held(b: Builder, x: Operand) -> Operand:
    """Append x between 0 and 255; NaN is 0."""
    least, most = constant(x.type, 0.0), constant(x.type, 255.0)
    x = b.select(b.compare("fcmp ogt", x, least), x, least)
    return b.select(b.compare("fcmp olt", x, most), x, most)


def each_row(b: Builder, count: Operand, write: Callable[[Operand], None]) -> None:
    """Append a loop over rows."""

    def one(i: Operand, _: list[Operand]) -> list[Operand]:
        write(i)
        return []

    b.loop(b.i64(0), count, 1, [], one)
