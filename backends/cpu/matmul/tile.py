"""The register tile: rows of A times columns of B, accumulated in vector registers.

    for k: for each row i: for each vector j: acc[i][j] += a[i, k] * b[k][j]

Strides are constants of the code. B is a packed panel, or B itself where few rows read it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from irc.backends.cpu.loops.sizes import is_named
from irc.backends.cpu.vector.builder import I64, PTR, Builder, Operand, Type, constant
from irc.backends.cpu.vector.storage import MEMORY, unpack

UNROLL = 2
SPAN = 384
"""Terms that are summed in registers before they are added to the tile, of a sum of more than
:data:`LONG`. Rounding errors of a sum grow with its length; of n terms in parts of b, with
b + n / b (N. Higham, The accuracy of floating point summation, SIAM J. Sci. Comput. 14, 1993)."""
LONG = 512


@dataclass(frozen=True)
class Factor:
    """How a tile reads A (strides of its rows and of k) or B (strides of k and of n).

    Attributes:
        dtype: of the elements in memory.
        strides: see above.
        ahead: how many elements ahead B is prefetched.
        lines: how many cache lines of the next panel are prefetched in two steps of k; the
            function then takes the address of the first (``next``).
    """

    dtype: str
    strides: tuple[int, int]
    ahead: int = 0
    lines: int = 0


LINE = 64
"""Bytes of a cache line."""


def tile_function(
    b: Builder,
    symbol: str,
    kind: Type,
    shape: tuple[int, int],
    left: Factor,
    right: Factor,
    *,
    odd: bool,
    accumulate: bool = False,
    apart: int | None = None,
    parts: bool = False,
) -> None:
    """Define ``void symbol(ptr a, ptr b, ptr tile, i64 depth)``: ``tile[rows][vectors] = A * B``.

    ``shape`` is rows and vectors of columns. The depth of the sum is even unless ``odd`` says that
    it may not be; ``accumulate`` adds to what the tile holds. Its rows lie ``apart`` elements, or
    behind each other. ``parts``: the sum is made of parts of :data:`SPAN` terms.
    """
    rows, vectors = shape
    step_of_row = vectors * kind.lanes if apart is None else apart
    f = b.child()
    depth = Operand(I64, "%depth")
    start, panel, tile = (Operand(PTR, f"%{name}") for name in ("a", "b", "tile"))
    memory_a, memory_b = MEMORY[left.dtype], MEMORY[right.dtype]

    def columns(k: Operand) -> list[Operand]:
        at = f.address(panel, memory_b, f.scale(k, right.strides[0]))
        places = [f.address(at, memory_b, f.i64(j * kind.lanes)) for j in range(vectors)]
        if right.ahead:
            for place in places:
                prefetch(f, f.address(place, memory_b, f.i64(right.ahead)))
        return [unpack(f, f.load(Type(memory_b, kind.lanes), p), right.dtype) for p in places]

    lines = _lines(f, start, left, rows)

    def step(k: Operand, totals: list[Operand]) -> list[Operand]:
        vector = columns(k)
        base = f.scale(k, left.strides[1])
        after: list[Operand] = []
        for i in range(rows):
            line, skip = lines[i]
            at = f.address(line, memory_a, f.add(base, skip))
            value = unpack(f, f.load(Type(memory_a), at), left.dtype)
            factor = f.splat(value, kind.lanes)
            row = totals[i * vectors : (i + 1) * vectors]
            after += [f.fma(factor, x, t) for x, t in zip(vector, row, strict=True)]
        return after

    def body(k: Operand, totals: list[Operand]) -> list[Operand]:
        later = f.scale(k, right.lines * LINE // UNROLL)
        for line in range(right.lines):
            at = f.address(Operand(PTR, "%next"), "i8", f.add(later, f.i64(line * LINE)))
            prefetch(f, at, locality=2)
        for offset in range(UNROLL):
            totals = step(f.add(k, f.i64(offset)), totals)
        return totals

    places = [
        f.address(tile, kind.element, f.i64(i * step_of_row + j * kind.lanes))
        for i in range(rows)
        for j in range(vectors)
    ]

    def sums(first: Operand, last: Operand, totals: list[Operand]) -> list[Operand]:
        main = last
        if odd:
            even = f.binary("and", f.binary("sub nsw", last, first), f.i64(-UNROLL))
            main = f.add(first, even)
        totals = f.loop(first, main, UNROLL, totals, body)
        return f.loop(main, last, 1, totals, step) if odd else totals

    zeros = [constant(kind, 0.0) for _ in places]

    def part(first: Operand, _: list[Operand]) -> list[Operand]:
        last = f.intrinsic("smin", f.add(first, f.i64(SPAN)), depth)
        begins = None if accumulate else f.compare("icmp eq", first, f.i64(0))
        add_part(f, sums(first, last, zeros), places, begins)
        return []

    if parts:
        f.loop(f.i64(0), depth, SPAN, [], part)
    else:
        totals = [f.load(kind, place) for place in places] if accumulate else zeros
        for total, place in zip(sums(f.i64(0), depth, totals), places, strict=True):
            f.store(total, place)
    f.do("ret void")
    more = ", ptr %next" if right.lines else ""
    params = f"ptr %a, ptr %b, ptr %tile, i64 %depth{more}{b.size_argument}"
    b.functions[symbol] = f.function(f"define internal void @{symbol}({params}) noinline")


def add_part(
    f: Builder, totals: Sequence[Operand], places: Sequence[Operand], begins: Operand | None
) -> None:
    """Add part of a sum to what places hold; where it is the first (``begins``), store it."""
    for total, place in zip(totals, places, strict=True):
        before = f.load(total.type, place)
        if begins is not None:
            before = f.select(begins, constant(total.type, 0.0), before)
        f.store(f.binary("fadd", before, total), place)


def _lines(f: Builder, start: Operand, left: Factor, rows: int) -> list[tuple[Operand, Operand]]:
    """Return for each row of A an address, and how many elements from there it begins.

    Known strides are parts of instructions. Of one with names there are not registers enough for
    the multiples: every third row has an address, from which one and two strides are a register
    and its double.
    """
    step = left.strides[0]
    if not is_named(step):
        return [(start, f.i64(i * step)) for i in range(rows)]
    element = MEMORY[left.dtype]
    firsts = [f.address(start, element, f.i64(i * step)) for i in range(0, rows, 3)]
    return [(firsts[i // 3], f.i64(i % 3 * step)) for i in range(rows)]


def prefetch(b: Builder, at: Operand, locality: int = 3, *, write: bool = False) -> None:
    """Ask for a line to be read, or written; locality 3 is the first cache, 2 the second."""
    i32 = Type("i32")
    rest = (constant(i32, int(write)), constant(i32, locality), constant(i32, 1))
    b.invoke("llvm.prefetch.p0", at, *rest)
