"""Masks of attention with rows in the lanes: causal, bool, additive, read by their strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from irc.backends.cpu.attention.softmax import LOG2E, NEVER, Block, largest, masked
from irc.backends.cpu.vector.builder import Operand, Type, constant
from irc.backends.cpu.vector.storage import MEMORY, unpack

if TYPE_CHECKING:
    from irc.backends.cpu.attention.blocks import AttentionWriter, Unit

GROUP = 8
"""Keys of a mask that are looked at together, unless told otherwise."""


class MaskWriter:
    """Writes the largest score of each row, after what a mask and the diagonal take away."""

    def __init__(self, writer: AttentionWriter, kind: Type, vectors: int) -> None:
        self.writer, self.b, self.plan = writer, writer.b, writer.plan
        self.form, self.kind, self.vectors = writer.form, kind, vectors
        self.group = GROUP

    def trimmed(self, unit: Unit) -> Unit:
        """Return a unit without the keys at either end that a bool mask hides from all its rows.

        One key stays where there was any. Keys are looked at by groups, from the first of the
        part on, so that pairs of keys stay pairs, and steps steps.
        """
        b, place = self.b, self.form.places.get("mask")
        if place is None or place.dtype != "i1" or place.strides[self.plan.row] not in (0, 1):
            return unit
        rows = self.plan.rows
        if place.strides[self.plan.row] and (self.plan.varies or rows < self.plan.block):
            return unit
        count = b.binary("sub nsw", unit.stop, unit.start)
        whole = b.add(unit.start, b.binary("and", count, b.i64(-self.group)))

        def group(key: Operand, ends: list[Operand]) -> list[Operand]:
            seen = self._any(unit, key, b.i64(0), b.i64(self.group))
            return self._ends(seen, ends, key, b.add(key, b.i64(self.group)))

        ends = b.loop(unit.start, whole, self.group, [unit.stop, unit.start], group)
        seen = self._any(unit, whole, b.i64(0), b.binary("sub nsw", unit.stop, whole))
        first, last = self._ends(seen, ends, whole, unit.stop)
        none = b.compare("icmp sge", first, last)
        one = b.intrinsic("smin", b.add(unit.start, b.i64(1)), unit.stop)
        start, stop = b.select(none, unit.start, first), b.select(none, one, last)
        return replace(unit, start=start, stop=stop)

    def _ends(
        self, seen: Operand, ends: Sequence[Operand], low: Operand, high: Operand
    ) -> list[Operand]:
        """Widen what is seen to ``low..high``."""
        first, last = ends
        first = self.b.select(seen, self.b.intrinsic("smin", first, low), first)
        return [first, self.b.select(seen, high, last)]

    def _any(self, unit: Unit, key: Operand, low: Operand, high: Operand) -> Operand:
        """Return whether any row of a block sees any of some keys."""
        b, place = self.b, self.form.places["mask"]
        kind = Type("i8", self.plan.block if place.strides[self.plan.row] else 1)

        def more(index: Operand, state: list[Operand]) -> list[Operand]:
            at = self.writer.address("mask", unit, unit.first, b.add(key, index))
            return [b.binary("or", state[0], b.load(kind, at))]

        (seen,) = b.loop(low, high, 1, [constant(kind, 0)], more)
        bits = Type(f"i{8 * kind.lanes}")
        whole = seen if kind.lanes == 1 else b.emit(bits, f"bitcast {seen} to {bits}")
        return b.emit(Type("i1"), f"icmp ne {whole}, 0")

    def largest(self, unit: Unit, key: Operand, block: Block) -> list[Operand]:
        """Return the largest score of each row of a block that begins at ``key``."""
        b = self.b
        if unit.shift is None:
            return self._largest(unit, key, block, None)
        # A block below the diagonal for all its rows needs no comparison.
        last = b.add(key, block.count)
        crosses = b.compare("icmp sgt", last, b.add(unit.shift, b.i64(1)))
        return self._either(
            crosses,
            lambda: self._largest(unit, key, block, unit.shift),
            lambda: self._largest(unit, key, block, None),
        )

    def _either(
        self,
        condition: Operand,
        then: Callable[[], list[Operand]],
        other: Callable[[], list[Operand]],
    ) -> list[Operand]:
        """Write both ways and join what they give."""
        ends: list[tuple[str, list[Operand]]] = []

        def run(way: Callable[[], list[Operand]]) -> None:
            values = way()
            ends.append((self.b.block, values))

        self.b.either(condition, lambda: run(then), lambda: run(other))
        (one, left), (two, right) = ends
        return [
            self.b.emit(x.type, f"phi {x.type} [ {x.ref}, %{one} ], [ {y.ref}, %{two} ]")
            for x, y in zip(left, right, strict=True)
        ]

    def _largest(
        self, unit: Unit, key: Operand, block: Block, shift: Operand | None
    ) -> list[Operand]:
        has_mask = "mask" in self.form.places
        if shift is None and not has_mask and not self.plan.scores_scaled:
            return largest(self.b, block, None)
        b, diagonal = self.b, self._diagonal(shift)

        def change(index: Operand, scores: Sequence[Operand]) -> list[Operand]:
            at = b.add(key, index)
            changed = list(scores)
            if self.plan.scores_scaled:
                factor = constant(self.kind, self.form.scale * LOG2E)
                changed = [b.binary("fmul", score, factor) for score in changed]
            if has_mask:
                changed = [self._masked(unit, v, at, x) for v, x in enumerate(changed, block.skip)]
            if diagonal is not None:
                rows = diagonal[block.skip :]
                changed = [self._seen(row, at, x) for row, x in zip(rows, changed, strict=True)]
            return changed

        return largest(b, block, change)

    def _diagonal(self, shift: Operand | None) -> list[Operand] | None:
        """Return the last key that each row sees."""
        if shift is None:
            return None
        b, lanes = self.b, self.kind.lanes
        moves = self.plan.row == len(self.form.space) - 3
        kind = Type("i32", lanes)
        first = b.splat(b.convert("trunc", shift, "i32"), lanes)
        if not moves:
            return [first] * self.vectors
        places = [b.iota(kind)] + [
            b.binary("add", b.iota(kind), constant(kind, v * lanes)) for v in range(1, self.vectors)
        ]
        if self.plan.varies:  # rows past the last one are the last one again
            last = b.convert("trunc", b.add(self.writer.valid, b.i64(-1)), "i32")
            places = [b.intrinsic("smin", at, b.splat(last, lanes)) for at in places]
        return [b.binary("add", first, at) for at in places]

    def _seen(self, last: Operand, key: Operand, score: Operand) -> Operand:
        b = self.b
        at = b.splat(b.convert("trunc", key, "i32"), self.kind.lanes)
        return b.select(b.compare("icmp sge", last, at), score, constant(self.kind, NEVER))

    def _masked(self, unit: Unit, v: int, key: Operand, score: Operand) -> Operand:
        """Return scores under the mask of a key; an additive one counts in powers of two."""
        b = self.b
        mask = self.rows("mask", unit, v, key)
        if self.form.places["mask"].dtype == "i1":
            return b.select(mask, score, constant(self.kind, NEVER))
        return masked(b, mask, score)

    def rows(self, role: str, unit: Unit, v: int, key: Operand | None) -> Operand:
        """Return what a role has for the rows of a vector; lanes past the last row repeat it."""
        b, place, lanes = self.b, self.form.places[role], self.kind.lanes
        stride, memory = place.strides[self.plan.row], MEMORY[place.dtype]
        first = self.writer.address(role, unit, unit.first, key)
        if stride == 0:
            return b.splat(unpack(b, b.load(Type(memory), first), place.dtype), lanes)
        if self.plan.varies:
            raw = Operand(Type(memory, lanes), "poison")
            for lane in range(lanes):
                at = b.scale(self.writer.existing(v * lanes + lane), stride)
                raw = b.insert(raw, b.load(Type(memory), b.address(first, memory, at)), lane)
            return unpack(b, raw, place.dtype)
        valid = min(self.plan.rows, self.plan.block) - v * lanes
        if stride == 1 and valid >= lanes:
            at = b.address(first, memory, b.i64(v * lanes))
            return unpack(b, b.load(Type(memory, lanes), at), place.dtype)
        raw = Operand(Type(memory, lanes), "poison")
        for lane in range(lanes):
            index = v * lanes + min(lane, valid - 1)
            at = b.address(first, memory, b.i64(index * stride))
            raw = b.insert(raw, b.load(Type(memory), at), lane)
        return unpack(b, raw, place.dtype)
