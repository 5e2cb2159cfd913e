"""Dot products of few rows of A with columns of B that lie contiguous along k: lanes along k.

B is read once, in place, at the speed of memory; this is the matmul of a decoder's single tokens.
"""

from __future__ import annotations

from irc.backends.cpu.matmul.tile import Factor, prefetch
from irc.backends.cpu.vector.builder import I64, PTR, Builder, Operand, Type, constant
from irc.backends.cpu.vector.storage import MEMORY, unpack

AHEAD = 3
"""Groups of columns between what is multiplied and what is fetched from memory."""


def dots_function(
    b: Builder,
    symbol: str,
    kind: Type,
    shape: tuple[int, int, int],
    group: int,
    left: Factor,
    right: Factor,
) -> None:
    """Define ``void symbol(ptr a, ptr b, ptr tile, i64 valid)``.

    ``shape`` is rows, columns of the tile, and the depth; ``group`` columns are done at a time.
    Columns from ``valid`` on hold arbitrary numbers.
    """
    rows, columns, depth = shape
    f = b.child()
    a, panel, tile = (Operand(PTR, f"%{name}") for name in ("a", "b", "tile"))
    valid = Operand(I64, "%valid")
    last = f.binary("sub nsw", valid, f.i64(1))
    one = Type(kind.element)

    def read(base: Operand, factor: Factor, k: Operand, lanes: int) -> Operand:
        memory = MEMORY[factor.dtype]
        raw = f.load(Type(memory, lanes), f.address(base, memory, k))
        return unpack(f, raw, factor.dtype)

    def columns_from(first: Operand, _: list[Operand]) -> list[Operand]:
        starts = [
            f.address(
                panel,
                MEMORY[right.dtype],
                f.scale(f.intrinsic("smin", f.add(first, f.i64(j)), last), right.strides[1]),
            )
            for j in range(group)
        ]
        lines = [f.address(a, MEMORY[left.dtype], f.i64(i * left.strides[0])) for i in range(rows)]

        def step(k: Operand, totals: list[Operand]) -> list[Operand]:
            lanes = totals[0].type.lanes
            if lanes > 1:
                # The rows of later groups lie behind these: each step asks for its share.
                for start in starts:
                    at = f.add(k, f.i64(AHEAD * group * right.strides[1]))
                    prefetch(f, f.address(start, MEMORY[right.dtype], at), 2)
            xs = [read(line, left, k, lanes) for line in lines]
            ys = [read(start, right, k, lanes) for start in starts]
            return [
                f.fma(x, y, totals[i * group + j])
                for i, x in enumerate(xs)
                for j, y in enumerate(ys)
            ]

        whole = depth - depth % kind.lanes
        totals = [constant(kind, 0.0) for _ in range(rows * group)]
        totals = f.loop(f.i64(0), f.i64(whole), kind.lanes, totals, step)
        sums = [add_lanes(f, total) for total in totals]
        if whole != depth:
            sums = f.loop(f.i64(whole), f.i64(depth), 1, sums, step)
        for i in range(rows):
            for j in range(group):
                at = f.add(f.i64(i * columns + j), first)
                f.store(sums[i * group + j], f.address(tile, one.element, at))
        return []

    f.loop(f.i64(0), valid, group, [], columns_from)
    f.do("ret void")
    params = f"ptr %a, ptr %b, ptr %tile, i64 %valid{b.size_argument}"
    b.functions[symbol] = f.function(f"define internal void @{symbol}({params}) noinline")


def add_lanes(b: Builder, total: Operand) -> Operand:
    """Return the sum of the lanes, by halves."""
    width = total.type.lanes
    while width > 2:
        width //= 2
        low = b.shuffle(total, total, range(width))
        high = b.shuffle(total, total, range(width, 2 * width))
        total = b.binary("fadd", low, high)
    if width == 1:
        return total
    return b.binary("fadd", b.lane(total, 0), b.lane(total, 1))
