"""Matmul of bfloat16 on a weight that lies in panels of pairs, by tile registers (AMX).

The loops are those of the panels form. A tile has 32 rows; a block of the sum is short enough for
its panel to stay in the first cache while all tiles pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from irc.backends.cpu.amx import tiles
from irc.backends.cpu.amx.tiles import ROWS
from irc.backends.cpu.loops.sizes import is_named
from irc.backends.cpu.matmul.amx_tile import DEPTH, WHOLE, Panel, amx_function, lines_of
from irc.backends.cpu.matmul.panel_product import PanelWriter
from irc.backends.cpu.vector.builder import Operand

AHEAD = 4096
"""Bytes: how far ahead a panel is asked for where one tile reads it once."""


class AmxWriter(PanelWriter):
    """Writes the form tiles. Scratch is that of the form panels."""

    asking = DEPTH

    def write(self) -> None:
        """Write the loops between a configuration of the tiles and their release."""
        tiles.configure(self.b, WHOLE)
        super().write()
        tiles.release(self.b)

    @property
    def kinds(self) -> dict[str, int]:
        """The tile functions that are called, by name, and their blocks (:func:`amx_function`)."""
        known = {"full": 2, "one": 1, "two": -1}
        if is_named(self.m):
            return known
        last = self.m % self.tiling.rows
        used = {"full": self.m >= self.tiling.rows, "one": 0 < last <= ROWS, "two": last > ROWS}
        return {name: blocks for name, blocks in known.items() if used[name]}

    def lines_of(self, tiles: int) -> int:
        """How many lines of the next panel a tile asks for where so many tiles ask."""
        return lines_of(self.tiling.columns, tiles)

    def first_row(self, t: Operand) -> Operand:
        """Return the first row of a tile: all but the last are whole."""
        return self.b.scale(t, self.tiling.rows)

    def num_rows(self, t: Operand) -> Operand:
        """Return how many rows a tile has."""
        left = self.b.binary("sub nsw", self.b.i64(self.m), self.first_row(t))
        return self.b.intrinsic("smin", left, self.b.i64(self.tiling.rows))

    def call_tile(self, t: Operand, role: str, operands: Sequence[Operand]) -> None:
        """Call the tile function of a role; the last tile may be short."""
        b, rows = self.b, self.tiling.rows
        first, rest = operands[:4], operands[4:]
        left = b.binary("sub nsw", b.i64(self.m), self.first_row(t))

        def call(name: str) -> None:
            more = () if name == "full" else (left,)
            self.call(self.symbol(f"{role}.{name}"), *first, *more, *rest)

        def one_of(names: list[str]) -> None:
            if len(names) == 1:
                call(names[0])
                return
            fits = {"full": ("sge", rows), "one": ("sle", ROWS)}
            how, limit = fits[names[0]]
            enough = b.compare(f"icmp {how}", left, b.i64(limit))
            b.either(enough, lambda: call(names[0]), lambda: one_of(names[1:]))

        one_of(list(self.kinds))

    def define_functions(self) -> None:
        """Define the tiles: those that begin a sum and those that add to it, whole and short."""
        plan, p = self.tiling, self.product
        along = 0 if p.m is None else p.a.strides[p.m]
        for role in ("tile", "add") if self.is_blocked else ("tile",):
            for name, blocks in self.kinds.items():
                # Where the number of rows is open, a short tile may be the only one.
                alone = not self.lines or (is_named(self.m) and name != "full")
                panel = Panel(
                    plan.columns, along, self.k % DEPTH, AHEAD if alone else 0, self.lines
                )
                symbol, add = self.symbol(f"{role}.{name}"), role == "add"
                amx_function(self.b, symbol, panel, blocks, accumulate=add)
