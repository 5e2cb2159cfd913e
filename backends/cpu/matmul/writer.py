"""What all forms of the matmul template share: sizes, scratch, addresses, a thread's share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from irc.backends.cpu.features import Features
from irc.backends.cpu.loops.nest import Access, Facts
from irc.backends.cpu.loops.sizes import is_named
from irc.backends.cpu.loops.steps import Place, StepWriter
from irc.backends.cpu.loops.units import Turn, decode, pieces_of
from irc.backends.cpu.matmul.epilogue import EpilogueWriter
from irc.backends.cpu.matmul.product import Product, Tiling
from irc.backends.cpu.matmul.tile import LONG, Factor
from irc.backends.cpu.vector.builder import PTR, Builder, Operand, Type
from irc.backends.cpu.vector.storage import MEMORY, unpack

ACCUMULATED = {"float": "f32", "double": "f64"}


class MatmulWriter:
    """Writes the body of a matmul kernel into a builder; each form is a subclass.

    Attributes:
        divides: whether parts of a thread's share cost no more than the whole.
        pieces: into how many parts it is divided.
    """

    divides = False

    def __init__(
        self,
        b: Builder,
        product: Product,
        facts: Facts,
        tiling: Tiling,
        features: Features,
        buffers: dict[int, Operand],
    ) -> None:
        self.b, self.product, self.tiling, self.features = b, product, tiling, features
        self.nest, self.buffers = product.nest, buffers
        self.steps = StepWriter(b, product.nest, facts, buffers)
        self.epilogue = EpilogueWriter(
            b, product, facts, tiling, buffers, masked=features.masked,
            ahead=features.roomy and tiling.form in ("packed", "panels"),
        )  # fmt: skip
        self.kind = Type(product.element, tiling.lanes)
        self.item = self.kind.bits // 8
        self.batch, self.m, self.n, self.k = product.sizes
        self.panels = b.parts(self.n, tiling.columns)
        self.pieces = pieces_of(prod(product.sizes)) if self.divides else 1
        self.turn = Turn.of(b, self.pieces)
        self.scratch = Operand(PTR, "%scratch")

    @property
    def tile_bytes(self) -> int:
        """The size of a tile's results in scratch."""
        return round_up(self.tiling.rows * self.tiling.columns * self.item)

    @property
    def copy_at(self) -> int:
        """Where in scratch the copy of A begins."""
        return self.tile_bytes

    @property
    def scratch_bytes(self) -> int:
        """All scratch memory of a thread."""
        rows = self.tiling.chunk * self.tiling.rows if self.tiling.copy else 0
        return self.copy_at + rows * self.tiling.pitch * self.item

    def share(self, count: Operand, divided: Operand) -> tuple[Operand, Operand]:
        """Return this thread's range of count, or all where it is not divided."""
        b, at = self.b, self.turn
        one = b.add(at.member, b.i64(1))
        low, high = (b.binary("udiv", b.binary("mul", t, count), at.team) for t in (at.member, one))
        return b.select(divided, low, b.i64(0)), b.select(divided, high, count)

    def split_columns(self, units: Operand, tiles: Operand) -> Operand:
        """Return whether threads share out panels; else they share out rows."""
        b, team = self.b, self.turn.team
        even = b.compare("icmp eq", b.binary("urem", units, team), b.i64(0))
        many = b.compare("icmp uge", units, b.binary("mul", team, b.i64(16)))
        flat = b.compare("icmp ult", tiles, b.binary("mul", team, b.i64(2)))
        return b.binary("or", even, b.binary("or", many, flat))

    def batch_indices(self, which: Operand) -> dict[int, Operand]:
        """Return the index in each batch dim."""
        dims = self.product.batch
        return dict(
            zip(dims, decode(self.b, which, [self.nest.extents[d] for d in dims]), strict=True)
        )

    def start_of(self, access: Access, indices: dict[int, Operand]) -> Operand:
        """Return the address of an access with the given indices, others 0."""
        at = self.steps.offset(access, Place(indices), 0)
        return self.b.address(self.buffers[access.buffer], MEMORY[access.dtype], at)

    def with_row(self, batch: dict[int, Operand], row: Operand) -> dict[int, Operand]:
        """Return indices with that of m, where m is a dim."""
        return batch if self.product.m is None else {**batch, self.product.m: row}

    @property
    def even_rows(self) -> tuple[int, int]:
        """The rows of most tiles, and how many of the first ones have one more.

        A short last tile would read its panel for few rows: all are within one row of each other.
        """
        return divmod(self.m, -(-self.m // self.tiling.rows))

    def first_row(self, t: Operand) -> Operand:
        """Return the first row of a tile; of the one behind the last, how many rows there are."""
        b = self.b
        if is_named(self.m):
            return b.scale(t, self.tiling.rows)
        rows, longer = self.even_rows
        start = b.scale(t, rows)
        return b.add(start, b.intrinsic("smin", t, b.i64(longer))) if longer else start

    def num_rows(self, t: Operand) -> Operand:
        """Return how many rows a tile has."""
        b, most = self.b, self.tiling.rows
        if is_named(self.m):
            left = b.binary("sub nsw", b.i64(self.m), b.scale(t, most))
            return b.intrinsic("smin", left, b.i64(most))
        rows, longer = self.even_rows
        more = b.compare("icmp slt", t, b.i64(longer))
        return b.select(more, b.i64(rows + 1), b.i64(rows)) if longer else b.i64(rows)

    def call_tile(self, t: Operand, role: str, operands: Sequence[Operand]) -> None:
        """Call the register tile of a role and as many rows as a tile has."""
        b = self.b
        full, *rests = sorted(self.tile_rows(), reverse=True)

        def call(rows: int) -> Callable[[], None]:
            return lambda: self.call(self.symbol(f"{role}{rows}"), *operands)

        def shorter(rests: list[int]) -> None:
            if len(rests) == 1:
                call(rests[0])()
                return
            enough = b.compare("icmp sge", left, b.i64(rests[0]))
            b.either(enough, call(rests[0]), lambda: shorter(rests[1:]))

        if not rests:
            call(full)()
            return
        left = self.num_rows(t)
        b.either(b.compare("icmp sge", left, b.i64(full)), call(full), lambda: shorter(rests))

    def tile_rows(self) -> set[int]:
        """Return how many rows tiles may have."""
        if is_named(self.m):
            return set(range(1, self.tiling.rows + 1))
        rows, longer = self.even_rows
        return {rows, rows + 1} if longer else {rows}

    def call(self, symbol: str, *operands: Operand) -> None:
        """Call a helper function."""
        arguments = ", ".join(map(str, operands))
        self.b.do(f"call void @{symbol}({arguments}{self.b.size_argument})")

    def symbol(self, role: str) -> str:
        """Return the name of a helper function."""
        return f"irc.matmul.{role}"

    @property
    def in_parts(self) -> bool:
        """True where a register tile's sum may be so long that it is made in parts."""
        return is_named(self.k) or min(self.k, self.tiling.depth or self.k) > LONG

    def left_factor(self) -> Factor:
        """Return how tiles read A."""
        plan, p = self.tiling, self.product
        if plan.copy:
            return Factor(ACCUMULATED[self.kind.element], (plan.pitch, 1))
        along = 0 if p.m is None else p.a.strides[p.m]
        return Factor(p.a.dtype, (along, p.a.strides[p.k]))

    def copy_rows(
        self,
        batch: dict[int, Operand],
        rows: tuple[Operand, Operand],
        depth: tuple[Operand, Operand],
    ) -> Operand:
        """Copy rows (first, last) of A from a k on, so many, into scratch."""
        b, plan, p = self.b, self.tiling, self.product
        copy = b.address(self.scratch, "i8", b.i64(self.copy_at))
        memory = MEMORY[p.a.dtype]
        stride = p.a.strides[p.k]
        indices = {**batch, p.k: depth[0]}

        def row(index: Operand, _: list[Operand]) -> list[Operand]:
            source = self.start_of(p.a, self.with_row(indices, index))
            skip = b.scale(b.binary("sub nsw", index, rows[0]), plan.pitch)
            target = b.address(copy, self.kind.element, skip)

            def vector(lanes: int) -> Callable[[Operand, list[Operand]], list[Operand]]:
                def inside(k: Operand, _: list[Operand]) -> list[Operand]:
                    at = b.address(source, memory, b.scale(k, stride))
                    value = unpack(b, b.load(Type(memory, lanes), at), p.a.dtype)
                    b.store(value, b.address(target, self.kind.element, k))
                    return []

                return inside

            whole = b.binary("and", depth[1], b.i64(-plan.lanes)) if stride == 1 else b.i64(0)
            b.loop(b.i64(0), whole, plan.lanes, [], vector(plan.lanes))
            b.loop(whole, depth[1], 1, [], vector(1))
            return []

        b.loop(rows[0], rows[1], 1, [], row)
        return copy


def round_up(size: int) -> int:
    """Round a size up to whole cache lines; one with names gets a line more."""
    return size + 64 if is_named(size) else -(-size // 64) * 64
