"""Copies of rows of floats, whose length is known when code is written."""

from __future__ import annotations

from collections.abc import Callable

from irc.backends.cpu.vector.builder import Builder, Operand, Type, constant
from irc.ops.recurrent import UNIT


def less(b: Builder, x: Operand, y: Operand) -> Operand:
    """Append an i64 difference, folding literals."""
    if y.literal == 0:
        return x
    if x.literal is not None and y.literal is not None:
        return b.i64(int(x.literal - y.literal))
    return b.binary("sub nsw", x, y)


def copy(b: Builder, source: Operand, target: Operand, count: int) -> None:
    """Append a copy of floats: a loop over whole vectors, then the powers of two that are left."""

    def some(at: Operand, lanes: int) -> None:
        value = b.load(Type("float", lanes), b.address(source, "float", at))
        b.store(value, b.address(target, "float", at))

    _pieces(b, count, some)


def fill(b: Builder, target: Operand, count: int) -> None:
    """Append zeros."""
    _pieces(
        b,
        count,
        lambda at, lanes: b.store(
            constant(Type("float", lanes), 0.0), b.address(target, "float", at)
        ),
    )


def _pieces(b: Builder, count: int, some: Callable[[Operand, int], None]) -> None:
    whole = count // UNIT * UNIT

    def vector(at: Operand, _: list[Operand]) -> list[Operand]:
        some(at, UNIT)
        return []

    if whole == UNIT:
        some(b.i64(0), UNIT)
    elif whole:
        b.loop(b.i64(0), b.i64(whole), UNIT, [], vector)
    while whole < count:
        lanes = 1 << (count - whole).bit_length() - 1
        some(b.i64(whole), lanes)
        whole += lanes
