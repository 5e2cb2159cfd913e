"""Instructions on tile registers.

A core has eight tiles of up to 16 rows of 64 bytes. One instruction adds a product of tiles: 16
rows of A (32 bfloat16, or 64 bytes, of a sum) times 16 columns of B whose rows lie in pairs of
bfloat16 or in fours of bytes, into 16 x 16 sums (Intel 64 and IA-32 Architectures Software
Developer's Manual, volume 1, chapter 18). Registers are named by literals: the code says which tile
holds what.

Tiles belong to a thread. A kernel configures them where it begins and releases them where it ends;
what it calls may configure them anew if it puts the kernel's own configuration back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from irc.backends.cpu.vector.builder import PTR, Builder, Operand, Type, constant

ROWS = 16
ROW_BYTES = 64
TILES = 8
CONFIGURATION_BYTES = 64
_ROW_BYTES_AT, _ROWS_AT = 16, 48
"""Where in a configuration the bytes of each tile's rows (u16) and its number of rows (u8) lie."""

Dot: TypeAlias = Literal["bf16ps", "bssd", "bsud", "busd", "buud"]
"""Of pairs of bfloat16, or of fours of bytes: signed or unsigned, A's first, then B's."""


@dataclass(frozen=True)
class Shape:
    """The shape of one tile: rows, which code may compute, and bytes of a row."""

    rows: int | Operand = ROWS
    row_bytes: int = ROW_BYTES


def configuration(shapes: Sequence[Shape]) -> bytes:
    """Return the configuration of tiles 0, 1, ... as LDTILECFG reads it (palette 1).

    Rows that code computes are 0 here.

    >>> list(configuration([Shape(3, 8)])[:18]), configuration([Shape(3, 8)])[48]
    ([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0], 3)
    """
    data = bytearray(CONFIGURATION_BYTES)
    data[0] = 1
    for number, shape in enumerate(shapes):
        at = _ROW_BYTES_AT + 2 * number
        data[at : at + 2] = shape.row_bytes.to_bytes(2, "little")
        data[_ROWS_AT + number] = shape.rows if isinstance(shape.rows, int) else 0
    return bytes(data)


def configure(b: Builder, shapes: Sequence[Shape]) -> None:
    """Configure the tiles; what they held is lost. A tile has at least one row."""
    data = configuration(shapes)
    name = f"irc.tiles.{data.hex().rstrip('0')}"
    text = "".join(f"\\{byte:02x}" for byte in data)
    size = CONFIGURATION_BYTES
    b.functions[name] = (
        f'@"{name}" = private unnamed_addr constant [{size} x i8] c"{text}", align 64'
    )
    at = Operand(PTR, f'@"{name}"')
    computed = [(i, s.rows) for i, s in enumerate(shapes) if isinstance(s.rows, Operand)]
    if computed:
        own = Operand(PTR, b.fresh())
        b.entry.append(f"  {own.ref} = alloca [{size} x i8], align 64")
        b.store(b.load(Type("i8", size), at), own)
        for number, rows in computed:
            place = b.address(own, "i8", b.i64(_ROWS_AT + number))
            b.store(b.convert("trunc", rows, "i8"), place)
        at = own
    b.invoke("llvm.x86.ldtilecfg", at)


def release(b: Builder) -> None:
    """Give the tiles back: a thread that holds none is cheap to switch."""
    b.invoke("llvm.x86.tilerelease")


def zero(b: Builder, tile: int) -> None:
    """Set a tile to zeros."""
    b.invoke("llvm.x86.tilezero", _number(tile))


def load(b: Builder, tile: int, at: Operand, stride: Operand) -> None:
    """Load a tile whose rows lie ``stride`` bytes apart."""
    b.invoke("llvm.x86.tileloadd64", _number(tile), at, stride)


def store(b: Builder, tile: int, at: Operand, stride: Operand) -> None:
    """Store a tile, rows ``stride`` bytes apart."""
    b.invoke("llvm.x86.tilestored64", _number(tile), at, stride)


def dot(b: Builder, kind: Dot, total: int, left: int, right: int) -> None:
    """Add to tile ``total`` the product of two tiles."""
    b.invoke(f"llvm.x86.tdp{kind}", _number(total), _number(left), _number(right))


def _number(tile: int) -> Operand:
    if not 0 <= tile < TILES:
        raise ValueError(f"there is no tile {tile}")
    return constant(Type("i8"), tile)
