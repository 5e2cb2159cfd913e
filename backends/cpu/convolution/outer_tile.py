"""The register tile of sums of outer products.

    for k: for each row i: for each vector j: acc[i][j] += left[k][i] * right[k][j]

k runs over several dims, each from its own start to its own end.
"""

from __future__ import annotations

from collections.abc import Sequence

from irc.backends.cpu.convolution.outer import Blocking, Sums
from irc.backends.cpu.vector.builder import I64, PTR, Builder, Operand, Type, constant
from irc.backends.cpu.vector.storage import MEMORY, unpack

TILE = "irc.outer.tile"


def outer_tile(b: Builder, sums: Sums, plan: Blocking, *, listed: bool = False) -> None:
    """Define ``void TILE(ptr left, ptr right, ptr tile, i64 low0, i64 high0, ...)``.

    The tile is added to. The pairs of numbers are the ranges of the dims from the one that is cut
    into chunks on, outermost first. Where places are ``listed``, the range is one of a list of them
    (i64), which is the last argument.
    """
    f = b.child()
    left, right, tile = (Operand(PTR, f"%{name}") for name in ("left", "right", "tile"))
    dims = sums.inner[plan.chunk :]
    ranges = [(Operand(I64, f"%low{i}"), Operand(I64, f"%high{i}")) for i in range(len(dims))]
    memory = [MEMORY[access.dtype] for access in (sums.left, sums.right)]
    kind = Type(sums.element, plan.lanes)

    def walk(at: int, place: tuple[Operand, Operand], totals: Sequence[Operand]) -> list[Operand]:
        if at == len(dims):
            return _step(f, sums, plan, place, totals)

        def one(index: Operand, carried: list[Operand]) -> list[Operand]:
            if listed:
                index = f.load(I64, f.address(Operand(PTR, "%list"), "i64", index), 8)
            moved = [
                _moved(f, pointer, element, f.scale(index, access.strides[dims[at]]))
                for pointer, element, access in zip(
                    place, memory, (sums.left, sums.right), strict=True
                )
            ]
            return walk(at + 1, (moved[0], moved[1]), carried)

        return f.loop(*ranges[at], 1, totals, one)

    places = [
        f.address(tile, kind.element, f.i64(i * plan.lanes))
        for i in range(plan.rows * plan.vectors)
    ]
    totals = walk(0, (left, right), [f.load(kind, place) for place in places])
    for total, place in zip(totals, places, strict=True):
        f.store(total, place)
    f.do("ret void")
    numbers = "".join(f", i64 %low{i}, i64 %high{i}" for i in range(len(dims)))
    params = f"ptr %left, ptr %right, ptr %tile{numbers}" + ", ptr %list" * listed
    b.functions[TILE] = f.function(f"define internal void @{TILE}({params}) noinline")


def _moved(f: Builder, start: Operand, element: str, by: Operand) -> Operand:
    """An address whose start may lie before the tensor: not one that is `inbounds`."""
    return f.emit(PTR, f"getelementptr {element}, {start}, {by}")


def _step(
    f: Builder,
    sums: Sums,
    plan: Blocking,
    place: tuple[Operand, Operand],
    totals: Sequence[Operand],
) -> list[Operand]:
    """Add one place's products."""
    left, right = place
    columns = [_vector(f, right, sums.right.dtype, sums, plan, j) for j in range(plan.vectors)]
    if sums.left.strides[sums.n]:
        others = [_vector(f, left, sums.left.dtype, sums, plan, j) for j in range(plan.vectors)]
        return [f.fma(*each) for each in zip(others, columns, totals, strict=True)]
    memory = Type(MEMORY[sums.left.dtype])
    after: list[Operand] = []
    for i in range(plan.rows):
        raw = f.load(memory, f.address(left, memory.element, f.i64(i)))
        factor = f.splat(unpack(f, raw, sums.left.dtype), plan.lanes)
        row = totals[i * plan.vectors : (i + 1) * plan.vectors]
        after += [f.fma(factor, x, total) for x, total in zip(columns, row, strict=True)]
    return after


def _vector(
    f: Builder, start: Operand, dtype: str, sums: Sums, plan: Blocking, number: int
) -> Operand:
    """Load a vector along n; a single one may be longer than n."""
    memory = Type(MEMORY[dtype], plan.lanes)
    at = f.address(start, memory.element, f.i64(number * plan.lanes))
    if sums.columns >= plan.columns:
        return unpack(f, f.load(memory, at), dtype)
    valid = ", ".join(f"i1 {'true' if i < sums.columns else 'false'}" for i in range(plan.lanes))
    mask = Operand(Type("i1", plan.lanes), f"<{valid}>")
    align = constant(Type("i32"), max(memory.bits // 8, 1))
    name = f"llvm.masked.load.{memory.mangled}.p0"
    return unpack(f, f.call(memory, name, at, align, mask, constant(memory, 0)), dtype)
