"""Register tiles of bytes times bytes, summed in i32.

Four products of a column and their sum are one instruction (VNNI); machines without it widen to
i32. A panel's columns read the same bytes of x, or in a grouped convolution those of their groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from irc.backends.cpu.features import Features
from irc.backends.cpu.vector.builder import PTR, Builder, Operand, Type, constant
from irc.kernels.quantized.loads import LANES, QUAD

WORDS = Type("i32", LANES)
MOST_AT_ONCE = LANES
"""Words of x that one load takes for several groups."""


@dataclass(frozen=True)
class Reads:
    """How a tile reads x.

    Attributes:
        sums: (size, stride of x) of the summed dims; the last has stride 1 and a multiple of 4.
        pitch: bytes from row to row.
        panel: bytes from panel to panel of columns; 0 where all read the same.
        groups: of how many groups of channels the columns of a panel are.
        step: bytes from group to group.
    """

    sums: Sequence[tuple[int, int]]
    pitch: int
    panel: int = 0
    groups: int = 1
    step: int = 0

    @property
    def at_once(self) -> int:
        """Words of each group that one load takes: its run, where those of groups follow."""
        words = self.sums[-1][0] // QUAD
        beside = self.groups > 1 and self.step == QUAD * words
        return words if beside and self.groups * words <= MOST_AT_ONCE else 1

    def words(self, f: Builder, at: Operand) -> list[Operand]:
        """Load the next words of each column's group: scalars, or vectors of one word a column."""
        if self.groups == 1:
            return [f.load(Type("i32"), at, 1)]
        count, each = self.groups * self.at_once, LANES // self.groups
        if self.step == QUAD * self.at_once:
            near = f.load(Type("i32", count), at, 1)
        else:
            near = constant(Type("i32", count), 0)
            for g in range(self.groups):
                place = f.address(at, "i8", f.i64(g * self.step))
                near = f.insert(near, f.load(Type("i32"), place, 1), g)
        return [
            f.shuffle(near, near, [lane // each * self.at_once + j for lane in range(LANES)])
            for j in range(self.at_once)
        ]


def dot_function(
    b: Builder, symbol: str, features: Features, shape: tuple[int, int], x: Reads, panels: int
) -> None:
    """Define ``void symbol(ptr x, ptr w, ptr tile)``: bytes times bytes.

    Args:
        b: whose functions it joins.
        symbol: its name.
        features: whether there is an instruction for it.
        shape: rows, and panels of columns.
        x: how it is read.
        panels: bytes from panel to panel of the weight.
    """
    rows, count = shape
    f = b.child()
    start, w, tile = (Operand(PTR, f"%{n}") for n in ("x", "w", "tile"))

    def run(at: Operand, weight: Operand, totals: list[Operand]) -> list[Operand]:
        def words(i: Operand, totals: list[Operand]) -> list[Operand]:
            skip, after = f.add(weight, f.scale(i, LANES)), list(totals)
            columns = [
                [
                    f.load(WORDS, f.address(w, "i8", f.add(skip, f.i64(p * panels + j * 64))))
                    for j in range(x.at_once)
                ]
                for p in range(count)
            ]
            for r in range(rows):
                place = f.address(start, "i8", f.add(f.add(at, i), f.i64(r * x.pitch)))
                read = x.words(f, place)
                for p in range(count):
                    if p and x.panel:
                        read = x.words(f, f.address(place, "i8", f.i64(p * x.panel)))
                    for four, column in zip(read, columns[p], strict=True):
                        slot = r * count + p
                        after[slot] = dot(f, features, four, column, after[slot])
            return after

        return f.loop(f.i64(0), f.i64(x.sums[-1][0]), QUAD * x.at_once, totals, words)

    def walk(level: int, at: Operand, weight: Operand, totals: list[Operand]) -> list[Operand]:
        if level == len(x.sums) - 1:
            return run(at, weight, totals)
        size, stride = x.sums[level]
        below = LANES
        for inner, _ in x.sums[level + 1 :]:
            below *= inner

        def tap(i: Operand, totals: list[Operand]) -> list[Operand]:
            inner_at = f.add(at, f.scale(i, stride))
            return walk(level + 1, inner_at, f.add(weight, f.scale(i, below)), totals)

        return f.loop(f.i64(0), f.i64(size), 1, totals, tap)

    zero = [constant(WORDS, 0) for _ in range(rows * count)]
    for i, total in enumerate(walk(0, f.i64(0), f.i64(0), zero)):
        f.store(total, f.address(tile, "i32", f.i64(i * LANES)))
    f.do("ret void")
    b.functions[symbol] = f.function(
        f"define internal void @{symbol}(ptr %x, ptr %w, ptr %tile) noinline"
    )


def has_dots(features: Features) -> bool:
    """True where four products of bytes and their sum are one instruction."""
    return "+avx512vnni" in features.flags.split(",")


def dot(f: Builder, features: Features, four: Operand, weights: Operand, total: Operand) -> Operand:
    """Add to each lane the products of four u8 and four i8; one word of u8 is for all lanes."""
    if has_dots(features):
        quads = Type("i8", LANES * QUAD)
        left = f.emit(quads, f"bitcast {f.splat(four, LANES)} to {quads}")
        right = f.emit(quads, f"bitcast {weights} to {quads}")
        return f.call(WORDS, "llvm.x86.avx512.vpdpbusd.512", total, left, right)
    for byte in range(QUAD):
        up = f.binary("shl", weights, constant(WORDS, 24 - 8 * byte))
        signed = f.binary("ashr", up, constant(WORDS, 24))
        down = f.binary("lshr", four, constant(four.type, 8 * byte))
        plain = f.splat(f.binary("and", down, constant(four.type, 255)), LANES)
        total = f.binary("add", total, f.binary("mul", plain, signed))
    return total
