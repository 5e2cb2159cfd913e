"""Kernels that read along one dim and write along another: squares turned in registers.

A transpose reads a whole cache line for each element where it walks along its result. Here a square
of ``lanes x lanes`` is read along the operand's own fast dim, turned by exchanges of ever larger
blocks (Eklundh, IEEE Trans. Comput. 1972: log2(lanes) stages), and kept in scratch; then its rows
are computed and stored along the result's fast dim. Several squares side by side (``BLOCK``) make
use of the lines that the hardware fetches next to the one asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from irc.backends.cpu.loops.nest import Facts, Nest, Step
from irc.backends.cpu.loops.schedule import Schedule
from irc.backends.cpu.loops.sizes import is_named, typical
from irc.backends.cpu.loops.steps import Env, Place, StepWriter
from irc.backends.cpu.loops.streaming import either_way, streamed_buffers
from irc.backends.cpu.loops.units import each_unit
from irc.backends.cpu.vector.builder import PTR, Builder, Operand, Type
from irc.backends.cpu.vector.storage import MEMORY, unpack
from irc.dialects.types import ITEM_BYTES

BLOCK = 4
"""Squares along the operand's fast dim: a line each."""
MOST_LANES = 16
LEAST = 8
"""Extents below which a square would be mostly empty."""


