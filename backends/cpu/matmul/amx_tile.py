"""The tile of a product by tile registers (AMX): bfloat16 rows times a panel of pairs.

    for each 32 columns of the panel: for 32 of k: load 2 tiles of A and 2 of B, multiply all four

Four registers hold sums of 16 x 16, one A and one B; five loads for four products. All eight would
do with four loads, and are slower by half where another hardware thread keeps the core busy: tiles
are renamed, and what is spare of the registers is what neither thread's tiles occupy. There it also
helps that every second step of k takes the four products in reverse: two that follow one another
then add to one tile. A panel ``[k / 2][columns][2]`` holds tiles of B as they lie. What is left of
k beyond a multiple of 32 has tiles of another shape, whose sums go through memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from irc.backends.cpu.amx import tiles
from irc.backends.cpu.amx.tiles import ROW_BYTES, ROWS, Shape
from irc.backends.cpu.matmul.tile import LINE, prefetch
from irc.backends.cpu.vector.builder import I64, PTR, Builder, Operand
from irc.dialects.size import Dim

DEPTH = ROW_BYTES // 2
"""bfloat16 of a row of a tile."""
WIDTH = 2 * ROWS
"""Columns of two tiles."""
_A, _B = (4, 5), 6
"""Tiles of A, the second one only where its blocks differ in rows, and of B."""
_PLACES = ((0, 0), (0, 1), (1, 1), (1, 0))
"""Of the products: each has A or B in common with the one before."""


def whole_tiles(rows: tuple[int, int] = (ROWS, ROWS)) -> tuple[Shape, ...]:
    """Return the shapes of all tiles where a tile's blocks have so many rows."""
    first, second = (Shape(count) for count in rows)
    return (first, first, second, second, first, second, Shape(), Shape())


WHOLE = whole_tiles()
"""What a kernel's tiles are configured to unless its blocks are of other rows (``Panel.rows``): a
tile function leaves them as the kernel has them."""


@dataclass(frozen=True)
class Panel:
    """How a tile function reads its factors.

    Attributes:
        columns: of the panel, a multiple of 32.
        stride: elements from row to row of A.
        step: bytes of A from 32 of k to the next; those of a tile's row where rows lie contiguous.
        rows: of the two blocks that make a whole tile.
        rest: what k leaves beyond a multiple of 32, an even number.
        ahead: bytes ahead of their use at which lines of the panel are asked for; 0: they are near.
        lines: how many lines of the next panel are asked for in 32 of k, as many with each 32
            columns; the function then takes the address of the first (``next``).
    """

    columns: int
    stride: Dim
    rest: int = 0
    ahead: int = 0
    lines: int = 0
    step: int = ROW_BYTES
    rows: tuple[int, int] = (ROWS, ROWS)


