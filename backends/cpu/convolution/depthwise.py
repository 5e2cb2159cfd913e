"""Depthwise convolution: one weight a channel and tap, lanes along channels.

    for tap: for each place i: for each vector j: acc[i][j] += table[tap][i][c + j] * w[tap][c + j]

On level task it is a sum of products over taps. The places, their pointers and threads are those of
:mod:`irc.backends.cpu.convolution.writer`; only the register tile differs, and that a panel is a
run of channels of image and weight alike. The last run begins earlier rather than being short.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from irc.backends.cpu.convolution.windows import (
    Blocking,
    Windows,
    block_places,
    fewest_of,
    walks_back,
)
from irc.backends.cpu.convolution.writer import Block, ConvolutionWriter
from irc.backends.cpu.features import Features
from irc.backends.cpu.loops.nest import Facts, Nest, Step
from irc.backends.cpu.loops.sizes import is_named
from irc.backends.cpu.vector.builder import I64, PTR, Builder, Operand, Type, constant
from irc.backends.cpu.vector.storage import MEMORY, unpack
from irc.dialects.types import ITEM_BYTES, is_float

TILE = "irc.depthwise.tile"
SHORT_RUN = 0.3
"""What a place's pointer costs, in vectors of products."""


def read_depthwise(nest: Nest, facts: Facts, features: Features) -> Windows | None:
    """Return the depthwise convolution of a simplified nest, None where it is none."""
    reductions = [s for s in nest.steps if s.kind in ("reduce", "contract")]
    if len(reductions) != 1 or 0 in nest.extents or reductions[0].fn != "sum":
        return None
    (total,), makers = reductions, nest.producers()
    product = makers[total.operands[0]]
    if total.kind != "reduce" or product.fn != "mul":
        return None
    image, weight = (makers[v] for v in product.operands)
    inner = {image.result, weight.result, product.result}
    others = [s.result for s in nest.steps if s.result >= 0 and s.result not in inner]
    if any(facts.dims[value] & nest.reduced for value in others):
        return None
    contract = Step("contract", total.result, (image.result, weight.result), total.dtype, "sum")
    steps = tuple(contract if s is total else s for s in nest.steps if s is not product)
    return _windows(replace(nest, steps=steps), contract, image, weight, features)


def _windows(
    nest: Nest, step: Step, image: Step, weight: Step, features: Features
) -> Windows | None:
    x, w = image.access, weight.access
    if x is None or w is None or not is_float(x.dtype) or x.dtype != w.dtype or walks_back(nest, x):
        return None
    if w.bounds or x.index_strides or w.index_strides:
        return None
    runs = [d for d in range(nest.parallel) if x.strides[d] == w.strides[d] == 1]
    lanes = features.vector_bytes // (8 if x.dtype == "f64" else 4)
    if any(is_named(nest.extents[d]) for d in (*runs, *nest.reduced)):
        return None
    if len(runs) != 1 or nest.extents[runs[0]] < lanes:
        return None
    if any(n in bound.dims for bound in x.bounds for n in runs):
        return None
    places = tuple(d for d in range(nest.parallel) if d not in runs)
    taps = tuple(sorted(nest.reduced))
    step_of = w.strides[taps[-1]]
    for d in reversed(taps):
        if w.strides[d] != step_of:
            return None
        step_of *= nest.extents[d]
    if any(w.strides[d] for d in places):
        return None
    return Windows(nest, step, x, w, (), places, runs[0], taps, None)


class DepthwiseWriter(ConvolutionWriter):
    """Writes the body of a depthwise convolution."""

    def divide(self, features: Features) -> Blocking:
        """Choose the width of a run of channels, and the register tile."""
        w = self.windows
        lanes = features.vector_bytes // (8 if w.element == "double" else 4)
        channels, registers = w.nest.extents[w.n], 24 if features.registers == 32 else 12
        widths = [v for v in (4, 2, 1) if v * lanes <= channels]
        vectors = min(widths, key=lambda v: -(-channels // (v * lanes)) * (v + SHORT_RUN))
        places = prod(w.sizes(w.places))
        rows = min(max(1, registers // (vectors + 1)), 8, fewest_of(places))
        return block_places(w, lanes, vectors, rows, chunk=w.num_taps)

    def _define_tiles(self) -> None:
        depthwise_tile(self.b, self.windows, self.blocking)

    def _start(self, column: Operand) -> Operand:
        """The first channel of a run that is computed: the last run begins earlier."""
        b, columns = self.b, self.blocking.columns
        channels = self.windows.nest.extents[self.windows.n]
        if channels % columns == 0:
            return column
        return b.intrinsic("smin", column, b.i64(channels - columns))

    def _panel(self, block: Block, number: Operand, final: Operand) -> None:
        """Compute a block's results in one run of channels."""
        b, w, plan = self.b, self.windows, self.blocking
        column, memory = b.scale(number, plan.columns), MEMORY[w.weight.dtype]
        first = self._start(column)
        skipped = b.binary("sub nsw", column, first)
        start = b.add(first, b.i64(w.weight.offset))
        weight = b.address(self.buffers[w.weight.buffer], memory, start)

        def one(t: Operand, _: list[Operand]) -> list[Operand]:
            place = self._place(b.add(block.first, t))
            skip = b.binary("sub nsw", place, block.place)
            pointers = b.address(self._at(self.places.table), "ptr", skip)
            arguments = (pointers, weight, self.scratch, first)
            b.do(f"call void @{TILE}({', '.join(map(str, arguments))})")
            self._finish(block, t, column, self.scratch, skipped)
            return []

        b.loop(b.i64(0), block.tiles, 1, [], one)


def depthwise_tile(b: Builder, w: Windows, plan: Blocking) -> None:
    """Define ``void TILE(ptr table, ptr weight, ptr tile, i64 channel)``."""
    f = b.child()
    table, weight, tile = (Operand(PTR, f"%{name}") for name in ("table", "weight", "tile"))
    element = "double" if w.element == "double" else "float"
    kind, vectors = Type(element, plan.lanes), plan.columns // plan.lanes
    memory = Type(MEMORY[w.image.dtype], plan.lanes)
    skip = f.scale(Operand(I64, "%channel"), ITEM_BYTES[w.image.dtype])

    def vector(at: Operand, j: int) -> Operand:
        place = f.address(at, memory.element, f.i64(j * plan.lanes))
        return unpack(f, f.load(memory, place), w.image.dtype)

    def tap(number: Operand, sums: list[Operand]) -> list[Operand]:
        row = f.address(table, "ptr", f.scale(number, plan.pitch))
        start = f.address(weight, memory.element, f.scale(number, w.weight.strides[w.taps[-1]]))
        factors = [vector(start, j) for j in range(vectors)]
        after: list[Operand] = []
        for i in range(plan.rows):
            pointer = f.load(PTR, f.address(row, "ptr", f.i64(i)), 8)
            at = f.address(pointer, "i8", skip)
            for j, factor in enumerate(factors):
                after.append(f.fma(vector(at, j), factor, sums[i * vectors + j]))
        return after

    sums = [constant(kind, 0.0) for _ in range(plan.rows * vectors)]
    sums = f.loop(f.i64(0), f.i64(w.num_taps), 1, sums, tap)
    for i, total in enumerate(sums):
        f.store(total, f.address(tile, kind.element, f.i64(i * plan.lanes)))
    f.do("ret void")
    b.functions[TILE] = f.function(
        f"define internal void @{TILE}(ptr %table, ptr %weight, ptr %tile, i64 %channel) noinline"
    )
