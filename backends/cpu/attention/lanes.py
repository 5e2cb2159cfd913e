"""Attention of many rows: queries in the lanes, keys and values broadcast from where they lie.

For a block of rows the queries are packed as ``[features][rows]``; then ``scores[keys][rows]`` is
the register tile of rows of K with that panel, and what is accumulated, ``[features][rows]``, the
one of columns of V with the scores. K and V are never packed, and the softmax is vertical.
"""

from __future__ import annotations

from collections.abc import Sequence

from irc.backends.cpu.attention.amx_tiles import padded
from irc.backends.cpu.attention.blocks import AttentionPlan, AttentionWriter, Unit
from irc.backends.cpu.attention.mask import MaskWriter
from irc.backends.cpu.attention.pairs import packed_pairs, rounded_pairs
from irc.backends.cpu.attention.softmax import LOG2E, NEVER, Block, maximum, power_of_two, powers
from irc.backends.cpu.attention.store import store_block, store_sums
from irc.backends.cpu.attention.tiles import APART, LATE, choose_tiles, define_functions
from irc.backends.cpu.loops.sizes import is_named
from irc.backends.cpu.vector.builder import Builder, Operand, Type, constant
from irc.backends.cpu.vector.exponentials import EXP2, EXP2_HALF
from irc.backends.cpu.vector.storage import MEMORY


