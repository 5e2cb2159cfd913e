"""What follows a product in its kernel: computed row by row from a finished tile, then stored."""

from __future__ import annotations

from irc.backends.cpu.loops.nest import Facts, Step
from irc.backends.cpu.loops.sizes import is_named
from irc.backends.cpu.loops.steps import Env, Place, StepWriter
from irc.backends.cpu.loops.units import decode
from irc.backends.cpu.matmul.product import Product, Tiling
from irc.backends.cpu.matmul.tile import prefetch
from irc.backends.cpu.vector.builder import PTR, Builder, Operand, Type
from irc.backends.cpu.vector.storage import MEMORY
from irc.dialects.types import ITEM_BYTES

SHORT = 4
FAR_BYTES = 1 << 20
"""Bytes from which what is stored, or read beside the product, is not in the second cache."""


class EpilogueWriter:
    """Writes the steps after a product for one tile; lanes along n.

    A row of the tile is an index of ``m``, or of all dims ``along`` in row-major order. With
    ``ahead`` the lines that the next tile of the same columns reads and stores here are fetched
    while its product is computed: else each of its stores waits for a line.
    """

    def __init__(
        self,
        b: Builder,
        product: Product,
        facts: Facts,
        tiling: Tiling,
        buffers: dict[int, Operand],
        *,
        masked: bool,
        along: tuple[int, ...] | None = None,
        ahead: bool = False,
    ) -> None:
        one = () if product.m is None else (product.m,)
        self.along: tuple[int, ...] = along or one
        self.b, self.product, self.tiling = b, product, tiling
        self.steps = StepWriter(b, product.nest, facts, buffers)
        self.kind = Type(product.element, tiling.lanes)
        self.n = product.sizes[2]
        after = product.nest.steps
        self.epilogue = [
            s
            for s in after
            if s.result not in product.step.operands and s.kind not in ("contract", "store")
        ]
        self.stores = [s for s in after if s.kind == "store"]
        steps = (*self.epilogue, *self.stores)
        self.ahead = tuple(s for s in steps if self._is_far(s)) if ahead else ()
        self.masked = masked and all(
            s.access is None
            or (s.access.strides[product.n] in (0, 1) and not s.access.index_strides)
            for s in (*self.epilogue, *self.stores)
        )

    def finish(
        self,
        batch: dict[int, Operand],
        row: Operand,
        rows: Operand,
        column: Operand,
        tile: Operand,
    ) -> None:
        """Write the loops over a tile's columns, then rows: what follows, and the stores."""
        b, plan = self.b, self.tiling
        # Long code is written once, short code for as many vectors as a panel mostly has.
        paired = plan.columns % (2 * plan.lanes) == 0
        unroll = 2 if paired and len(self.epilogue) <= SHORT else 1
        end, stop = b.add(column, b.i64(plan.columns)), b.i64(self.n)

        def at(index: Operand, lanes: int, unroll: int, mask: Operand | None) -> list[Operand]:
            dims = {**batch, self.product.n: index}
            place = Place(dims, lanes, unroll, mask, self.product.n)
            skip = b.binary("sub nsw", index, column)
            self.rows(place, row, rows, b.address(tile, self.kind.element, skip))
            return []

        def masked(index: Operand, _: list[Operand]) -> list[Operand]:
            kind = Type("i32", plan.lanes)
            left = b.intrinsic("smin", b.binary("sub nsw", stop, index), b.i64(plan.lanes))
            valid = b.splat(b.convert("trunc", left, "i32"), plan.lanes)
            return at(index, plan.lanes, 1, b.compare("icmp slt", b.iota(kind), valid))

        def full() -> None:
            width = unroll * plan.lanes
            b.loop(column, end, width, [], lambda i, _: at(i, plan.lanes, unroll, None))

        def tail() -> None:
            b.loop(column, stop, 1, [], lambda i, _: at(i, 1, 1, None))

        if not is_named(self.n) and self.n % plan.columns == 0:
            full()
        elif self.masked:
            b.loop(column, b.intrinsic("smin", end, stop), plan.lanes, [], masked)
        else:
            b.either(b.compare("icmp sle", end, stop), full, tail)

    def at_row(self, place: Place, index: Operand) -> Place:
        """Return the place in a row."""
        extents = [self.product.nest.extents[d] for d in self.along]
        for dim, part in zip(self.along, decode(self.b, index, extents), strict=True):
            place = place.at(dim, part)
        return place

    def rows(self, place: Place, row: Operand, rows: Operand, source: Operand) -> None:
        """Write the loop down some columns of a tile; what does not vary along m is outside."""
        b, plan = self.b, self.tiling
        facts, moving = self.steps.facts, set(self.along)
        outer: Env = {}
        still = [
            s for s in self.epilogue
            if not facts.stage[s.result] and not moving & facts.dims[s.result]
        ]  # fmt: skip
        self.steps.steps(still, outer, place)

        def one(i: Operand, _: list[Operand]) -> list[Operand]:
            inside = self.at_row(place, b.add(row, i))
            env = dict(outer)
            start = b.address(source, self.kind.element, b.scale(i, plan.columns))
            env[self.product.step.result] = [
                b.load(
                    self.kind if place.lanes > 1 else Type(self.kind.element),
                    b.address(start, self.kind.element, b.i64(u * place.lanes)),
                )
                for u in range(place.unroll)
            ]
            self.steps.steps(self.epilogue, env, inside)
            for step in self.stores:
                assert step.access is not None
                self.steps.store(step.access, env[step.operands[0]], inside)
            self._fetch_ahead(inside)
            return []

        b.loop(b.i64(0), rows, 1, [], one)

    def _is_far(self, step: Step) -> bool:
        """True for what is large, and whose rows a known distance apart are contiguous along n."""
        access = step.access
        if access is None or access.index_strides or access.blocks or not self.along:
            return False
        down = access.strides[self.along[-1]]
        known = not is_named(down) and not is_named(access.size)
        if not known or not down or access.strides[self.product.n] != 1:
            return False
        return access.size * ITEM_BYTES[access.dtype] >= FAR_BYTES

    def _fetch_ahead(self, place: Place) -> None:
        """Fetch what lies below a place by the rows of a tile."""
        for step in self.ahead if place.lanes > 1 and place.mask is None else ():
            access = step.access
            assert access is not None
            down = access.strides[self.along[-1]] * self.tiling.rows
            for u in range(place.unroll):
                index = self.b.add(self.steps.offset(access, place, u), self.b.i64(down))
                pointer, element = self.steps.buffers[access.buffer], MEMORY[access.dtype]
                # Past the last row the address may be outside: no `inbounds`, and no fault.
                at = self.b.emit(PTR, f"getelementptr {element}, {pointer}, {index}")
                prefetch(self.b, at, write=step.kind == "store")
