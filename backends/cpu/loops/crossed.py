"""Kernels that read along one dim and write along another: squares turned in registers.

A transpose reads a whole cache line for each element where it walks along its result. Here a square
of ``lanes x lanes`` is read along the operand's own fast dim, turned by exchanges of ever larger
blocks (Eklundh, IEEE Trans. Comput. 1972: log2(lanes) stages), and kept in scratch. A panel of
squares is turned, then its rows are computed and stored along the result's fast dim. The panels
that share pages of the operand follow each other: a walk down a whole column touches more pages
than there are translations for.
"""

from __future__ import annotations

from collections.abc import Callable

from irc.backends.cpu.loops.crossing import Crossing
from irc.backends.cpu.loops.nest import Facts, Nest, Step
from irc.backends.cpu.loops.sizes import is_named
from irc.backends.cpu.loops.steps import Env, Place, StepWriter
from irc.backends.cpu.loops.streaming import (
    LINE,
    either_way,
    lanes_before,
    single_store,
    streamed_buffers,
)
from irc.backends.cpu.loops.units import each_unit
from irc.backends.cpu.matmul.tile import prefetch
from irc.backends.cpu.vector.builder import PTR, Builder, Operand, Type
from irc.backends.cpu.vector.storage import MEMORY, unpack
from irc.dialects.types import ITEM_BYTES