class LanesWriter(AttentionWriter):
    """Writes the form for many rows."""

    def __init__(self, b: Builder, plan: AttentionPlan, buffers: dict[int, Operand]) -> None:
        super().__init__(b, plan, buffers)
        form = self.form
        self.kind = Type("float", plan.lanes)
        tiles = choose_tiles(plan)
        self.tiles, self.vectors, self.tile = tiles, tiles.vectors, tiles.keys
        self.pairs, self.copied = tiles.pairs, tiles.copied
        depth, width = padded(form) if tiles.amx else (form.depth, form.width)
        self.queries_at = self.reserve(depth * plan.block)
        self.scores_at = self.reserve((plan.keys + 2 * self.tile) * plan.block)
        self.totals_at = self.reserve(width * plan.block)
        self.copies_at = {
            "k": self.reserve(
                (plan.keys + self.tile) * (form.depth + APART) * ("k" in self.copied)
            ),
            "v": self.reserve(plan.keys * (form.width + APART) * ("v" in self.copied)),
        }
        packs = self.pairs and not tiles.amx
        self.packed_at = self.reserve(packed_pairs(form) * form.width * packs)
        self.masks = MaskWriter(self, self.kind, self.vectors)

    @property
    def scores(self) -> Operand:
        """The address of a block's scores; those of a tile lie in front."""
        return self.scratch_at(self.scores_at + self.tile * self.plan.block * 4)

    def write(self) -> None:
        """Write the loop over the units of a thread."""
        define_functions(self.b, self.plan, self.tiles)
        packs = self.pairs and not is_named(self.form.chunk)
        self.units(self._unit_body, self._pack_values if packs else None)

    def _unit_body(self, unit: Unit) -> None:
        b, plan, form = self.b, self.plan, self.form
        valid, unit = self.valid, self.masks.trimmed(unit)
        panel = self.scratch_at(self.queries_at)
        q = self.address("q", unit, unit.first)
        depth = b.i64(form.depth // 2 if self.pairs else form.depth)
        self.call("pack_q", q, panel, valid, depth)
        tops, sums = self._begin(unit, valid)

        early = self._early(unit) if self.tiles.late else unit.stop

        def block(key: Operand, state: list[Operand]) -> list[Operand]:
            left = b.binary("sub nsw", early, key)
            count = b.intrinsic("smin", left, b.i64(plan.keys))
            return self._block(unit, key, count, state)

        state = b.loop(unit.start, early, plan.keys, [*tops, *sums], block)
        if self.tiles.late:
            state = self._late(unit, early, state)
        tops, sums = state[: self.vectors], state[self.vectors :]
        store_block(self, unit, self.scratch_at(self.totals_at), sums)
        if "sums" in form.places:
            store_sums(self, unit, tops, sums)

    def _early(self, unit: Unit) -> Operand:
        """Return the first key that only later rows see, the first vector of rows none of it."""
        b, shift = self.b, unit.shift
        assert shift is not None
        after = b.binary("sub nsw", b.add(shift, b.i64(self.plan.lanes)), unit.start)
        # Pairs of keys stay pairs.
        after = b.binary("and", b.add(after, b.i64(1)), b.i64(-2))
        after = b.intrinsic("smax", after, b.i64(0))
        return b.intrinsic("smin", b.add(unit.start, after), unit.stop)

    def _late(self, unit: Unit, early: Operand, state: Sequence[Operand]) -> list[Operand]:
        """Write what the last keys do to the rows that see them: the upper half of the diagonal."""

        def block(key: Operand, late: list[Operand]) -> list[Operand]:
            return self._block(unit, key, self.b.binary("sub nsw", unit.stop, key), late, skip=1)

        late_state = self.b.loop(early, unit.stop, self.plan.keys, [state[1], state[3]], block)
        return [state[0], late_state[0], state[2], late_state[1]]

    def _begin(self, unit: Unit, valid: Operand) -> tuple[list[Operand], list[Operand]]:
        """Write what the softmax goes on from: nothing, or the result over other keys."""
        b, form = self.b, self.form
        totals = self.scratch_at(self.totals_at)
        if "y0" not in form.places:
            if not self.plan.is_one_block:
                self._fill(totals)
            never, zero = constant(self.kind, NEVER), constant(self.kind, 0.0)
            return [never] * self.vectors, [zero] * self.vectors
        y0 = self.address("y0", unit, unit.first)
        self.call("pack_y0", y0, totals, valid, b.i64(form.width))
        tops: list[Operand] = []
        for v in range(self.vectors):
            earlier = self.masks.rows("sums0", unit, v, None)
            tops.append(b.binary("fmul", earlier, constant(self.kind, LOG2E)))
        seen = [b.compare("fcmp une", top, constant(self.kind, NEVER)) for top in tops]
        one, zero = constant(self.kind, 1.0), constant(self.kind, 0.0)
        return tops, [b.select(some, one, zero) for some in seen]

    def _fill(self, totals: Operand) -> None:
        b = self.b

        def zero(index: Operand, _: list[Operand]) -> list[Operand]:
            b.store(constant(self.kind, 0.0), b.address(totals, "float", index))
            return []

        count = self.form.width * self.plan.block
        b.loop(b.i64(0), b.i64(count), self.plan.lanes, [], zero)

    def _block(
        self,
        unit: Unit,
        key: Operand,
        count: Operand,
        state: Sequence[Operand],
        skip: int = 0,
    ) -> list[Operand]:
        """Write what one block of keys does, but to the first vectors; returns the state after."""
        b, plan, vectors = self.b, self.plan, self.vectors - skip
        self._scores(unit, key, count, skip)
        block = Block(self.scores, count, self.kind, vectors, skip)
        factor = None if plan.scores_scaled else self.form.scale * LOG2E
        pairs = rounded_pairs if self.pairs else None
        exact = EXP2_HALF if self.tiles.amx else EXP2
        tops = self.masks.largest(unit, key, block)
        if factor is not None:
            tops = [b.binary("fmul", top, constant(self.kind, factor)) for top in tops]
        if plan.is_one_block:
            safe = [self._finite(top) for top in tops]
            sums = powers(b, block, factor, safe, pairs, exact)
        else:
            old = state[:vectors]
            tops = [maximum(b, top, before) for top, before in zip(tops, old, strict=True)]
            safe = [self._finite(top) for top in tops]
            changes = [
                power_of_two(b, b.binary("fsub", x, y)) for x, y in zip(old, safe, strict=True)
            ]
            added = powers(b, block, factor, safe, pairs, exact)
            rest = zip(state[vectors:], changes, added, strict=True)
            sums = [b.fma(total, change, more) for total, change, more in rest]
            self._rescale(changes, skip)
        self._values(unit, key, count, skip)
        return [*tops, *sums]

    def _pack_values(self, unit: Unit) -> None:
        """Pack the values of a head in pairs of keys; all of a part, whatever its rows see."""
        b, form = self.b, self.form
        stop = b.i64(form.keys)
        if form.parts > 1:
            stop = b.intrinsic("smin", b.add(unit.start, b.i64(form.chunk)), stop)
        source, target = self.address("v", unit, None, unit.start), self.scratch_at(self.packed_at)
        count = b.binary("sub nsw", stop, unit.start)
        self.call("pack_v", source, target, count)

    def _finite(self, top: Operand) -> Operand:
        """Return what is subtracted: 0 for rows that see nothing, whose powers are then 0."""
        empty = self.b.compare("fcmp oeq", top, constant(self.kind, NEVER))
        return self.b.select(empty, constant(self.kind, 0.0), top)

    def _rescale(self, changes: Sequence[Operand], skip: int) -> None:
        """Multiply what was accumulated under smaller tops."""
        b, totals = self.b, self.scratch_at(self.totals_at)

        def feature(index: Operand, _: list[Operand]) -> list[Operand]:
            row = b.address(totals, "float", b.scale(index, self.plan.block))
            for v, change in enumerate(changes, skip):
                at = b.address(row, "float", b.i64(v * self.plan.lanes))
                b.store(b.binary("fmul", b.load(self.kind, at), change), at)
            return []

        b.loop(b.i64(0), b.i64(self.form.width), 1, [], feature)

    def _copy(self, role: str, unit: Unit, key: Operand, count: Operand) -> Operand:
        """Copy a block of keys or values; returns the copy's address."""
        source, target = self.address(role, unit, None, key), self.scratch_at(self.copies_at[role])
        self.call(f"copy_{role}", source, target, count)
        return target

    def _scores(self, unit: Unit, key: Operand, count: Operand, skip: int) -> None:
        """Write the product of a block of K with the queries."""
        b, form, before = self.b, self.form, skip * self.plan.lanes * 4
        panel, scores = self.scratch_at(self.queries_at + before), self._from(self.scores, skip)
        suffix, size = LATE * bool(skip), self.tiles.late if skip else self.tile
        copy = self._copy("k", unit, key, count) if "k" in self.copied else None

        def tile(index: Operand, name: str = "scores") -> list[Operand]:
            if copy is not None:
                at = index
                rows = b.address(copy, "float", b.scale(index, form.depth + APART))
            else:
                # The last tile is moved back rather than read past the end.
                most = size if name == "scores" else 1
                first = b.intrinsic("smin", b.add(key, index), b.i64(form.keys + -most))
                at = b.binary("sub nsw", first, key)
                rows = self.address("k", unit, None, first)
            target = b.address(scores, "float", b.scale(at, self.plan.block))
            depth = b.i64(form.depth // 2 if self.pairs else form.depth)
            self.call(name + suffix, rows, panel, target, depth)
            return []

        def tiles() -> None:
            b.loop(b.i64(0), count, size, [], lambda i, _: tile(i))

        def single() -> None:
            b.loop(b.i64(0), count, 1, [], lambda i, _: tile(i, "score"))

        if copy is not None or not is_named(form.keys):
            tiles()
            return
        b.either(b.compare("icmp sge", b.i64(form.keys), b.i64(self.tile)), tiles, single)

    def _from(self, row: Operand, skip: int) -> Operand:
        """Return the address of a row's first vector that is not left alone."""
        return self.b.address(row, "float", self.b.i64(skip * self.plan.lanes))

    def _values(self, unit: Unit, key: Operand, count: Operand, skip: int) -> None:
        """Write the product of a block's powers with V, added to what was accumulated."""
        b, form, place = self.b, self.form, self.place("v")
        memory, step, suffix = MEMORY[place.dtype], place.feature, LATE * bool(skip)
        powers_at = self._from(self.scores, skip)
        totals = self._from(self.scratch_at(self.totals_at), skip)
        if self.pairs:
            # Blocks begin at even keys of a part.
            count = b.binary("lshr", b.add(count, b.i64(1)), b.i64(1))
            passed = b.scale(b.binary("sub nsw", key, unit.part), form.width)
            rows, step = b.address(self.scratch_at(self.packed_at), memory, passed), 2
        elif "v" in self.copied:
            rows, memory, step = self._copy("v", unit, key, count), "float", 1
        else:
            rows = self.address("v", unit, None, key)

        def tile(feature: Operand, count_of: int) -> list[Operand]:
            start = b.address(rows, memory, b.scale(feature, step))
            target = b.address(totals, "float", b.scale(feature, self.plan.block))
            self.call(f"values{count_of}{suffix}", start, powers_at, target, count)
            return []

        columns = self.tiles.features
        whole = form.width // columns * columns
        b.loop(b.i64(0), b.i64(whole), columns, [], lambda i, _: tile(i, columns))
        if whole < form.width:
            tile(b.i64(whole), form.width - whole)
