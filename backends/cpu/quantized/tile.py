"""Register tiles of floats times packed integer weights.

Words stream from memory, each weight becomes a float in a register (4 bits
look up a table of bfloat16, two at a time: one permutation, as the shifted word's higher bits do
not count) and meets all rows; a group's sum is scaled once (MARLIN, arXiv:2408.11743, keeps
nibbles likewise in the order in which they are used).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from irc.backends.cpu.vector.builder import PTR, Builder, Operand, Type, constant
from irc.kernels.quantized.loads import LANES, NIBBLES

FLOATS, WORDS = Type("float", LANES), Type("i32", LANES)


@dataclass(frozen=True)
class Weights:
    """How a tile reads weights of 4 or 8 bits.

    Attributes:
        form: ``nibbles`` or ``bytes``.
        signed: of bytes.
        middle: the literal that is subtracted.
        zeros: whether each group has a zero point of its own.
        groups: of a column.
        depth: weights of a column.
        tables: permutations look up floats by the low 4 bits (AVX-512).
    """

    form: str
    signed: bool
    middle: float
    zeros: bool
    groups: int
    depth: int
    tables: bool

    @property
    def group(self) -> int:
        """Weights that share a scale."""
        return self.depth // self.groups

    @property
    def panel(self) -> int:
        """Elements of a panel."""
        return LANES * self.depth // (NIBBLES if self.form == "nibbles" else 1)

    def eight(self, f: Builder, w: Operand, k: Operand) -> list[Operand]:
        """Load the weights of k..k+7 of a panel as floats, less ``middle``."""
        if self.form == "nibbles":
            # A word of every column lies where eight bytes of two columns would.
            at = f.address(w, "i32", f.scale(k, LANES // NIBBLES))
            word = f.load(WORDS, at)
            if self.tables and (table := bfloat_table(self.middle)) is not None:
                return _looked_up(f, word, table)
            return [self._nibble(f, word, j) for j in range(NIBBLES)]
        weights: list[Operand] = []
        for j in range(NIBBLES):
            at = f.address(w, "i8", f.scale(f.add(k, f.i64(j)), LANES))
            wide = f.convert(
                "sext" if self.signed else "zext", f.load(Type("i8", LANES), at), "i32"
            )
            weights.append(self._less(f, f.convert("sitofp", wide, "float")))
        return weights

    def _nibble(self, f: Builder, word: Operand, j: int) -> Operand:
        shifted = f.binary("lshr", word, constant(WORDS, 4 * j)) if j else word
        low = f.binary("and", shifted, constant(WORDS, 15))
        return self._less(f, f.convert("sitofp", low, "float"))

    def _less(self, f: Builder, value: Operand) -> Operand:
        if not self.middle:
            return value
        return f.binary("fsub", value, constant(FLOATS, self.middle))


def bfloat_table(middle: float) -> list[int] | None:
    """Return the bits of ``i - middle`` as bfloat16, i from 0 to 15; None where one is rounded.

    >>> [hex(bits) for bits in (bfloat_table(8.0) or [])[7:10]], bfloat_table(0.1)
    (['0xbf80', '0x0', '0x3f80'], None)
    """
    bits = [struct.unpack("I", struct.pack("f", i - middle))[0] for i in range(16)]
    exact = all(
        struct.unpack("f", struct.pack("I", b))[0] == i - middle for i, b in enumerate(bits)
    )
    return [b >> 16 for b in bits] if exact and not any(b & 0xFFFF for b in bits) else None


def _looked_up(f: Builder, word: Operand, table: list[int]) -> list[Operand]:
    """Turn eight nibbles of each lane into floats: one permutation gives the two of 16 bits' shift.

    Its indices are 5 bits, so the table stands twice.
    """
    halves = Type("i16", 2 * LANES)
    entries = Operand(halves, "<" + ", ".join(f"i16 {bits}" for bits in table * 2) + ">")
    index = f.emit(halves, f"bitcast {word} to {halves}")
    low: list[Operand] = []
    high: list[Operand] = []
    for j in range(NIBBLES // 2):
        shifted = f.binary("lshr", index, constant(halves, 4 * j)) if j else index
        looked_up = f.call(halves, "llvm.x86.avx512.permvar.hi.512", entries, shifted)
        pair = f.emit(WORDS, f"bitcast {looked_up} to {WORDS}")
        low.append(f.convert("bitcast", f.binary("shl", pair, constant(WORDS, 16)), "float"))
        top = f.binary("and", pair, constant(WORDS, 0xFFFF0000))
        high.append(f.convert("bitcast", top, "float"))
    return [*low, *high]


def skinny_function(
    b: Builder, symbol: str, weights: Weights, shape: tuple[int, int], pitch: int, panels: int
) -> None:
    """Define ``void symbol(ptr x, ptr w, ptr scales, ptr zeros, ptr tile)``: few rows.

    Args:
        b: whose functions it joins.
        symbol: its name.
        weights: how they lie.
        shape: rows, and panels of columns.
        pitch: floats from row to row of x.
        panels: elements from panel to panel.
    """
    rows, count = shape
    f = b.child()
    x, w, scales, zeros, tile = (
        Operand(PTR, f"%{n}") for n in ("x", "w", "scales", "zeros", "tile")
    )
    memory = "i32" if weights.form == "nibbles" else "i8"
    starts = [f.address(w, memory, f.i64(p * panels)) for p in range(count)]
    # A sum waits for the one before it: with few of them, odd and even k have their own.
    chains = 2 if rows * count <= 4 else 1

    def of_group(base: Operand, p: int, g: Operand) -> Operand:
        at = f.add(f.scale(g, LANES), f.i64(p * weights.groups * LANES))
        return f.load(FLOATS, f.address(base, "float", at))

    def group(g: Operand, totals: list[Operand]) -> list[Operand]:
        start = f.scale(g, weights.group)
        less = [of_group(zeros, p, g) for p in range(count)] if weights.zeros else []

        def eight(i: Operand, sums: list[Operand]) -> list[Operand]:
            k, after = f.add(start, i), list(sums)
            for p in range(count):
                for j, weight in enumerate(weights.eight(f, starts[p], k)):
                    if less:
                        weight = f.binary("fsub", weight, less[p])
                    for r in range(rows):
                        at = f.address(x, "float", f.add(k, f.i64(r * pitch + j)))
                        factor = f.splat(f.load(Type("float"), at), LANES)
                        slot = (r * count + p) * chains + j % chains
                        after[slot] = f.fma(factor, weight, after[slot])
            return after

        zero = [constant(FLOATS, 0.0) for _ in range(rows * count * chains)]
        sums = f.loop(f.i64(0), f.i64(weights.group), NIBBLES, zero, eight)
        if chains == 2:
            sums = [f.binary("fadd", sums[i], sums[i + 1]) for i in range(0, len(sums), 2)]
        scale = [of_group(scales, p, g) for p in range(count)]
        return [
            f.fma(scale[i % count], s, t) for i, (s, t) in enumerate(zip(sums, totals, strict=True))
        ]

    zero = [constant(FLOATS, 0.0) for _ in range(rows * count)]
    totals = f.loop(f.i64(0), f.i64(weights.groups), 1, zero, group)
    for i, total in enumerate(totals):
        f.store(total, f.address(tile, "float", f.i64(i * LANES)))
    f.do("ret void")
    header = f"define internal void @{symbol}(ptr %x, ptr %w, ptr %scales, ptr %zeros, ptr %tile)"
    b.functions[symbol] = f.function(f"{header} noinline")


def widen_function(b: Builder, symbol: str, weights: Weights, count: int, panels: int) -> None:
    """Define ``void symbol(ptr w, ptr scales, ptr zeros, ptr panel)``: floats [k][columns]."""
    f = b.child()
    w, scales, zeros, panel = (Operand(PTR, f"%{n}") for n in ("w", "scales", "zeros", "panel"))
    memory = "i32" if weights.form == "nibbles" else "i8"

    def one(g: Operand, p: int) -> None:
        source = f.address(w, memory, f.i64(p * panels))
        at = f.add(f.scale(g, LANES), f.i64(p * weights.groups * LANES))
        scale = f.load(FLOATS, f.address(scales, "float", at))
        less = f.load(FLOATS, f.address(zeros, "float", at)) if weights.zeros else None

        def eight(i: Operand, _: list[Operand]) -> list[Operand]:
            k = f.add(f.scale(g, weights.group), i)
            for j, value in enumerate(weights.eight(f, source, k)):
                if less is not None:
                    value = f.binary("fsub", value, less)
                value = f.binary("fmul", value, scale)
                place = f.add(f.scale(f.add(k, f.i64(j)), count * LANES), f.i64(p * LANES))
                f.store(value, f.address(panel, "float", place))
            return []

        f.loop(f.i64(0), f.i64(weights.group), NIBBLES, [], eight)

    def group(g: Operand, _: list[Operand]) -> list[Operand]:
        for p in range(count):
            one(g, p)
        return []

    f.loop(f.i64(0), f.i64(weights.groups), 1, [], group)
    f.do("ret void")
    header = f"define internal void @{symbol}(ptr %w, ptr %scales, ptr %zeros, ptr %panel) noinline"
    b.functions[symbol] = f.function(header)