@dataclass(frozen=True)
class Crossing:
    """What is turned.

    Attributes:
        along: the dim along which results are stored.
        across: the dim along which the turned operands lie.
        turned: the loads that are turned.
        lanes: the side of a square.
    """

    along: int
    across: int
    turned: tuple[Step, ...]
    lanes: int

    @property
    def scratch_bytes(self) -> int:
        """Room for one square of each turned operand."""
        return sum(self.square_bytes(step) for step in self.turned)

    def square_bytes(self, step: Step) -> int:
        """Bytes of one square, in whole lines."""
        assert step.access is not None
        size = self.lanes * self.lanes * ITEM_BYTES[step.access.dtype]
        return -(-size // 64) * 64


def find_crossing(nest: Nest, schedule: Schedule) -> Crossing | None:
    """Return what a kernel turns; None where it reduces, or reads the way it writes."""
    stores = [step.access for step in nest.steps if step.kind == "store"]
    loads = [step for step in nest.steps if step.kind == "load"]
    if nest.reduced or not stores or any(a.blocks for a in nest.accesses):
        return None
    fast = [[d for d, s in enumerate(a.strides) if s == 1] for a in stores if a is not None]
    if any(len(dims) != 1 or dims != fast[0] for dims in fast):
        return None
    (along,) = fast[0]
    ways: dict[int, list[Step]] = {}
    for step in loads:
        if (across := _across(step, along, nest)) is not None:
            ways.setdefault(across, []).append(step)
    if not ways:
        return None
    across, turned = max(ways.items(), key=lambda way: len(way[1]))
    if min(typical(nest.extents[along]), typical(nest.extents[across])) < LEAST:
        return None
    return Crossing(along, across, tuple(turned), min(max(schedule.lanes, 2), MOST_LANES))


def _across(step: Step, along: int, nest: Nest) -> int | None:
    """Return the dim along which a load lies, where that is not the one it is written along."""
    access = step.access
    assert access is not None
    if access.index_strides or access.bounds or access.strides[along] in (0, 1):
        return None
    found = [d for d, s in enumerate(access.strides) if s == 1 and typical(nest.extents[d]) > 1]
    return found[0] if len(found) == 1 else None


class CrossedWriter:
    """Writes the body of a kernel that turns operands."""

    def __init__(
        self, b: Builder, nest: Nest, facts: Facts, crossing: Crossing, buffers: dict[int, Operand]
    ) -> None:
        self.b, self.nest, self.crossing = b, nest, crossing
        self.scratch = Operand(PTR, "%scratch")
        self.steps = StepWriter(b, nest, facts, {-1: self.scratch, **buffers})
        self.places: dict[int, int] = {}
        at = 0
        for step in crossing.turned:
            self.places[step.result] = at
            at += crossing.square_bytes(step)

    def write(self, chunks: int) -> None:
        """Write the loop over this thread's units."""
        streamed = streamed_buffers(self.nest, self.crossing.along, self.crossing.lanes)

        def units(streamed: frozenset[int]) -> None:
            self.steps.streamed = streamed
            self.units(chunks)

        either_way(self.b, self.steps.buffers, streamed, units)

    def units(self, chunks: int) -> None:
        """Write the loop over units: blocks of the operand's fast dim."""
        cross, lanes = self.crossing, self.crossing.lanes
        outer = [d for d in range(len(self.nest.extents)) if d not in (cross.along, cross.across)]
        width, size = BLOCK * lanes, self.nest.extents[cross.across]
        extents = [*(self.nest.extents[d] for d in outer), self.b.parts(size, width)]

        def unit(parts: list[Operand]) -> None:
            indices = dict(zip(outer, parts, strict=False))
            start = self.b.scale(parts[-1], width)
            stop = self.b.add(start, self.b.i64(width))
            if is_named(size) or size % width:
                stop = self.b.intrinsic("smin", stop, self.b.i64(size))
            self.block(indices, start, stop)

        each_unit(self.b, extents, chunks, unit)

    def block(self, indices: dict[int, Operand], start: Operand, stop: Operand) -> None:
        """Write all squares of one block."""
        size = self.nest.extents[self.crossing.along]

        def down(along: Operand, rows: Operand | None) -> None:
            self.pieces(
                start, stop, self.nest.extents[self.crossing.across],
                lambda across, columns: self.square(indices, along, rows, across, columns),
            )  # fmt: skip

        self.pieces(self.b.i64(0), self.b.i64(size), size, down)

    def pieces(
        self,
        start: Operand,
        stop: Operand,
        extent: int,
        body: Callable[[Operand, Operand | None], None],
    ) -> None:
        """Write a loop over whole sides of squares, then what is left, with its number."""
        b, lanes = self.b, self.crossing.lanes
        length = b.binary("sub nsw", stop, start)
        end = b.add(start, b.binary("and", length, b.i64(-lanes)))

        def whole(index: Operand, _: list[Operand]) -> list[Operand]:
            body(index, None)
            return []

        b.loop(start, end, lanes, [], whole)
        if is_named(extent) or extent % lanes:
            left = b.binary("sub nsw", stop, end)
            b.when(b.compare("icmp sgt", left, b.i64(0)), lambda: body(end, left))

    def square(
        self,
        indices: dict[int, Operand],
        along: Operand,
        rows: Operand | None,
        across: Operand,
        columns: Operand | None,
    ) -> None:
        """Write one square: turn, then compute and store row by row.

        Args:
            indices: of all other dims.
            along: its first index along the result.
            rows: how many indices of ``along`` are in the space; None for all lanes.
            across: its first index along the operand.
            columns: as ``rows``, of ``across``.
        """
        b, cross, lanes = self.b, self.crossing, self.crossing.lanes
        first = {**indices, cross.along: along, cross.across: across}
        for step in cross.turned:
            self.turn(step, first, rows, columns)
        mask = None if rows is None else self.mask(rows)

        def row(j: Operand, _: list[Operand]) -> list[Operand]:
            place = Place({**first, cross.across: b.add(across, j)}, lanes, 1, mask, cross.along)
            env: Env = {step.result: [self.turned(step, j)] for step in cross.turned}
            for step in self.nest.steps:
                if step.kind == "store":
                    assert step.access is not None
                    self.steps.store(step.access, env[step.operands[0]], place)
                else:
                    self.steps.steps([step], env, place)
            return []

        b.loop(b.i64(0), b.i64(lanes) if columns is None else columns, 1, [], row)

    def turn(
        self, step: Step, first: dict[int, Operand], rows: Operand | None, columns: Operand | None
    ) -> None:
        """Read a square of an operand, turn it, and keep it in scratch."""
        b, cross, lanes = self.b, self.crossing, self.crossing.lanes
        assert step.access is not None
        kind = Type(MEMORY[step.access.dtype], lanes)
        mask = None if columns is None else self.mask(columns)
        lines: list[Operand] = []
        for i in range(lanes):
            more = b.i64(i)
            if rows is not None:  # rows outside the space read the last one again
                more = b.intrinsic("smin", more, b.add(rows, b.i64(-1)))
            place = Place({**first, cross.along: b.add(first[cross.along], more)})
            base = self.steps.offset(step.access, place, 0)
            at = b.address(self.steps.buffers[step.access.buffer], kind.element, base)
            lines.append(self.steps.vector_load(kind, at, mask))
        for j, line in enumerate(turned_square(b, lines)):
            b.store(line, self.spot(step, b.i64(j)), 64 if lanes * kind.bits >= 512 else None)

    def spot(self, step: Step, j: Operand) -> Operand:
        """Return the address of a turned row."""
        b = self.b
        assert step.access is not None
        base = b.address(self.scratch, "i8", b.i64(self.places[step.result]))
        return b.address(base, MEMORY[step.access.dtype], b.scale(j, self.crossing.lanes))

    def turned(self, step: Step, j: Operand) -> Operand:
        """Return a turned row as a value to compute with."""
        assert step.access is not None
        kind = Type(MEMORY[step.access.dtype], self.crossing.lanes)
        return unpack(self.b, self.b.load(kind, self.spot(step, j)), step.access.dtype)

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
