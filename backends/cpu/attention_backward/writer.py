"""The loops of a gradient kernel: heads of keys and their parts, blocks of keys, blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from irc.backends.cpu.attention_backward.memory import GradientMemory, Rows
from irc.backends.cpu.attention_backward.plan import GradientPlan
from irc.backends.cpu.attention_backward.slopes import SlopesWriter
from irc.backends.cpu.attention_backward.tiles import (
    Product,
    call_product,
    define_product,
    product_of,
)
from irc.backends.cpu.loops.units import decode
from irc.backends.cpu.vector.builder import I64, Builder, Operand


class GradientWriter(GradientMemory):
    """Writes dq, dk and dv of a thread's share of the heads."""

    def __init__(self, b: Builder, plan: GradientPlan, buffers: dict[int, Operand]) -> None:
        super().__init__(b, plan, buffers)
        self.slopes = SlopesWriter(self)
        self.products = self._products()

    def _products(self) -> dict[str, Product]:
        plan, keys = self.gradients, self.plan.keys
        if plan.pairs:
            by_row, by_key, dtype = (keys, 2), (2, 2 * keys), "bf16"
            strides = {"scores": (self.stride("q"), 2), "given": (self.stride("g"), 2)}
        else:
            by_row, by_key, dtype = (keys, 1), (1, keys), "f32"
            strides = {"scores": (self.pitch("q"), 1), "given": (self.pitch("g"), 1)}
        strides |= {role: by_row if role == "dq" else by_key for role in self.outputs}
        return {name: product_of(plan, name, own, dtype) for name, own in strides.items()}

    def write(self) -> None:
        """Write the loop over the parts of heads of a thread."""
        self.define_moves()
        for product in self.products.values():
            define_product(self.b, self.gradients, product)
        b, plan, form = self.b, self.gradients, self.form
        thread, threads = Operand(I64, "%thread"), Operand(I64, "%threads")
        offset = self.offset() if form.causal else None
        outer = range(len(form.space) - 4)

        def share(of: Operand) -> Operand:
            return b.binary("udiv", b.binary("mul", of, b.i64(plan.units)), threads)

        def one(index: Operand, _: list[Operand]) -> list[Operand]:
            *heads, part = decode(b, index, [*(form.space[d] for d in outer), form.parts])
            if form.causal and form.parts > 1:
                part = self._from_both_ends(part)
            indices = dict(zip(outer, heads, strict=True))
            self._head({**indices, len(form.space) - 2: part}, offset)
            return []

        b.loop(share(thread), share(b.add(thread, b.i64(1))), 1, [], one)

    def _from_both_ends(self, part: Operand) -> Operand:
        """Take parts from both ends in turn: earlier keys are seen by more rows."""
        b = self.b
        half = b.binary("lshr", part, b.i64(1))
        other = b.binary("sub nsw", b.i64(self.form.parts - 1), half)
        odd = b.compare("icmp ne", b.binary("and", part, b.i64(1)), b.i64(0))
        return b.select(odd, other, half)

    def _head(self, indices: Mapping[int, Operand], offset: Operand | None) -> None:
        """Write one part of the keys of one head of keys."""
        b, form, part = self.b, self.form, len(self.form.space) - 2
        zero, rows = b.i64(0), b.i64(form.rows)
        start = b.scale(indices[part], form.chunk)
        stop = b.intrinsic("smin", b.add(start, b.i64(form.chunk)), b.i64(form.keys))
        keeps = "dq" in self.outputs

        def begin(inner: Mapping[int, Operand], sums: Operand) -> None:
            self.begin("dq", inner, zero, sums, rows)

        def store(inner: Mapping[int, Operand], sums: Operand) -> None:
            self.move("store", "dq", sums, self.first("dq", inner, zero), rows)

        def block(key: Operand, _: list[Operand]) -> list[Operand]:
            left = b.binary("sub nsw", stop, key)
            self._keys(indices, key, b.intrinsic("smin", left, b.i64(self.plan.keys)), offset)
            return []

        if keeps:
            self._each_repeat(indices, begin)
        b.loop(start, stop, self.plan.keys, [], block)
        if keeps and not self.gradients.inside:
            self._each_repeat(indices, store)

    def _each_repeat(
        self,
        indices: Mapping[int, Operand],
        body: Callable[[Mapping[int, Operand], Operand], None],
    ) -> None:
        """Write the loop over query heads; ``body`` takes indices and the sums of its queries."""
        b, form, repeat = self.b, self.form, len(self.form.space) - 4

        def one(index: Operand, _: list[Operand]) -> list[Operand]:
            inner = {**indices, repeat: index}
            if self.gradients.inside:
                body(inner, self.first("dq", inner, b.i64(0)))
            else:
                first = b.scale(index, form.rows * self.gradients.depth.padded)
                body(inner, b.address(self.at("dq"), "float", first))
            return []

        b.loop(b.i64(0), b.i64(form.repeats), 1, [], one)

    def _keys(
        self, indices: Mapping[int, Operand], key: Operand, count: Operand, offset: Operand | None
    ) -> None:
        """Write one block of keys: its panels, all rows that see it, what it gives."""
        b, form = self.b, self.form
        half = 2 if self.gradients.pairs else 1
        for role, features in (("k", form.depth), ("v", form.width)):
            start, panel = self.first(role, indices, key), self.at(f"panel_{role}")
            self.move("pack", role, start, panel, count, b.i64(features // half))
        if self.is_moved("k"):
            self.move("rows", "k", self.first("k", indices, key), self.at("k"), count)
        own = [role for role in self.outputs if role != "dq"]
        for role in own:
            self.begin(role, indices, key, self.at(role), count)

        def rows(inner: Mapping[int, Operand], sums: Operand) -> None:
            if offset is None:
                self._all_rows(inner, sums, key, count)
            else:
                self._rows_below(inner, sums, key, count, offset)

        self._each_repeat(indices, rows)
        for role in own:
            self.move("store", role, self.at(role), self.first(role, indices, key), count)

    def _all_rows(
        self, indices: Mapping[int, Operand], sums: Operand, key: Operand, count: Operand
    ) -> None:
        b, total, size = self.b, self.b.i64(self.form.rows), self.plan.block

        def block(row: Operand, _: list[Operand]) -> list[Operand]:
            rows = b.intrinsic("smin", b.binary("sub nsw", total, row), b.i64(size))
            self._block(Rows(indices, row, rows, key, count, count, None), sums)
            return []

        b.loop(b.i64(0), total, size, [], block)

    def _rows_below(
        self,
        indices: Mapping[int, Operand],
        sums: Operand,
        key: Operand,
        count: Operand,
        offset: Operand,
    ) -> None:
        """Write the loop over rows from the diagonal on, few at a time where it crosses.

        ::

            keys ->   x . . .     first: sees the first key
                      x x . .     edge rows at a time
                      x x x .
            below     x x x x     sees all keys of the block, as all after it
        """
        b, total, size = self.b, self.b.i64(self.form.rows), self.plan.block
        edge = self.gradients.edge
        ahead = b.binary("sub nsw", key, offset)
        first = self._clamped(ahead, total)
        below = self._clamped(b.binary("sub nsw", b.add(ahead, count), b.i64(1)), total)
        edges = self._blocks(b.binary("sub nsw", below, first), edge)
        whole = self._blocks(b.binary("sub nsw", total, below), size)

        def block(index: Operand, _: list[Operand]) -> list[Operand]:
            crosses = b.compare("icmp slt", index, edges)
            early = b.add(first, b.scale(index, edge))
            late = b.add(below, b.scale(b.binary("sub nsw", index, edges), size))
            row = b.select(crosses, early, late)
            left = b.binary("sub nsw", b.select(crosses, below, total), row)
            rows = b.intrinsic("smin", left, b.select(crosses, b.i64(edge), b.i64(size)))
            last = b.binary("sub nsw", b.add(row, rows), ahead)
            seen = b.intrinsic("smin", last, count)
            self._block(Rows(indices, row, rows, key, count, seen, offset), sums)
            return []

        b.loop(b.i64(0), b.add(edges, whole), 1, [], block)

    def _clamped(self, row: Operand, most: Operand) -> Operand:
        b = self.b
        return b.intrinsic("smin", b.intrinsic("smax", row, b.i64(0)), most)

    def _blocks(self, rows: Operand, size: int) -> Operand:
        return self.b.binary("udiv", self.b.add(rows, self.b.i64(size - 1)), self.b.i64(size))

    def _block(self, at: Rows, sums: Operand) -> None:
        """Write the five products of a block of rows and a block of keys."""
        b, plan, form = self.b, self.gradients, self.form
        lines: dict[str, Operand] = {}
        straight: dict[str, Operand] = {}
        for role in ("q", "g"):
            lines[role] = straight[role] = self.first(role, at.indices, at.row)
            if self.is_moved(role):
                self.move("rows", role, straight[role], self.at(role), at.rows)
                lines[role] = self.at(role)
            if role in plan.copied:
                straight[role] = lines[role]
        scores, slopes = self.at("scores"), self.at("slopes")
        for name, left, panel, target, depth in (
            ("scores", straight["q"], "panel_k", scores, form.depth),
            ("given", straight["g"], "panel_v", slopes, form.width),
        ):
            operands = (left, self.at(panel), target)
            call_product(b, plan, self.products[name], operands, at.rows, b.i64(depth))
        self.slopes.write(at, scores, slopes)
        powers, turned, rowwise = self.halves() if plan.pairs else (scores, slopes, slopes)
        keys = self.at("k") if self.is_moved("k") else self.first("k", at.indices, at.key)
        queries = b.address(sums, "float", b.scale(at.row, plan.depth.padded))
        for role, operands, rows, depth in (
            ("dv", (powers, lines["g"], self.at("dv")), at.seen, at.rows),
            ("dk", (turned, lines["q"], self.at("dk")), at.seen, at.rows),
            ("dq", (rowwise, keys, queries), at.rows, at.seen),
        ):
            if role in self.outputs:
                call_product(b, plan, self.products[role], operands, rows, depth)
