"""The register tiles of the gradients: scores and their gradients, and the three sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from irc.backends.cpu.attention.pairs import dot_tile
from irc.backends.cpu.attention_backward.plan import GradientPlan, Groups
from irc.backends.cpu.matmul.tile import Factor, tile_function
from irc.backends.cpu.vector.builder import Builder, Operand, Type

Body: TypeAlias = Callable[[Operand, list[Operand]], list[Operand]]


@dataclass(frozen=True)
class Product:
    """``C[rows][features] (+)= A * B``, written as register tiles of rows and groups of features.

    Attributes:
        a_memory: the element of A in memory; with pairs i16.
        a_strides: of rows and of what is summed over (with pairs: of pairs), in elements.
        b_columns: elements (with pairs: pairs) of a row of B, and floats of one of C.
        groups: vectors of the groups of features.
        odd: what is summed over may be odd.
        accumulate: adds to C.
    """

    a_memory: str
    a_strides: tuple[int, int]
    b_columns: int
    groups: tuple[int, ...]
    odd: bool
    accumulate: bool

    def symbol(self, rows: int, vectors: int) -> str:
        """Return the name of a tile's function: that of its shape, as products share them."""
        sums = "add" if self.accumulate else "odd" if self.odd else "set"
        by_row, by_step = self.a_strides
        return f"irc.gradients.{sums}_{by_row}_{by_step}_{self.b_columns}_{rows}x{vectors}"


def product_of(
    plan: GradientPlan, name: str, strides: tuple[int, int], dtype: str = "f32"
) -> Product:
    """Return one of the five products; ``strides`` are A's, in elements of its memory."""
    keys, blocks = plan.blocks.keys, plan.blocks
    groups: Groups | None = {"dq": plan.depth, "dk": plan.depth, "dv": plan.width}.get(name)
    memory = "i16" if dtype != "f32" else "float"
    if groups is None:
        depth = blocks.form.depth if name == "scores" else blocks.form.width
        return Product(memory, strides, keys, (plan.vectors,), bool(depth % 2), False)
    return Product(memory, strides, groups.padded, groups.vectors, True, True)


def define_product(b: Builder, plan: GradientPlan, product: Product) -> None:
    """Define the functions of a product: for whole tiles, and for one row."""
    kind = Type("float", plan.blocks.lanes)
    for vectors in set(product.groups):
        for rows in {plan.tile_rows(vectors), 1}:
            symbol, columns = product.symbol(rows, vectors), product.b_columns
            if symbol in b.functions:
                continue
            if plan.pairs:
                dot_tile(
                    b, symbol, (rows, vectors), product.a_strides,
                    accumulate=product.accumulate, columns=columns, apart=columns,
                )  # fmt: skip
            else:
                tile_function(
                    b, symbol, kind, (rows, vectors), Factor("f32", product.a_strides),
                    Factor("f32", (columns, 1)), odd=product.odd,
                    accumulate=product.accumulate, apart=columns,
                )  # fmt: skip


def call_product(
    b: Builder,
    plan: GradientPlan,
    product: Product,
    operands: tuple[Operand, Operand, Operand],
    rows: Operand,
    depth: Operand,
) -> None:
    """Write the calls for ``rows`` rows of A and C, and ``depth`` of what is summed over."""
    left, right, target = operands
    lanes = plan.blocks.lanes
    b_memory, count = "float", depth
    if plan.pairs:
        b_memory, count = "i32", b.binary("lshr", b.add(depth, b.i64(1)), b.i64(1))
    first = 0

    def tile(
        size: int, vectors: int, column: int
    ) -> Callable[[Operand, list[Operand]], list[Operand]]:
        def write(row: Operand, _: list[Operand]) -> list[Operand]:
            a = b.address(left, product.a_memory, b.scale(row, product.a_strides[0]))
            c = b.address(target, "float", b.add(b.scale(row, product.b_columns), b.i64(column)))
            x = b.address(right, b_memory, b.i64(column))
            b.do(f"call void @{product.symbol(size, vectors)}({a}, {x}, {c}, {count})")
            return []

        return write

    for vectors in product.groups:
        size = plan.tile_rows(vectors)
        whole = b.scale(b.binary("udiv", rows, b.i64(size)), size)
        b.loop(b.i64(0), whole, size, [], tile(size, vectors, first))
        if size > 1:
            b.loop(whole, rows, 1, [], tile(1, vectors, first))
        first += vectors * lanes
