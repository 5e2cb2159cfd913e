"""The register tile of a weight whose rows lie in pairs: bfloat16, ``[k / 2][columns][2]``.

    for pair of k: for each row i: for each vector j: acc[i][j] += a[i, 2 k] * b[j][0]
                                                                 + a[i, 2 k + 1] * b[j][1]

Where the machine has dot products of pairs (VDPBF16PS) and A is bfloat16 too, that is one
instruction; it treats denormals as zeros. Elsewhere the pairs are parted into two float vectors.
"""

from __future__ import annotations

from collections.abc import Callable

from irc.backends.cpu.matmul.tile import LINE, Factor, prefetch
from irc.backends.cpu.vector.builder import I32, I64, PTR, Builder, Operand, Type, constant
from irc.backends.cpu.vector.storage import MEMORY, unpack

Step = Callable[[Operand, list[Operand]], list[Operand]]


def pair_tile_function(
    b: Builder,
    symbol: str,
    shape: tuple[int, int],
    left: Factor,
    right: Factor,
    lanes: int,
    *,
    odd: bool,
    accumulate: bool,
    dots: bool,
) -> None:
    """Define ``void symbol(ptr a, ptr b, ptr tile, i64 depth)``, as tile_function does.

    Args:
        b: gets the function.
        symbol: its name.
        shape: rows, and vectors of columns.
        left: how A is read.
        right: how B is; its first stride is that of a pair, in elements.
        lanes: of a vector of float32.
        odd: the depth may be odd; B then holds zeros where there is no second row.
        accumulate: add to what the tile holds.
        dots: the machine has dot products of pairs.
    """
    rows, vectors = shape
    f = b.child()
    kind, depth = Type("float", lanes), Operand(I64, "%depth")
    tile = Operand(PTR, "%tile")
    with_dots = dots and lanes == 16 and left.dtype == "bf16" and left.strides[1] == 1
    write = _dot_step if with_dots else _parted_step
    places = [f.address(tile, "float", f.i64(i * lanes)) for i in range(rows * vectors)]
    totals = [f.load(kind, p) if accumulate else constant(kind, 0.0) for p in places]
    pairs = f.binary("lshr", depth, f.i64(1))
    totals = f.loop(f.i64(0), pairs, 1, totals, write(f, shape, left, right, lanes, whole=True))
    if odd:
        rest = f.binary("lshr", f.add(depth, f.i64(1)), f.i64(1))
        totals = f.loop(pairs, rest, 1, totals, write(f, shape, left, right, lanes, whole=False))
    for total, place in zip(totals, places, strict=True):
        f.store(total, place)
    f.do("ret void")
    more = ", ptr %next" if right.lines else ""
    params = f"ptr %a, ptr %b, ptr %tile, i64 %depth{more}{b.size_argument}"
    b.functions[symbol] = f.function(f"define internal void @{symbol}({params}) noinline")


def _columns(f: Builder, pair: Operand, vectors: int, right: Factor, lanes: int) -> list[Operand]:
    """Load a pair of rows of B: vectors of i32, the first row in the low halves."""
    panel = f.address(Operand(PTR, "%b"), "i16", f.scale(pair, right.strides[0]))
    later = f.scale(pair, right.lines * LINE)
    for line in range(right.lines):
        at = f.address(Operand(PTR, "%next"), "i8", f.add(later, f.i64(line * LINE)))
        prefetch(f, at, locality=2)
    places = [f.address(panel, "i32", f.i64(j * lanes)) for j in range(vectors)]
    for place in places if right.ahead else ():
        prefetch(f, f.address(place, "i16", f.i64(right.ahead)))
    return [f.load(Type("i32", lanes), place, align=2) for place in places]


def _dot_step(
    f: Builder, shape: tuple[int, int], left: Factor, right: Factor, lanes: int, *, whole: bool
) -> Step:
    rows, vectors = shape
    name, halves = "llvm.x86.avx512bf16.dpbf16ps.512", "<32 x bfloat>"
    f.functions[name] = f"declare <16 x float> @{name}(<16 x float>, {halves}, {halves})"

    def as_halves(value: Operand) -> str:
        return f"{halves} {f.emit(value.type, f'bitcast {value} to {halves}').ref}"

    def step(pair: Operand, totals: list[Operand]) -> list[Operand]:
        ys = [as_halves(y) for y in _columns(f, pair, vectors, right, lanes)]
        after: list[Operand] = []
        for i in range(rows):
            index = f.add(f.scale(pair, 2), f.i64(i * left.strides[0]))
            at = f.address(Operand(PTR, "%a"), "i16", index)
            both = f.load(I32, at, align=2) if whole else _zext(f, f.load(Type("i16"), at))
            x = as_halves(f.splat(both, lanes))
            row = totals[i * vectors : (i + 1) * vectors]
            after += [
                f.emit(t.type, f"call <16 x float> @{name}({t}, {x}, {y})")
                for y, t in zip(ys, row, strict=True)
            ]
        return after

    return step


def _parted_step(
    f: Builder, shape: tuple[int, int], left: Factor, right: Factor, lanes: int, *, whole: bool
) -> Step:
    rows, vectors = shape
    memory = MEMORY[left.dtype]

    def step(pair: Operand, totals: list[Operand]) -> list[Operand]:
        loaded = _columns(f, pair, vectors, right, lanes)
        for half in range(2 if whole else 1):
            ys = [_part(f, y, half) for y in loaded]
            base = f.scale(f.add(f.scale(pair, 2), f.i64(half)), left.strides[1])
            after: list[Operand] = []
            for i in range(rows):
                index = f.add(base, f.i64(i * left.strides[0]))
                at = f.address(Operand(PTR, "%a"), memory, index)
                x = f.splat(unpack(f, f.load(Type(memory), at), left.dtype), lanes)
                row = totals[i * vectors : (i + 1) * vectors]
                after += [f.fma(x, y, t) for y, t in zip(ys, row, strict=True)]
            totals = after
        return totals

    return step


def _part(f: Builder, pair: Operand, half: int) -> Operand:
    """Return the first or second bfloat16 of each pair as float32."""
    if half == 0:
        moved = f.binary("shl", pair, constant(pair.type, 16))
    else:
        moved = f.binary("and", pair, constant(pair.type, -(1 << 16)))
    return f.convert("bitcast", moved, "float")


def _zext(f: Builder, value: Operand) -> Operand:
    return f.convert("zext", value, "i32")