def lines_of(columns: int, tiles: int) -> int:
    """Return ``Panel.lines`` with which so many tiles ask for a whole panel.

    >>> lines_of(64, 4), lines_of(64, 100)
    (16, 2)
    """
    groups = columns // WIDTH
    return -(-DEPTH * columns * 2 // (LINE * tiles * groups)) * groups


def amx_function(b: Builder, symbol: str, panel: Panel, blocks: int, *, accumulate: bool) -> None:
    """Define ``void symbol(ptr a, ptr b, ptr tile, i64 depth)``: ``tile[rows][columns] = A * B``.

    Args:
        b: gets the function.
        symbol: its name.
        panel: how the factors lie.
        blocks: 2: the rows of a whole tile. 1 or -1: the function takes the number of rows too
            (``i64 rows``), 1 to 16 with one block, 17 to 32 with -1, which has a second block of
            what is left.
        accumulate: add to what the tile holds.
    """
    f = b.child()
    code = _Code(f, panel, blocks, accumulate=accumulate)
    code.write()
    f.do("ret void")
    more = ", i64 %rows" if blocks != 2 else ""
    more += ", ptr %next" if panel.lines else ""
    params = f"ptr %a, ptr %b, ptr %tile, i64 %depth{more}{b.size_argument}"
    b.functions[symbol] = f.function(f"define internal void @{symbol}({params}) noinline")


Move: TypeAlias = Callable[[Builder, int, Operand, Operand], None]


def _clear(f: Builder, tile: int, at: Operand, stride: Operand) -> None:
    tiles.zero(f, tile)


class _Code:
    """Writes a tile function."""

    def __init__(self, f: Builder, panel: Panel, blocks: int, *, accumulate: bool) -> None:
        self.f, self.panel, self.accumulate = f, panel, accumulate
        self.rows: tuple[int | Operand, ...] = panel.rows
        if blocks != 2:
            num_rows = Operand(I64, "%rows")
            rest = f.binary("sub nsw", num_rows, f.i64(ROWS)) if blocks < 0 else None
            self.rows = (num_rows,) if rest is None else (ROWS, rest)
        self.short = blocks != 2
        self.a, self.b, self.tile = (Operand(PTR, f"%{name}") for name in ("a", "b", "tile"))
        self.depth = Operand(I64, "%depth")
        self.stride = f.i64(panel.stride * 2)
        # The bytes between rows of sums, and between pairs of rows of the panel, are the same.
        self.pitch = f.i64(4 * panel.columns)

    def shapes(self, depth: int = DEPTH) -> list[Shape]:
        """Return the shapes of all tiles for so much of k."""
        rows = self.rows if len(self.rows) == 2 else self.rows * 2
        sums = [Shape(rows[i]) for i in (0, 0, 1, 1)]
        left = [Shape(rows[i], 2 * depth) for i in (0, 1)]
        return [*sums, *left, Shape(depth // 2), Shape(depth // 2)]

    def write(self) -> None:
        """Write the loops over columns and k, then what k leaves."""
        f, rest = self.f, self.panel.rest
        if self.short:
            tiles.configure(f, self.shapes())
        whole = f.binary("and", self.depth, f.i64(-DEPTH)) if rest else self.depth
        pairs = f.binary("and", self.depth, f.i64(-2 * DEPTH))
        for column in range(0, self.panel.columns, WIDTH):
            self.sums(column, tiles.load if self.accumulate else _clear)

            def step(k: Operand, _: list[Operand], column: int = column) -> list[Operand]:
                following = f.add(k, f.i64(DEPTH))
                self.ask(k, column)
                self.multiply(k, column)
                self.ask(following, column)
                self.multiply(following, column, reverse=True)
                return []

            def single(column: int = column) -> None:
                self.ask(pairs, column)
                self.multiply(pairs, column)

            f.loop(f.i64(0), pairs, 2 * DEPTH, [], step)
            f.when(f.compare("icmp slt", pairs, whole), single)
            self.sums(column, tiles.store)

        def tail() -> None:
            tiles.configure(f, self.shapes(rest))
            for column in range(0, self.panel.columns, WIDTH):
                self.sums(column, tiles.load)
                self.multiply(whole, column)
                self.sums(column, tiles.store)

        if rest:
            f.when(f.compare("icmp slt", whole, self.depth), tail)
        if rest or self.short:
            tiles.configure(f, whole_tiles(self.panel.rows))

    def sums(self, column: int, move: Move) -> None:
        """Load, store or clear the sums of 32 columns."""
        f = self.f
        for i in range(len(self.rows)):
            for j in range(2):
                at = 4 * (i * self.panel.rows[0] * self.panel.columns + column + j * ROWS)
                move(f, 2 * i + j, f.address(self.tile, "i8", f.i64(at)), self.pitch)

    def multiply(self, k: Operand, column: int, *, reverse: bool = False) -> None:
        """Add the products of tiles of k and the next."""
        f = self.f
        right = f.address(
            self.b, "i8", f.add(f.scale(k, 2 * self.panel.columns), f.i64(4 * column))
        )
        left = f.address(self.a, "i8", f.scale(k, self.panel.step // DEPTH))
        below = f.address(left, "i8", f.scale(self.stride, self.panel.rows[0]))
        starts, held = (left, below), (-1, -1)
        for i, j in _PLACES[::-1] if reverse else _PLACES:
            if i >= len(self.rows):
                continue
            tile = _A[i if self.rows[0] != self.rows[-1] else 0]
            if i != held[0]:
                tiles.load(f, tile, starts[i], self.stride)
            if j != held[1]:
                tiles.load(f, _B, f.address(right, "i8", f.i64(4 * j * ROWS)), self.pitch)
            tiles.dot(f, "bf16ps", 2 * i + j, tile, _B)
            held = (i, j)

    def ask(self, k: Operand, column: int) -> None:
        """Prefetch lines of the panel, or a share of those of the next one."""
        f, panel = self.f, self.panel
        if panel.ahead:
            start = f.add(f.scale(k, 2 * panel.columns), f.i64(4 * column + panel.ahead))
            for row in range(ROWS):
                for j in range(2):
                    skip = f.add(start, f.i64(row * 4 * panel.columns + j * LINE))
                    prefetch(f, f.address(self.b, "i8", skip), locality=2)
        count = panel.lines * WIDTH // panel.columns
        later = f.scale(k, panel.lines * LINE // DEPTH)
        later = f.add(later, f.i64(column // WIDTH * count * LINE))
        for line in range(count):
            at = f.address(Operand(PTR, "%next"), "i8", f.add(later, f.i64(line * LINE)))
            prefetch(f, at, locality=2)
