"""The register tile: rows of A times columns of B, accumulated in vector registers.

    for k: for each row i: for each vector j: acc[i][j] += a[i, k] * b[k][j]

Strides are constants of the code. B is a packed panel, or B itself where few rows read it once.
"""

from __future__ import annotations

from dataclasses import dataclass

from irc.backends.cpu.builder import PTR, Builder, Operand, Type, constant
from irc.backends.cpu.storage import MEMORY, unpack

UNROLL = 2


@dataclass(frozen=True)
class Factor:
    """How a tile reads A (strides of its rows and of k) or B (strides of k and of n).

    Attributes:
        dtype: of the elements in memory.
        strides: see above.
        ahead: how many elements ahead B is prefetched.
    """

    dtype: str
    strides: tuple[int, int]
    ahead: int = 0


def tile_function(
    b: Builder,
    symbol: str,
    kind: Type,
    shape: tuple[int, int, int],
    left: Factor,
    right: Factor,
) -> None:
    """Define ``void symbol(ptr a, ptr b, ptr tile)``: ``tile[rows][vectors] = A * B``.

    ``shape`` is rows, vectors of columns, and the depth of the sum.
    """
    rows, vectors, depth = shape
    f = b.child()
    start, panel, tile = (Operand(PTR, f"%{name}") for name in ("a", "b", "tile"))
    memory_a, memory_b = MEMORY[left.dtype], MEMORY[right.dtype]

    def columns(k: Operand) -> list[Operand]:
        at = f.address(panel, memory_b, f.scale(k, right.strides[0]))
        places = [f.address(at, memory_b, f.i64(j * kind.lanes)) for j in range(vectors)]
        if right.ahead:
            for place in places[: 1 if right.strides[0] == vectors * kind.lanes else None]:
                prefetch(f, f.address(place, memory_b, f.i64(right.ahead)))
        return [unpack(f, f.load(Type(memory_b, kind.lanes), p), right.dtype) for p in places]

    def step(k: Operand, totals: list[Operand]) -> list[Operand]:
        vector = columns(k)
        base = f.scale(k, left.strides[1])
        after: list[Operand] = []
        for i in range(rows):
            at = f.address(start, memory_a, f.add(base, f.i64(i * left.strides[0])))
            value = unpack(f, f.load(Type(memory_a), at), left.dtype)
            factor = f.splat(value, kind.lanes)
            row = totals[i * vectors : (i + 1) * vectors]
            after += [f.fma(factor, x, t) for x, t in zip(vector, row, strict=True)]
        return after

    def body(k: Operand, totals: list[Operand]) -> list[Operand]:
        for offset in range(UNROLL):
            totals = step(f.add(k, f.i64(offset)), totals)
        return totals

    totals = [constant(kind, 0.0) for _ in range(rows * vectors)]
    main = depth - depth % UNROLL
    totals = f.loop(f.i64(0), f.i64(main), UNROLL, totals, body)
    if main != depth:
        totals = step(f.i64(main), totals)
    for i, total in enumerate(totals):
        f.store(total, f.address(tile, kind.element, f.i64(i * kind.lanes)))
    f.do("ret void")
    header = f"define internal void @{symbol}(ptr %a, ptr %b, ptr %tile) noinline"
    b.functions[symbol] = f.function(header)


def prefetch(b: Builder, at: Operand) -> None:
    """Ask for a cache line that will be read."""
    i32 = Type("i32")
    b.invoke("llvm.prefetch.p0", at, constant(i32, 0), constant(i32, 3), constant(i32, 1))
