"""What follows a product in its kernel: computed row by row from a finished tile, then stored."""

from __future__ import annotations

from irc.backends.cpu.builder import Builder, Operand, Type
from irc.backends.cpu.nest import Facts
from irc.backends.cpu.product import Product, Tiling
from irc.backends.cpu.steps import Env, Place, StepWriter


class EpilogueWriter:
    """Writes the steps after a product for one tile; lanes along n."""

    def __init__(
        self,
        b: Builder,
        product: Product,
        facts: Facts,
        tiling: Tiling,
        buffers: dict[int, Operand],
        *,
        masked: bool,
    ) -> None:
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
        """Write the loop over a tile's rows: everything after the product, and the stores."""
        b, plan = self.b, self.tiling

        def one(i: Operand, _: list[Operand]) -> list[Operand]:
            indices = dict(batch)
            if self.product.m is not None:
                indices[self.product.m] = b.add(row, i)
            base = Place(indices)
            env: Env = {}
            still = [s for s in self.epilogue if self.is_fixed(s.result)]
            self.steps.steps(still, env, base)
            offset = b.scale(i, plan.columns)
            source = b.address(tile, self.kind.element, offset)
            self.columns(indices, dict(env), source, column)
            return []

        b.loop(b.i64(0), rows, 1, [], one)

    def is_fixed(self, value: int) -> bool:
        """True where a value neither depends on the product nor varies along n."""
        facts = self.steps.facts
        return facts.stage[value] == 0 and self.product.n not in facts.dims[value]

    def columns(
        self, indices: dict[int, Operand], env: Env, source: Operand, column: Operand
    ) -> None:
        """Write one row of a tile: whole vectors, or a tail at the last panel."""
        b, plan = self.b, self.tiling
        stop = b.i64(self.n)

        def at(index: Operand, lanes: int, unroll: int, mask: Operand | None) -> None:
            place = Place({**indices, self.product.n: index}, lanes, unroll, mask, self.product.n)
            skip = b.binary("sub nsw", index, column)
            inner = dict(env)
            inner[self.product.step.result] = [
                b.load(
                    Type(self.kind.element, lanes),
                    b.address(source, self.kind.element, b.add(skip, b.i64(u * lanes))),
                )
                for u in range(unroll)
            ]
            self.steps.steps(self.epilogue, inner, place)
            for step in self.stores:
                assert step.access is not None
                self.steps.store(step.access, inner[step.operands[0]], place)

        def pair(index: Operand, _: list[Operand]) -> list[Operand]:
            at(index, plan.lanes, 2, None)
            return []

        def full() -> None:
            if plan.columns == 2 * plan.lanes:
                pair(column, [])
            else:
                b.loop(column, b.add(column, b.i64(plan.columns)), 2 * plan.lanes, [], pair)

        def tail() -> None:
            if self.masked:
                b.loop(column, stop, plan.lanes, [], masked)
            else:
                b.loop(column, stop, 1, [], single)

        def masked(index: Operand, _: list[Operand]) -> list[Operand]:
            kind = Type("i32", plan.lanes)
            left = b.convert("trunc", b.binary("sub nsw", stop, index), "i32")
            at(index, plan.lanes, 1, b.compare("icmp slt", b.iota(kind), b.splat(left, plan.lanes)))
            return []

        def single(index: Operand, _: list[Operand]) -> list[Operand]:
            at(index, 1, 1, None)
            return []

        if self.n % plan.columns == 0 or plan.form == "stream":
            full()
            return
        end = b.add(column, b.i64(plan.columns))
        b.either(b.compare("icmp sle", end, stop), full, tail)
