"""Packing: a panel of B as ``[k][columns]``, contiguous, in the accumulator's type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Protocol

from irc.backends.cpu.loops.nest import Access, Nest, Step
from irc.backends.cpu.loops.units import decode
from irc.backends.cpu.vector.builder import I64, PTR, Builder, Operand, Type, constant
from irc.backends.cpu.vector.pointwise import apply
from irc.backends.cpu.vector.storage import MEMORY, unpack

SQUARE = 8
"""The side of what is transposed at a time where a weight is packed once."""


@dataclass(frozen=True)
class Panels:
    """A kernel that only packs: element ``source[batch, n, k]`` into panels of columns.

    ``n`` and ``k`` are dims of the nest, or None for a size of 1; the others are batch. ``steps``
    are done to each element on its way.
    """

    nest: Nest
    source: Access
    target: Access
    steps: tuple[Step, ...]
    n: int
    k: int | None


def read_panels(nest: Nest) -> Panels | None:
    """Return the packing of a nest: one load, stored in panels, of one row at a time."""
    first, *between, last = nest.steps
    load, store = first.access, last.access
    if nest.reduced or any(step.kind not in ("constant", "pointwise") for step in between):
        return None
    if load is None or store is None or len(store.blocks) != 1 or load.blocks:
        return None
    ((n, columns, inner),) = store.blocks
    rest = [d for d in range(len(nest.extents)) if d != n and store.strides[d] == columns]
    if load.index_strides or load.dtype != "f32" or inner != 1 or len(rest) > 1:
        return None
    return Panels(nest, load, store, nest.steps[:-1], n, rest[0] if rest else None)


class PanelsWriter:
    """Writes a packing kernel: threads share out panels."""

    def __init__(self, b: Builder, panels: Panels, buffers: dict[int, Operand]) -> None:
        self.b, self.panels, self.buffers = b, panels, buffers

    def write(self) -> None:
        """Write the loop over this thread's panels."""
        b, p = self.b, self.panels
        extents = p.nest.extents
        ((_, columns, _),) = p.target.blocks
        strides = (0 if p.k is None else p.source.strides[p.k], p.source.strides[p.n])
        kind = Type("float")
        define_pack(b, "irc.pack", p.source, strides, kind, columns, SQUARE, self._on_the_way)
        batch = [d for d in range(len(extents)) if d not in (p.n, p.k)]
        groups = -(-extents[p.n] // columns)
        count = prod(extents[d] for d in batch) * groups
        depth = b.i64(1 if p.k is None else extents[p.k])
        thread, threads = Operand(I64, "%thread"), Operand(I64, "%threads")

        def share(t: Operand) -> Operand:
            return b.binary("udiv", b.binary("mul", t, b.i64(count)), threads)

        def one(index: Operand, _: list[Operand]) -> list[Operand]:
            *others, panel = decode(b, index, [*(extents[d] for d in batch), groups])
            column = b.scale(panel, columns)
            valid = b.intrinsic(
                "smin", b.binary("sub nsw", b.i64(extents[p.n]), column), b.i64(columns)
            )
            source, target = b.i64(p.source.offset), b.i64(p.target.offset)
            for d, at in zip(batch, others, strict=True):
                source = b.add(source, b.scale(at, p.source.strides[d]))
                target = b.add(target, b.scale(at, p.target.strides[d]))
            source = b.add(source, b.scale(column, p.source.strides[p.n]))
            target = b.add(target, b.scale(panel, p.target.strides[p.n]))
            start = b.address(self.buffers[p.source.buffer], "float", source)
            end = b.address(self.buffers[p.target.buffer], "float", target)
            arguments = f"{start}, {end}, {valid}, {depth}{b.size_argument}"
            b.do(f"call void @irc.pack({arguments})")
            return []

        b.loop(share(thread), share(b.add(thread, b.i64(1))), 1, [], one)

    def _on_the_way(self, f: Builder, loaded: Operand) -> Operand:
        """What becomes of a vector of elements."""
        first, *between = self.panels.steps
        values, dtypes = {first.result: loaded}, {first.result: first.dtype}
        for step in between:
            if step.kind == "constant":
                values[step.result] = constant(loaded.type, step.literal)
            else:
                kinds = [dtypes[v] for v in step.operands]
                operands = [values[v] for v in step.operands]
                values[step.result] = apply(f, step.fn, operands, kinds, step.dtype)
            dtypes[step.result] = step.dtype
        return values[self.panels.nest.steps[-1].operands[0]]


class Stored(Protocol):
    """What lies in memory."""

    @property
    def dtype(self) -> str:
        """Of its elements."""
        ...


def define_pack(
    b: Builder,
    symbol: str,
    access: Stored,
    strides: tuple[int, int],
    kind: Type,
    columns: int,
    square: int,
    on_the_way: Callable[[Builder, Operand], Operand] = lambda _, loaded: loaded,
) -> None:
    """Define ``void symbol(ptr b, ptr panel, i64 valid, i64 depth)``.

    ``b`` is at the panel's first column, ``strides`` are those of k and n. Columns from ``valid``
    on repeat the last one: they are never stored. ``square`` is the side of what is transposed at
    a time; what is loaded is stored as ``on_the_way`` makes it.
    """
    f = b.child()
    source, panel = Operand(PTR, "%b"), Operand(PTR, "%panel")
    valid, depth = Operand(I64, "%valid"), Operand(I64, "%depth")
    memory, lanes = MEMORY[access.dtype], square
    last = f.binary("sub nsw", valid, f.i64(1))

    def load(k: Operand, column: Operand, width: int) -> Operand:
        index = f.add(f.scale(k, strides[0]), f.scale(column, strides[1]))
        memory_vector = f.load(Type(memory, width), f.address(source, memory, index))
        return on_the_way(f, unpack(f, memory_vector, access.dtype))

    def store(value: Operand, k: Operand, column: Operand) -> None:
        index = f.add(f.scale(k, columns), column)
        f.store(value, f.address(panel, kind.element, index))

    def single(k: Operand, column: Operand) -> None:
        store(load(k, f.intrinsic("smin", column, last), 1), k, column)

    def row(k: Operand, column: Operand) -> None:
        store(load(k, column, lanes), k, column)

    def block(k: Operand, column: Operand) -> None:
        starts = [f.intrinsic("smin", f.add(column, f.i64(j)), last) for j in range(lanes)]
        vectors = transposed(f, [load(k, start, lanes) for start in starts])
        for i, vector in enumerate(vectors):
            store(vector, f.add(k, f.i64(i)), column)

    def walk(
        low: Operand,
        high: Operand,
        steps: tuple[int, int],
        body: Callable[[Operand, Operand], None],
    ) -> None:
        def outer(k: Operand, _: list[Operand]) -> list[Operand]:
            def inner(column: Operand, _: list[Operand]) -> list[Operand]:
                body(k, column)
                return []

            return f.loop(f.i64(0), f.i64(columns), steps[1], [], inner)

        f.loop(low, high, steps[0], [], outer)

    if strides[1] == 1:
        full = f.compare("icmp eq", valid, f.i64(columns))
        f.either(
            full,
            lambda: walk(f.i64(0), depth, (1, lanes), row),
            lambda: walk(f.i64(0), depth, (1, 1), single),
        )
    else:
        whole = f.i64(0)
        if strides[0] == 1:
            whole = f.binary("and", depth, f.i64(-lanes))
            walk(f.i64(0), whole, (lanes, lanes), block)
        walk(whole, depth, (1, 1), single)
    f.do("ret void")
    params = f"ptr %b, ptr %panel, i64 %valid, i64 %depth{b.size_argument}"
    b.functions[symbol] = f.function(f"define internal void @{symbol}({params}) noinline")


def transposed(b: Builder, rows: list[Operand]) -> list[Operand]:
    """Transpose a square of vectors: swap off-diagonal blocks of 1, 2, 4... elements."""
    size, width = len(rows), 1
    while width < size:
        lanes = range(size)
        low = [j if not j & width else size + j - width for j in lanes]
        high = [j + width if not j & width else size + j for j in lanes]
        swapped = list(rows)
        for i in lanes:
            if not i & width:
                x, y = rows[i], rows[i + width]
                swapped[i], swapped[i + width] = b.shuffle(x, y, low), b.shuffle(x, y, high)
        rows, width = swapped, width * 2
    return rows
