"""Attention of many rows on tile registers: both products, the softmax between them in vectors."""

from __future__ import annotations

from irc.backends.cpu.amx import tiles
from irc.backends.cpu.attention.amx_pack import Packer
from irc.backends.cpu.attention.amx_tiles import (
    SIDE,
    STEP,
    configure,
    define_scores,
    define_values,
    keys_across,
    packed_elements,
    padded,
)
from irc.backends.cpu.attention.blocks import AttentionPlan, Unit
from irc.backends.cpu.attention.lanes import LanesWriter
from irc.backends.cpu.loops.sizes import is_named
from irc.backends.cpu.vector.builder import Builder, Operand, constant


class AmxWriter(LanesWriter):
    """Writes the form for many rows of bfloat16 on tile registers.

    K and V are packed where a head begins; a block at a time where the number of keys is open.
    """

    def __init__(self, b: Builder, plan: AttentionPlan, buffers: dict[int, Operand]) -> None:
        super().__init__(b, plan, buffers)
        form = self.form
        self.masks.group, self.rounds = STEP, True
        self.open = is_named(form.chunk)
        self.depth, self.width = padded(form)
        keys, values = packed_elements(form, plan.keys if self.open else form.chunk)
        self.panels = {"k": (self.reserve(keys // 2), self.depth)}
        self.panels["v"] = (self.reserve(values // 2), self.width)

    def write(self) -> None:
        """Write the loop over the units of a thread."""
        b, plan = self.b, self.plan
        define_scores(b, "irc.attention.scores", plan)
        define_values(b, "irc.attention.values", plan)
        for role in self.panels:
            Packer(b, self.form, role).define(f"irc.attention.pack_{role}")
        configure(b)
        # Features of queries that only whole tiles have.
        self._zeros(self.scratch_at(self.queries_at), b.i64(self.form.depth // 2), self.depth // 2)
        super().write()
        tiles.release(b)

    def _zeros(self, rows: Operand, first: Operand, stop: int | Operand) -> None:
        """Write zeros to vectors of rows."""
        b = self.b

        def row(index: Operand, _: list[Operand]) -> list[Operand]:
            start = b.address(rows, "float", b.scale(index, self.plan.block))
            for v in range(self.vectors):
                at = b.address(start, "float", b.i64(v * self.plan.lanes))
                b.store(constant(self.kind, 0.0), at)
            return []

        b.loop(first, b.i64(stop), 1, [], row)

    def _pack_values(self, unit: Unit) -> None:
        """Pack a head; all keys of a part, whatever its rows see."""
        b, form = self.b, self.form
        stop = b.i64(form.keys)
        if form.parts > 1:
            stop = b.intrinsic("smin", b.add(unit.part, b.i64(form.chunk)), stop)
        for role in self.panels:
            self._pack(role, unit, unit.part, b.binary("sub nsw", stop, unit.part))

    def _pack(self, role: str, unit: Unit, key: Operand, count: Operand) -> Operand:
        target = self.scratch_at(self.panels[role][0])
        self.call(f"pack_{role}", self.address(role, unit, None, key), target, count)
        return target

    def _panel(self, role: str, unit: Unit, key: Operand, count: Operand) -> Operand:
        """Return the address of a packed block, which begins at a whole step."""
        if self.open:
            return self._pack(role, unit, key, count)
        at, features = self.panels[role]
        passed = self.b.binary("sub nsw", key, unit.part)
        return self.b.address(self.scratch_at(at), "i16", self.b.scale(passed, features))

    def _scores(self, unit: Unit, key: Operand, count: Operand, skip: int) -> None:
        """Write the product of a block of K with the queries."""
        b, panel = self.b, self._panel("k", unit, key, count)

        def tile(index: Operand, _: list[Operand]) -> list[Operand]:
            rows = b.address(panel, "i16", b.scale(index, self.depth))
            target = b.address(self.scores, "float", b.scale(index, self.plan.block))
            self.call("scores", rows, self.scratch_at(self.queries_at), target)
            return []

        b.loop(b.i64(0), count, SIDE * keys_across(self.plan), [], tile)

    def _values(self, unit: Unit, key: Operand, count: Operand, skip: int) -> None:
        """Write the product of a block's powers with V, added to what was accumulated."""
        b, steps = self.b, self.b.parts(count, STEP)
        # Keys that the block lacks to whole steps.
        self._zeros(self.scores, b.parts(count, 2), b.scale(steps, SIDE))
        panel = self._panel("v", unit, key, count)
        self.call("values", panel, self.scores, self.scratch_at(self.totals_at), steps)
