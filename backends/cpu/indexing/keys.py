"""Numbers as unsigned integers of the same order: what sorting compares.

A float's bits are in order once those of negative numbers are turned over and the sign of the
others is set. Both zeros get one key, and every NaN the largest, as torch has it. Going down, all
bits are turned over: what was largest comes first, and equals stay equal.
"""

from __future__ import annotations

from collections.abc import Mapping

from irc.backends.cpu.vector.builder import Builder, Operand, Type, constant
from irc.backends.cpu.vector.storage import MEMORY

INFINITY: Mapping[str, int] = {
    "f64": 0x7FF0000000000000, "f32": 0x7F800000, "f16": 0x7C00, "bf16": 0x7F80,
}  # fmt: skip
"""The bits of infinity: a NaN's magnitude is above."""
UNSIGNED = ("u8", "i1")


def key_type(dtype: str, lanes: int = 1) -> Type:
    """Return the type of the keys of a dtype: as wide as it is in memory."""
    return Type(f"i{Type(MEMORY[dtype]).bits}", lanes)


def key_of(b: Builder, bits: Operand, dtype: str, *, descending: bool) -> Operand:
    """Return the keys of elements, given as the integers that they are in memory."""
    kind = bits.type
    ones, top = constant(kind, -1), constant(kind, 1 << (kind.bits - 1))
    if dtype in INFINITY:
        magnitude = b.binary("and", bits, constant(kind, (1 << (kind.bits - 1)) - 1))
        zero = b.compare("icmp eq", magnitude, constant(kind, 0))
        lost = b.compare("icmp ugt", magnitude, constant(kind, INFINITY[dtype]))
        bits = b.select(zero, constant(kind, 0), bits)
        sign = b.binary("ashr", bits, constant(kind, kind.bits - 1))
        key = b.select(lost, ones, b.binary("xor", bits, b.binary("or", sign, top)))
    elif dtype in UNSIGNED:
        key = bits
    else:
        key = b.binary("xor", bits, top)
    return b.binary("xor", key, ones) if descending else key