class CrossedWriter:
    """Writes the body of a kernel that turns operands."""

    def __init__(
        self, b: Builder, nest: Nest, facts: Facts, crossing: Crossing, buffers: dict[int, Operand]
    ) -> None:
        self.b, self.nest, self.crossing = b, nest, crossing
        self.scratch = Operand(PTR, "%scratch")
        self.steps = StepWriter(b, nest, facts, {-1: self.scratch, **buffers})
        self.only = single_store(nest, crossing.along, crossing.lanes)
        self.places: dict[int, int] = {}
        at = 0
        for step in crossing.turned:
            self.places[step.result] = at
            at += crossing.panel_bytes(step)

    def write(self, chunks: int) -> None:
        """Write the loop over this thread's units, streaming what can be."""
        cross, only = self.crossing, self.only
        if only is not None:
            streamed, alignment = frozenset([only.buffer]), ITEM_BYTES[only.dtype]
        else:
            streamed, alignment = streamed_buffers(self.nest, cross.along, cross.lanes), LINE

        def units(streamed: frozenset[int]) -> None:
            self.steps.streamed = streamed
            self.units(chunks)

        either_way(self.b, self.steps.buffers, streamed, units, alignment)

    def units(self, chunks: int) -> None:
        """Write the loop over panels, those along the operand's fast dim one after the other."""
        b, cross, extents = self.b, self.crossing, self.nest.extents
        outer = [d for d in range(len(extents)) if d not in (cross.along, cross.across)]
        sides = [(cross.along, cross.length), (cross.across, cross.width)]
        counts = [b.parts(extents[d], side) for d, side in sides]

        def unit(parts: list[Operand]) -> None:
            spans: list[tuple[Operand, Operand]] = []
            for part, (d, side) in zip(parts[-2:], sides, strict=True):
                start = b.scale(part, side)
                stop = b.add(start, b.i64(side))
                if is_named(extents[d]) or extents[d] % side:
                    stop = b.intrinsic("smin", stop, b.i64(extents[d]))
                spans.append((start, stop))
            self.panel(dict(zip(outer, parts, strict=False)), *spans)

        each_unit(b, [*(extents[d] for d in outer), *counts], chunks, unit)

    def panel(
        self,
        indices: dict[int, Operand],
        along: tuple[Operand, Operand],
        across: tuple[Operand, Operand],
    ) -> None:
        """Write one panel: turn its squares, then compute and store it row by row.

        Args:
            indices: of all other dims.
            along: its first index along the result, and the one behind its last.
            across: as ``along``, along the operand.
        """
        b, cross, extents = self.b, self.crossing, self.nest.extents

        def down(row: Operand, rows: Operand | None) -> None:
            def square(column: Operand, columns: Operand | None) -> None:
                corner = {**indices, cross.along: row, cross.across: column}
                inside = (
                    b.binary("sub nsw", column, across[0]), b.binary("sub nsw", row, along[0])
                )  # fmt: skip
                for step in cross.turned:
                    self.turn(step, corner, inside, rows, columns)

            self.pieces(*across, extents[cross.across], square)

        self.pieces(*along, extents[cross.along], down)

        def row(index: Operand, _: list[Operand]) -> list[Operand]:
            inside = b.binary("sub nsw", index, across[0])
            self.row({**indices, cross.across: index}, inside, *along)
            return []

        b.loop(*across, 1, [], row)

    def pieces(
        self,
        start: Operand,
        stop: Operand,
        extent: int,
        body: Callable[[Operand, Operand | None], None],
    ) -> None:
        """Write a loop over whole vectors, then what is left, with its number."""
        b, lanes = self.b, self.crossing.lanes
        end = self.whole(start, stop, body)
        if is_named(extent) or extent % lanes:
            left = b.binary("sub nsw", stop, end)
            b.when(b.compare("icmp sgt", left, b.i64(0)), lambda: body(end, left))

    def whole(
        self, start: Operand, stop: Operand, body: Callable[[Operand, Operand | None], None]
    ) -> Operand:
        """Write a loop over whole vectors; returns where it ends."""
        b, lanes = self.b, self.crossing.lanes
        length = b.binary("sub nsw", stop, start)
        end = b.add(start, b.binary("and", length, b.i64(-lanes)))

        def one(index: Operand, _: list[Operand]) -> list[Operand]:
            body(index, None)
            return []

        b.loop(start, end, lanes, [], one)
        return end

    def row(
        self, indices: dict[int, Operand], inside: Operand, start: Operand, stop: Operand
    ) -> None:
        """Compute and store one row of a panel; a streamed one has its two ends apart."""
        b, cross, only = self.b, self.crossing, self.only

        def part(at: Operand, count: Operand | None) -> None:
            mask = None if count is None else self.mask(count)
            place = Place({**indices, cross.along: at}, cross.lanes, 1, mask, cross.along)
            column = b.binary("sub nsw", at, start)
            env: Env = {s.result: [self.turned(s, inside, column)] for s in cross.turned}
            for step in self.nest.steps:
                if step.kind == "store":
                    assert step.access is not None
                    self.steps.store(step.access, env[step.operands[0]], place)
                else:
                    self.steps.steps([step], env, place)

        if only is None or only.buffer not in self.steps.streamed:
            self.pieces(start, stop, self.nest.extents[cross.along], part)
            return
        item = ITEM_BYTES[only.dtype]
        offset = self.steps.offset(only, Place({**indices, cross.along: start}), 0)
        at = b.address(self.steps.buffers[only.buffer], MEMORY[only.dtype], offset)
        head = lanes_before(b, at, item, min(cross.lanes * item, LINE))
        head = b.intrinsic("smin", head, b.binary("sub nsw", stop, start))
        end = self.whole(b.add(start, head), stop, part)

        def edge(number: Operand, _: list[Operand]) -> list[Operand]:
            first = b.compare("icmp eq", number, b.i64(0))
            count = b.select(first, head, b.binary("sub nsw", stop, end))
            place = b.select(first, start, end)
            b.when(b.compare("icmp sgt", count, b.i64(0)), lambda: part(place, count))
            return []

        b.loop(b.i64(0), b.i64(2), 1, [], edge)

    def turn(
        self,
        step: Step,
        corner: dict[int, Operand],
        inside: tuple[Operand, Operand],
        rows: Operand | None,
        columns: Operand | None,
    ) -> None:
        """Read a square of an operand, turn it, and keep it in scratch.

        Args:
            step: the load.
            corner: the square's first indices.
            inside: the row and the column of the panel where it begins, once turned.
            rows: how many indices of ``along`` are in the space; None for all lanes.
            columns: as ``rows``, of ``across``.
        """
        b, cross, lanes = self.b, self.crossing, self.crossing.lanes
        assert step.access is not None
        kind = Type(MEMORY[step.access.dtype], lanes)
        mask = None if columns is None else self.mask(columns)
        lines: list[Operand] = []
        for i in range(lanes):
            more = b.i64(i)
            if rows is not None:  # rows outside the space read the last one again
                more = b.intrinsic("smin", more, b.add(rows, b.i64(-1)))
            place = Place({**corner, cross.along: b.add(corner[cross.along], more)})
            base = self.steps.offset(step.access, place, 0)
            at = b.address(self.steps.buffers[step.access.buffer], kind.element, base)
            lines.append(self.steps.vector_load(kind, at, mask))
            if mask is None:
                # What the next panel reads; past the end of the operand nothing comes of it.
                ahead = b.emit(PTR, f"getelementptr {kind.element}, {at}, i64 {cross.width}")
                prefetch(b, ahead, locality=2)
        row, column = inside
        for j, line in enumerate(turned_square(b, lines)):
            at = self.spot(step, b.add(row, b.i64(j)), column)
            b.store(line, at, 64 if lanes * kind.bits >= 512 else None)

    def spot(self, step: Step, row: Operand, column: Operand) -> Operand:
        """Return an address in the turned panel."""
        b = self.b
        assert step.access is not None
        base = b.address(self.scratch, "i8", b.i64(self.places[step.result]))
        index = b.add(b.scale(row, self.crossing.pitch(step)), column)
        return b.address(base, MEMORY[step.access.dtype], index)

    def turned(self, step: Step, row: Operand, column: Operand) -> Operand:
        """Return part of a turned row as a value to compute with."""
        assert step.access is not None
        kind = Type(MEMORY[step.access.dtype], self.crossing.lanes)
        return unpack(self.b, self.b.load(kind, self.spot(step, row, column)), step.access.dtype)

    def mask(self, count: Operand) -> Operand:
        """Return the lanes below a count."""
        b, kind = self.b, Type("i32", self.crossing.lanes)
        number = b.convert("trunc", count, "i32")
        return b.compare("icmp slt", b.iota(kind), b.splat(number, kind.lanes))


def turned_square(b: Builder, lines: list[Operand]) -> list[Operand]:
    """Turn a square of vectors: at stage s, lane bit s and line bit s change places."""
    lanes, step = len(lines), 1
    while step < lanes:
        after = list(lines)
        for i in range(lanes):
            if i & step:
                continue
            low, high = lines[i], lines[i + step]
            own = [lane if not lane & step else lanes + lane - step for lane in range(lanes)]
            other = [lane + step if not lane & step else lanes + lane for lane in range(lanes)]
            after[i], after[i + step] = b.shuffle(low, high, own), b.shuffle(low, high, other)
        lines, step = after, 2 * step
    return lines
