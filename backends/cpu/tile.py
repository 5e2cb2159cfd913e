"""The register tile: rows of A times a packed panel of B, accumulated in vector registers.

    for k: for each row i: for each vector j: acc[i][j] += a[i, k] * panel[k][j]

A's strides are constants of the code; the panel is contiguous in the order that it is read.
"""

from __future__ import annotations

from irc.backends.cpu.builder import PTR, Builder, Operand, Type, constant

UNROLL = 2
AHEAD = 512


def tile_function(
    b: Builder,
    symbol: str,
    kind: Type,
    rows: int,
    vectors: int,
    a_strides: tuple[int, int],
    panel_stride: int,
    depth: int,
) -> None:
    """Define ``void symbol(ptr a, ptr panel, ptr tile)``: ``tile[rows][vectors] = A * panel``."""
    f = b.child()
    a, panel, tile = (Operand(PTR, f"%{name}") for name in ("a", "panel", "tile"))
    totals = [constant(kind, 0.0) for _ in range(rows * vectors)]

    def step(k: Operand, totals: list[Operand], offset: int) -> list[Operand]:
        k = f.add(k, f.i64(offset))
        at = f.address(panel, kind.element, f.scale(k, panel_stride))
        columns = [
            f.load(kind, f.address(at, kind.element, f.i64(j * kind.lanes))) for j in range(vectors)
        ]
        start = f.scale(k, a_strides[1])
        after: list[Operand] = []
        for i in range(rows):
            place = f.address(a, kind.element, f.add(start, f.i64(i * a_strides[0])))
            factor = f.splat(f.load(Type(kind.element), place), kind.lanes)
            row = totals[i * vectors : (i + 1) * vectors]
            after += [f.fma(factor, x, t) for x, t in zip(columns, row, strict=True)]
        return after

    def body(k: Operand, totals: list[Operand]) -> list[Operand]:
        for offset in range(UNROLL):
            ahead = f.add(f.scale(k, panel_stride), f.i64(offset * panel_stride + AHEAD))
            prefetch(f, f.address(panel, kind.element, ahead))
            totals = step(k, totals, offset)
        return totals

    main = depth - depth % UNROLL
    totals = f.loop(f.i64(0), f.i64(main), UNROLL, totals, body)
    if main != depth:
        totals = f.loop(f.i64(main), f.i64(depth), 1, totals, lambda k, t: step(k, t, 0))
    for i, total in enumerate(totals):
        f.store(total, f.address(tile, kind.element, f.i64(i * kind.lanes)), kind.bits // 8)
    f.do("ret void")
    header = f"define internal void @{symbol}(ptr %a, ptr %panel, ptr %tile) noinline"
    b.functions[symbol] = f.function(header)


def prefetch(b: Builder, at: Operand) -> None:
    """Ask for a cache line that will be read."""
    i32 = Type("i32")
    flags = (constant(i32, 0), constant(i32, 3), constant(i32, 1))
    b.invoke("llvm.prefetch.p0", at, *flags)

