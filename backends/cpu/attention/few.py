"""Attention of few rows, as a decoder's single tokens: keys and values are read once, in place.

Scores are dot products with features in the lanes, the softmax has keys in the lanes, and rows of V
are added with features in the lanes again. All rows are one block; threads share out heads, and
parts of the keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from irc.backends.cpu.attention.blocks import FEW, AttentionPlan, AttentionWriter, Unit
from irc.backends.cpu.attention.softmax import LOG2E, NEVER, masked, maximum, power_of_two
from irc.backends.cpu.attention.store import LN2
from irc.backends.cpu.loops.sizes import is_named
from irc.backends.cpu.matmul.dots import add_lanes, dots_function
from irc.backends.cpu.matmul.tile import Factor, tile_function
from irc.backends.cpu.vector.builder import Builder, Operand, Type, constant
from irc.backends.cpu.vector.logarithms import log as logarithm
from irc.backends.cpu.vector.storage import MEMORY, pack, unpack

AHEAD = 6
"""Rows of V that are asked for ahead."""


def suits_few(plan: AttentionPlan) -> bool:
    """True where rows are few, and features lie side by side and fill a vector."""
    form = plan.form
    near = all(form.places[role].feature == 1 for role in ("q", "k", "v", "y"))
    return not is_named(plan.rows) and plan.rows <= FEW and near and form.width >= plan.lanes


class FewWriter(AttentionWriter):
    """Writes the form for few rows."""

    def __init__(self, b: Builder, plan: AttentionPlan, buffers: dict[int, Operand]) -> None:
        super().__init__(b, plan, buffers)
        self.rows, lanes = plan.rows, plan.lanes
        self.kind, self.one = Type("float", lanes), Type("float")
        unit = max(lanes, 8)  # dots are made in groups of up to 8
        self.pitch = -(-plan.keys // unit) * unit
        registers = 24 if plan.features.registers == 32 else 12
        self.vectors = max(1, min(registers // self.rows, self.form.width // lanes))
        self.columns = self.vectors * lanes
        self.tiles = -(-self.form.width // self.columns)
        self.group = next(g for g in (8, 4, 2, 1) if g * self.rows <= registers)
        self.scores_at = self.reserve(self.rows * self.pitch)
        self.totals_at = self.reserve(self.tiles * self.rows * self.columns)

    def write(self) -> None:
        """Write the loop over the units of a thread."""
        form, plan = self.form, self.plan
        q, k, v = (self.place(role) for role in ("q", "k", "v"))
        shape = (self.rows, self.pitch, form.depth)
        dots_function(
            self.b, "irc.attention.dots", self.kind, shape, self.group,
            Factor(q.dtype, (q.strides[plan.row], 1)), Factor(k.dtype, (1, k.strides[-1])),
        )  # fmt: skip
        tile_function(
            self.b, "irc.attention.values", self.kind, (self.rows, self.vectors),
            Factor("f32", (self.pitch, 1)),
            Factor(v.dtype, (v.strides[-1], 1), AHEAD * v.strides[-1]),
            odd=True, accumulate=True,
        )  # fmt: skip
        self.units(self._unit_body)

    def _unit_body(self, unit: Unit) -> None:
        b, rows = self.b, self.rows
        tops, sums = self._begin(unit)

        def block(key: Operand, state: list[Operand]) -> list[Operand]:
            left = b.binary("sub nsw", unit.stop, key)
            count = b.intrinsic("smin", left, b.i64(self.plan.keys))
            return self._block(unit, key, count, state)

        state = b.loop(unit.start, unit.stop, self.plan.keys, [*tops, *sums], block)
        self._store(unit, state[:rows], state[rows:])

    def _begin(self, unit: Unit) -> tuple[list[Operand], list[Operand]]:
        """Write what the softmax goes on from."""
        b, never, zero = self.b, constant(self.one, NEVER), constant(self.one, 0.0)
        for tile in range(self.tiles):
            for row in range(self.rows):
                for v in range(self.vectors):
                    self._start_vector(unit, tile, row, v)
        if "y0" not in self.form.places:
            return [never] * self.rows, [zero] * self.rows
        tops: list[Operand] = []
        for row in range(self.rows):
            earlier = b.load(self.one, self.address("sums0", unit, b.i64(row)))
            tops.append(b.binary("fmul", earlier, constant(self.one, LOG2E)))
        seen = [b.compare("fcmp une", top, never) for top in tops]
        return tops, [b.select(some, constant(self.one, 1.0), zero) for some in seen]

    def _start_vector(self, unit: Unit, tile: int, row: int, v: int) -> None:
        b, value = self.b, constant(self.kind, 0.0)
        if "y0" in self.form.places:
            place = self.place("y0")
            memory, at = MEMORY[place.dtype], self.address("y0", unit, b.i64(row))
            raw = b.load(Type(memory), at)
            if place.feature == 1:
                at = b.address(at, memory, b.i64(self._feature(tile, v)))
                raw = b.load(Type(memory, self.plan.lanes), at)
            else:
                lanes = Operand(Type(memory, self.plan.lanes), "poison")
                for lane in range(self.plan.lanes):
                    index = (self._feature(tile, v) + lane) * place.feature
                    one = b.load(Type(memory), b.address(at, memory, b.i64(index)))
                    lanes = b.insert(lanes, one, lane)
                raw = lanes
            value = unpack(b, raw, place.dtype)
        b.store(value, self._total(tile, row, v))

    def _feature(self, tile: int, v: int) -> int:
        """The first feature of a vector; the last tile is moved back, to end with the row."""
        first = min(tile * self.columns, self.form.width - self.columns)
        return first + v * self.plan.lanes

    def _total(self, tile: int, row: int, v: int) -> Operand:
        """The address of what is accumulated in a vector."""
        index = (tile * self.rows + row) * self.columns + v * self.plan.lanes
        return self.scratch_at(self.totals_at + index * 4)

    def _block(
        self, unit: Unit, key: Operand, count: Operand, state: Sequence[Operand]
    ) -> list[Operand]:
        """Write what one block of keys does; returns the state after it."""
        b, rows = self.b, self.rows
        scores = self.scratch_at(self.scores_at)
        q, k = self.address("q", unit, b.i64(0)), self.address("k", unit, None, key)
        self.call("dots", q, k, scores, count)
        block_tops = self._largest(unit, key, count)
        tops = [maximum(b, top, old) for top, old in zip(block_tops, state[:rows], strict=True)]
        empty = [b.compare("fcmp oeq", top, constant(self.one, NEVER)) for top in tops]
        zero = constant(self.one, 0.0)
        safe = [b.select(none, zero, top) for none, top in zip(empty, tops, strict=True)]
        changes = [
            power_of_two(b, b.binary("fsub", old, top))
            for old, top in zip(state[:rows], safe, strict=True)
        ]
        added = self._powers(count, safe)
        rest = zip(state[rows:], changes, added, strict=True)
        sums = [b.fma(total, change, more) for total, change, more in rest]
        for tile in range(self.tiles):
            self._add_values(unit, key, count, tile, changes)
        return [*tops, *sums]

    def _at(self, row: int, index: Operand) -> Operand:
        """The address of the scores of a row from some key of the block on."""
        start = self.scratch_at(self.scores_at + row * self.pitch * 4)
        return self.b.address(start, "float", index)

    def _largest(self, unit: Unit, key: Operand, count: Operand) -> list[Operand]:
        """Scale and mask scores, where they lie; returns the largest of each row."""
        b, lanes = self.b, self.plan.lanes
        factor = constant(self.kind, self.form.scale * LOG2E)

        def step(index: Operand, tops: list[Operand]) -> list[Operand]:
            after: list[Operand] = []
            for row, top in enumerate(tops):
                at = self._at(row, index)
                score = b.binary("fmul", b.load(self.kind, at), factor)
                score = self._masked(
                    unit, row, b.add(key, index), self._exists(index, count), score
                )
                b.store(score, at)
                after.append(maximum(b, score, top))
            return after

        never = [constant(self.kind, NEVER)] * self.rows
        tops = b.loop(b.i64(0), count, lanes, never, step)
        return [self._joined(top) for top in tops]

    def _joined(self, top: Operand) -> Operand:
        """Return the largest lane."""
        b, width = self.b, self.plan.lanes
        while width > 1:
            width //= 2
            low = b.shuffle(top, top, range(width)) if width > 1 else b.lane(top, 0)
            high = b.shuffle(top, top, range(width, 2 * width)) if width > 1 else b.lane(top, 1)
            top = maximum(b, low, high)
        return top

    def _exists(self, index: Operand, count: Operand) -> Operand:
        """Return which lanes are keys of the block."""
        b, kind = self.b, Type("i32", self.plan.lanes)
        left = b.convert("trunc", b.binary("sub nsw", count, index), "i32")
        return b.compare("icmp slt", b.iota(kind), b.splat(left, kind.lanes))

    def _masked(
        self, unit: Unit, row: int, key: Operand, exists: Operand, score: Operand
    ) -> Operand:
        b, never, lanes = self.b, constant(self.kind, NEVER), self.plan.lanes
        if "mask" in self.form.places:
            mask = self._mask(unit, row, key, exists)
            if self.place("mask").dtype == "i1":
                score = b.select(mask, score, never)
            else:
                score = masked(b, mask, score)
        if unit.shift is not None:
            moves = self.plan.row == len(self.form.space) - 3
            last = b.add(unit.shift, b.i64(row if moves else 0))
            left = b.splat(b.convert("trunc", b.binary("sub nsw", last, key), "i32"), lanes)
            seen = b.compare("icmp sle", b.iota(left.type), left)
            score = b.select(seen, score, never)
        return b.select(exists, score, never)

    def _mask(self, unit: Unit, row: int, key: Operand, exists: Operand) -> Operand:
        """Return the mask of a row for the keys of a vector; of what exists alone."""
        b, place, lanes = self.b, self.place("mask"), self.plan.lanes
        memory, stride = MEMORY[place.dtype], place.strides[-1]
        at = self.address("mask", unit, b.i64(row), key)
        kind = Type(memory, lanes)
        if stride == 0:
            return b.splat(unpack(b, b.load(Type(memory), at), place.dtype), lanes)
        zero = Operand(kind, "zeroinitializer")
        if stride == 1:
            align = constant(Type("i32"), kind.bits // 8)
            raw = b.call(kind, f"llvm.masked.load.{kind.mangled}.p0", at, align, exists, zero)
            return unpack(b, raw, place.dtype)
        steps = b.binary("mul", b.iota(Type("i64", lanes)), b.splat(b.i64(stride), lanes))
        steps = b.select(exists, steps, constant(steps.type, 0))
        raw = zero
        for lane in range(lanes):
            place_of = b.address(at, memory, b.lane(steps, lane))
            raw = b.insert(raw, b.load(Type(memory), place_of), lane)
        return unpack(b, raw, place.dtype)

    def _powers(self, count: Operand, tops: Sequence[Operand]) -> list[Operand]:
        """Replace scores by powers; returns the sum of each row."""
        b, lanes = self.b, self.plan.lanes
        wide = [b.splat(top, lanes) for top in tops]

        def step(index: Operand, sums: list[Operand]) -> list[Operand]:
            after: list[Operand] = []
            for row, (top, total) in enumerate(zip(wide, sums, strict=True)):
                at = self._at(row, index)
                power = power_of_two(b, b.binary("fsub", b.load(self.kind, at), top))
                b.store(power, at)
                after.append(b.binary("fadd", total, power))
            return after

        zeros = [constant(self.kind, 0.0)] * self.rows
        return [add_lanes(b, x) for x in b.loop(b.i64(0), count, lanes, zeros, step)]

    def _add_values(
        self, unit: Unit, key: Operand, count: Operand, tile: int, changes: Sequence[Operand]
    ) -> None:
        """Scale what was accumulated in some features, and add rows of V."""
        b, place = self.b, self.place("v")
        for row, change in enumerate(changes):
            factor = b.splat(change, self.plan.lanes)
            for v in range(self.vectors):
                at = self._total(tile, row, v)
                b.store(b.binary("fmul", b.load(self.kind, at), factor), at)
        start = self.address("v", unit, None, key)
        start = b.address(start, MEMORY[place.dtype], b.i64(self._feature(tile, 0)))
        scores, total = self.scratch_at(self.scores_at), self._total(tile, 0, 0)
        self.call("values", scores, start, total, count)

    def _store(self, unit: Unit, tops: Sequence[Operand], sums: Sequence[Operand]) -> None:
        """Store rows of y, and log-sums."""
        b, place, zero = self.b, self.place("y"), constant(self.one, 0.0)
        memory = MEMORY[place.dtype]
        for row, (top, total) in enumerate(zip(tops, sums, strict=True)):
            start = self.address("y", unit, b.i64(row))
            empty = b.compare("fcmp oeq", total, zero)
            inverse = b.binary("fdiv", constant(self.one, 1.0), total)
            factor = b.splat(b.select(empty, zero, inverse), self.plan.lanes)
            for tile in range(self.tiles):
                for v in range(self.vectors):
                    value = b.binary("fmul", b.load(self.kind, self._total(tile, row, v)), factor)
                    at = b.address(start, memory, b.i64(self._feature(tile, v)))
                    b.store(pack(b, value, place.dtype), at)
            if "sums" in self.form.places:
                value = b.fma(top, constant(self.one, LN2), logarithm(b, total))
                b.store(value, self.address("sums", unit, b.i64(row)))
