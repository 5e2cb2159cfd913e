"""The template ``rows``: pointwise chains and reductions, one walk per reduction over each row.

Two forms, by where the vector dim lies:

* reduced: a task is a row; its lanes are reduced in several accumulators, then horizontally;
* parallel: each lane is a task of its own, reduced dims are loops inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from irc.backends.cpu.loops.nest import Access, Facts, Nest, Step
from irc.backends.cpu.loops.reduction import Reduction
from irc.backends.cpu.loops.schedule import Pass, Schedule
from irc.backends.cpu.loops.sizes import is_named, typical
from irc.backends.cpu.loops.steps import Env, Place, StepWriter
from irc.backends.cpu.loops.streaming import either_way, streamed_buffers
from irc.backends.cpu.loops.units import each_unit
from irc.backends.cpu.matmul.tile import prefetch
from irc.backends.cpu.vector.builder import PTR, Builder, Operand, Type
from irc.backends.cpu.vector.storage import MEMORY
from irc.dialects.types import ITEM_BYTES

LEAST_AHEAD, MOST_AHEAD = 1 << 11, 1 << 18
"""Bytes of a row that is fetched while the one before it is computed; two are in the cache."""
LINE = 64

Body = Callable[[Place, list[Operand]], list[Operand]]


def rows_in_scratch(b: Builder, schedule: Schedule) -> dict[int, Operand]:
    """Return where the rows of scratch begin, by negative numbers of buffers.

    All are one buffer where their sizes are known; else each begins on a line of its own.
    """
    at = Operand(PTR, "%scratch")
    starts = {-1: at}
    for access in schedule.cached.values():
        if access.buffer not in starts:
            starts[access.buffer] = at
        size = b.scale(b.i64(access.size), ITEM_BYTES[access.dtype])
        if access.buffer - 1 in {other.buffer for other in schedule.cached.values()}:
            lines = b.binary("and", b.add(size, b.i64(LINE - 1)), b.i64(-LINE))
            at = b.address(starts[access.buffer], "i8", lines)
    return starts


class RowsWriter:
    """Writes the body of a rows kernel into a builder."""

    def __init__(
        self,
        b: Builder,
        nest: Nest,
        facts: Facts,
        schedule: Schedule,
        buffers: dict[int, Operand],
    ) -> None:
        self.b, self.nest, self.facts, self.schedule = b, nest, facts, schedule
        scratch = {**rows_in_scratch(b, schedule), **buffers}
        self.steps = StepWriter(b, nest, facts, scratch, schedule.cached)
        self.across = schedule.vector is not None and schedule.vector < nest.parallel
        self.by_value = nest.producers()
        self.ahead: tuple[Access, ...] = ()

    # units of work

    def write(self) -> None:
        """Write the loop over this thread's units."""
        plan = self.schedule
        streamed = streamed_buffers(self.nest, plan.vector, plan.lanes)

        def units(streamed: frozenset[int]) -> None:
            self.steps.streamed = streamed
            self.units()

        either_way(self.b, self.steps.buffers, streamed, units)

    def units(self) -> None:
        """Write the loop over units, in one way of storing."""
        plan = self.schedule
        outer = [d for d in range(self.nest.parallel) if not (self.across and d == plan.vector)]
        extents = [self.nest.extents[d] for d in outer]
        blocks = self.b.i64(1)
        if self.across:
            assert plan.vector is not None
            blocks = self.b.parts(self.nest.extents[plan.vector], max(plan.block, 1))

        def unit(parts: list[Operand]) -> None:
            self.task(Place(dict(zip(outer, parts, strict=False))), parts[-1], blocks)

        each_unit(self.b, [*extents, blocks], plan.chunks, unit)

    def task(self, place: Place, block: Operand, blocks: Operand) -> None:
        """Write one row, or one block of lanes."""
        env: Env = {}
        if not self.across:
            self.chunk(env, place)
            return
        b, vector = self.b, self.schedule.vector
        assert vector is not None
        extent = self.nest.extents[vector]
        fixed = [
            s for s in self.nest.steps
            if s.result >= 0 and not self.facts.dims[s.result] & {vector, *self.nest.reduced}
            and self.facts.stage[s.result] == 0
        ]  # fmt: skip
        self.steps.steps(fixed, env, place)
        start, stop = b.i64(0), b.i64(extent)
        if blocks.literal != 1:
            start = b.scale(block, self.schedule.block)
            stop = b.add(start, b.i64(self.schedule.block))
            if is_named(extent) or extent % self.schedule.block:
                stop = b.intrinsic("smin", stop, b.i64(extent))

        def lanes(inside: Place, _: list[Operand]) -> list[Operand]:
            self.chunk(dict(env), inside)
            return []

        self.vector_range(start, stop, place, [], lanes, lanes, lanes)

    def chunk(self, env: Env, place: Place) -> None:
        """Write all passes of one row or vector of rows, and what is done once after them."""
        for number, walk in enumerate(self.schedule.passes):
            self.steps.steps(self.row_steps(walk.rows), env, place)
            self.ahead = self.next_rows() if number == 1 and not self.across else ()
            self.walk(walk, env, place)
        for step in self.nest.steps:
            if step.kind != "store" or self.is_inside(step):
                continue
            self.steps.steps(self.row_steps(step.operands), env, place)
            assert step.access is not None
            self.steps.store(step.access, env[step.operands[0]], place)

    def next_rows(self) -> tuple[Access, ...]:
        """Return the loads of the next row, to be fetched in the second pass over this one.

        The first pass waits for memory, the later ones find the row in the cache: fetching in
        between lets both go on together.
        """
        vector, last = self.schedule.vector, self.nest.parallel - 1
        if vector is None or last < 0:
            return ()
        loads = [
            step.access
            for step in self.schedule.passes[0].steps
            if step.access is not None and not step.access.index_strides
        ]
        size = sum(
            typical(self.nest.extents[vector]) * ITEM_BYTES[access.dtype]
            for access in loads
            if access.strides[vector] == 1
        )
        fits = LEAST_AHEAD <= size <= MOST_AHEAD and len(self.nest.reduced) == 1
        return tuple(a for a in loads if fits and a.strides[vector] == 1 and a.strides[last])

    def fetch_ahead(self, place: Place) -> None:
        """Fetch what the next row has at a place."""
        for access in self.ahead if place.lanes > 1 and place.mask is None else ():
            step = access.strides[self.nest.parallel - 1]
            for u in range(place.unroll):
                index = self.b.add(self.steps.offset(access, place, u), self.b.i64(step))
                pointer, element = self.steps.buffers[access.buffer], MEMORY[access.dtype]
                # Past the last row the address may be outside: no `inbounds`, and no fault.
                at = self.b.emit(PTR, f"getelementptr {element}, {pointer}, {index}")
                prefetch(self.b, at)

    def is_inside(self, store: Step) -> bool:
        """True where a store belongs to a pass."""
        return any(store in walk.roots for walk in self.schedule.passes)

    def row_steps(self, wanted: Sequence[int] | frozenset[int]) -> list[Step]:
        """Return the steps, in order, that give row values and all that they depend on."""
        needed: set[int] = set()
        stack = list(wanted)
        while stack:
            v = stack.pop()
            step = self.by_value[v]
            if v not in needed and step.kind not in ("reduce", "contract"):
                needed.add(v)
                stack += step.operands
        return [step for step in self.nest.steps if step.result in needed]

    # passes

    def walk(self, walk: Pass, env: Env, place: Place) -> None:
        """Write one pass over the reduced dims; its reductions go into ``env``."""
        reductions = [
            Reduction(step, self.by_value[step.operands[0]].dtype)
            for step in walk.roots
            if step.kind != "store"
        ]
        vector = self.schedule.vector
        loops = [d for d in sorted(self.nest.reduced) if d != vector or self.across]
        inner = self.across or vector is None
        shapes = [self.shape(r.step, place) if inner else self.accumulators() for r in reductions]
        totals = [
            r.neutral(lanes) for r, (lanes, n) in self.paired(reductions, shapes) for _ in range(n)
        ]
        if not inner and self.has_scalar_tail():
            totals += [r.neutral(1) for r in reductions]

        def innermost(inside: Place, carried: list[Operand]) -> list[Operand]:
            if inner:
                return self.point(walk, reductions, dict(env), inside, carried)
            return self.reduced_vectors(walk, reductions, dict(env), inside, carried)

        totals = self.loops(loops, place, totals, innermost)
        at = 0
        for i, (reduction, (_, count)) in enumerate(self.paired(reductions, shapes)):
            parts = totals[at : at + count]
            at += count
            if not inner:
                parts = [self.gather_total(reduction, parts, totals, i, len(reductions))]
            env[reduction.step.result] = [reduction.finish(self.b, part) for part in parts]

    def shape(self, step: Step, place: Place) -> tuple[int, int]:
        """Return lanes and number of the accumulators of a reduction at a place."""
        varies = place.vector in self.facts.dims[step.result]
        return (place.lanes, place.unroll) if varies else (1, 1)

    def paired(
        self, reductions: list[Reduction], shapes: list[tuple[int, int]]
    ) -> list[tuple[Reduction, tuple[int, int]]]:
        """Return reductions with their accumulators' shapes."""
        return list(zip(reductions, shapes, strict=True))

    def accumulators(self) -> tuple[int, int]:
        """Return lanes and number of the accumulators of a reduced vector dim."""
        return self.schedule.lanes, self.schedule.unroll

    def has_scalar_tail(self) -> bool:
        """True where a reduced vector dim ends in single elements."""
        vector = self.schedule.vector
        if vector is None or self.schedule.masked:
            return False
        extent = self.nest.extents[vector]
        return is_named(extent) or extent % self.schedule.lanes != 0

    def gather_total(
        self, reduction: Reduction, parts: list[Operand], totals: list[Operand], i: int, num: int
    ) -> Operand:
        """Reduce accumulators, lanes and the scalar tail to one scalar."""
        while len(parts) > 1:
            half = len(parts) // 2
            pairs = zip(parts[:half], parts[half:], strict=True)
            parts = [reduction.combine(self.b, x, y) for x, y in pairs]
        total = reduction.horizontal(self.b, parts[0])
        if self.has_scalar_tail():
            total = reduction.combine(self.b, total, totals[len(totals) - num + i])
        return total

    def loops(
        self, dims: Sequence[int], place: Place, carried: list[Operand], body: Body
    ) -> list[Operand]:
        """Write nested loops over whole dims."""
        if not dims:
            return body(place, carried)
        b = self.b

        def inside(index: Operand, values: list[Operand]) -> list[Operand]:
            return self.loops(dims[1:], place.at(dims[0], index), values, body)

        return b.loop(b.i64(0), b.i64(self.nest.extents[dims[0]]), 1, carried, inside)

    def point(
        self,
        walk: Pass,
        reductions: list[Reduction],
        env: Env,
        place: Place,
        carried: list[Operand],
    ) -> list[Operand]:
        """Write the work of a pass at one place; carried holds its accumulators there."""
        self.fetch_ahead(place)
        for number in sorted(walk.loads - env.keys()):
            self.steps.restore(number, env, place)
        self.steps.steps(walk.steps, env, place)
        for number in sorted(walk.saves):
            self.steps.save(number, env, place)
        for step in walk.roots:
            if step.kind == "store":
                assert step.access is not None
                self.steps.store(step.access, env[step.operands[0]], place)
        after: list[Operand] = []
        mask = None if self.across else place.mask
        for reduction in reductions:
            for u in range(self.shape(reduction.step, place)[1] if self.across else place.unroll):
                total = carried[len(after)]
                lanes = total.type.lanes
                values = [self.steps.pick(env[v], u, lanes) for v in reduction.step.operands]
                after.append(reduction.accumulate(self.b, total, values, mask))
        return after

    # the vector dim

    def reduced_vectors(
        self,
        walk: Pass,
        reductions: list[Reduction],
        env: Env,
        place: Place,
        carried: list[Operand],
    ) -> list[Operand]:
        """Write a pass over a reduced vector dim."""
        plan, num = self.schedule, len(reductions)
        vector = plan.vector
        assert vector is not None
        for number in sorted(walk.loads):
            if vector not in self.facts.dims[number]:
                self.steps.restore(number, env, place)
        fixed = [s for s in walk.steps if vector not in self.facts.dims[s.result]]
        self.steps.steps(fixed, env, place)
        unroll, every = plan.unroll, num * plan.unroll

        def main(inside: Place, values: list[Operand]) -> list[Operand]:
            after = self.point(walk, reductions, dict(env), inside, values[:every])
            return [*after, *values[every:]]

        def single(inside: Place, values: list[Operand]) -> list[Operand]:
            first = [values[i * unroll] for i in range(num)]
            after = self.point(walk, reductions, dict(env), inside, first)
            merged = list(values)
            for i, value in enumerate(after):
                merged[i * unroll] = value
            return merged

        def scalar(inside: Place, values: list[Operand]) -> list[Operand]:
            after = self.point(walk, reductions, dict(env), inside, values[every:])
            return [*values[:every], *after]

        stop = self.b.i64(self.nest.extents[vector])
        return self.vector_range(self.b.i64(0), stop, place, carried, main, single, scalar)

    def vector_range(
        self,
        start: Operand,
        stop: Operand,
        place: Place,
        carried: list[Operand],
        main: Body,
        single: Body,
        scalar: Body,
    ) -> list[Operand]:
        """Write loops over a range of the vector dim: unrolled, single vectors, then the tail."""
        plan = self.schedule
        width = plan.lanes * plan.unroll
        total = self.nest.extents[plan.vector] if plan.vector is not None else 1
        at, named = start, is_named(total)
        if named or total >= width:
            at, carried = self.strip(at, stop, place, carried, main, plan.unroll)
        if not named and total % width == 0:
            return carried
        if plan.masked:
            return self.masked_strip(at, stop, place, carried, single)
        if plan.unroll > 1 and (named or total % width >= plan.lanes):
            at, carried = self.strip(at, stop, place, carried, single, 1)
        if not named and total % plan.lanes == 0:
            return carried

        def one(index: Operand, values: list[Operand]) -> list[Operand]:
            return scalar(self.vector_place(place, index, 1, 1, None), values)

        return self.b.loop(at, stop, 1, carried, one)

    def strip(
        self,
        start: Operand,
        stop: Operand,
        place: Place,
        carried: list[Operand],
        body: Body,
        unroll: int,
    ) -> tuple[Operand, list[Operand]]:
        """Write a loop over whole vectors; returns where it ends."""
        b, lanes = self.b, self.schedule.lanes
        width = lanes * unroll
        if start.literal is not None and stop.literal is not None:
            end = b.i64(int(stop.literal - (stop.literal - start.literal) % width))
        else:
            length = b.binary("sub nsw", stop, start)
            end = b.add(start, b.binary("and", length, b.i64(-width)))

        def inside(index: Operand, values: list[Operand]) -> list[Operand]:
            return body(self.vector_place(place, index, lanes, unroll, None), values)

        return end, b.loop(start, end, width, carried, inside)

    def masked_strip(
        self, start: Operand, stop: Operand, place: Place, carried: list[Operand], body: Body
    ) -> list[Operand]:
        """Write a loop over single vectors whose last is masked."""
        b, lanes = self.b, self.schedule.lanes
        kind = Type("i32", lanes)

        def inside(index: Operand, values: list[Operand]) -> list[Operand]:
            left = b.convert("trunc", b.binary("sub nsw", stop, index), "i32")
            mask = b.compare("icmp slt", b.iota(kind), b.splat(left, lanes))
            return body(self.vector_place(place, index, lanes, 1, mask), values)

        return b.loop(start, stop, lanes, carried, inside)

    def vector_place(
        self, place: Place, index: Operand, lanes: int, unroll: int, mask: Operand | None
    ) -> Place:
        """Return the place inside the vector loop."""
        vector = self.schedule.vector
        assert vector is not None
        return Place(
            {**place.indices, vector: index}, lanes, unroll, mask, vector, local=self.across
        )
