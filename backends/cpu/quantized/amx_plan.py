"""How a product of bytes is divided among tile registers (AMX).

    sums[rows of tile t][panel p] += x tile t (rows x step bytes) * panel p (step / 4 rows of 64)

Two tiles of rows meet two panels: four tiles of sums, two of rows, two of panels. Rows are
neighbours along m, or, where rows are short (images of 7 or 14 places), two runs of m from
neighbours of another dim. No tile is short: the last rows and the last panel begin earlier, and
what comes out twice is stored once.

A long sum is divided into passes, so that what is read again (of a panel, or of rows) stays in the
first cache; sums then wait in scratch. A pass of its own takes what steps of 64 bytes leave over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from irc.backends.cpu.amx.tiles import ROW_BYTES, ROWS
from irc.backends.cpu.features import Features
from irc.backends.cpu.quantized.product import PackedProduct
from irc.kernels.quantized.loads import LANES, QUAD

ABREAST = 2
"""Tiles of rows, and panels, that meet."""
FEW_ROWS = 8
"""Rows below which dot products in vectors are as fast: panels are read for each of them."""
WHOLE_STEP = 48
"""Bytes from which on equal steps are preferred to steps of 64 and a rest."""
PASS_BYTES = 640
"""The length of sum up to which rows and panels stay in the first cache (48 KiB) together."""
KEPT_BLOCKS = 16
"""Blocks whose sums wait in scratch between passes."""
SERIAL_WORK = 400_000
"""Products below which a thread pool costs more than it saves."""


@dataclass(frozen=True)
class Pass:
    """Part of a sum.

    Attributes:
        tap: the first index of the outermost summed dim.
        taps: how many of them; 1 where there is one summed dim.
        start: the first byte of the innermost run.
        step: bytes of a tile's row, a multiple of 4.
        steps: how many of them.
    """

    tap: int
    taps: int
    start: int
    step: int
    steps: int


@dataclass(frozen=True)
class TilePlan:
    """The blocks and their order.

    Attributes:
        rows: of each tile of rows.
        down: the dim whose neighbours the two tiles are; None: both are along m.
        panels: of a block.
        passes: over the sum.
        parallel: whether a thread pool is worth its start.
    """

    rows: tuple[int, ...]
    down: int | None
    panels: int
    passes: tuple[Pass, ...]
    parallel: bool

    @property
    def along(self) -> int:
        """Rows of a block along m."""
        return sum(self.rows) if self.down is None else self.rows[0]

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return self.panels * LANES


def plan_tiles(packed: PackedProduct, features: Features) -> TilePlan | None:
    """Decide how tiles compute a product; None where they do not, or vectors are as fast."""
    if not features.tiles or packed.form != "dot" or packed.product.m is None:
        return None
    if packed.panel_of_x or packed.groups_of_panel[0] > 1:
        return None
    extents = packed.product.nest.extents
    rows, down = _rows(extents[packed.product.m], {d: extents[d] for d in packed.row_dims})
    if sum(rows) < FEW_ROWS:
        return None
    panels = extents[packed.product.n] // LANES if packed.panel else 1
    every = prod(extents[: packed.product.nest.parallel])
    return TilePlan(
        rows,
        down,
        min(panels, ABREAST),
        passes(packed.sums()),
        every * packed.depth > SERIAL_WORK,
    )


def _rows(size: int, outer: dict[int, int]) -> tuple[tuple[int, ...], int | None]:
    """Choose the rows of the tiles of a block, and the dim whose neighbours they are.

    >>> _rows(49, {}), _rows(14, {0: 1, 1: 14}), _rows(11, {0: 1})
    (((13, 12), None), ((14, 14), 1), ((11,), None))
    """
    if size > ROWS:
        block = -(-size // -(-size // (ABREAST * ROWS)))
        return (-(-block // 2), block // 2), None
    down = max(outer, key=lambda d: (outer[d], d), default=None)
    if down is None or outer[down] == 1:
        return (size,), None
    return (size, size), down


def passes(sums: Sequence[tuple[int, int]]) -> tuple[Pass, ...]:
    """Divide a sum over (size, stride) into passes, the last dim's run into steps.

    >>> passes([(3, 900), (28, 1)])
    (Pass(tap=0, taps=3, start=0, step=28, steps=1),)
    >>> [(p.start, p.step, p.steps) for p in passes([(1096, 1)])]
    [(0, 64, 8), (512, 64, 9), (1088, 8, 1)]
    """
    run = sums[-1][0]
    taps, inside = (sums[0][0], prod(size for size, _ in sums[1:-1])) if len(sums) > 1 else (1, 1)
    step = equal_step(run)
    steps, rest = divmod(run, step)
    parts = -(-run * inside // PASS_BYTES) if steps else 1
    parts = min(parts, steps)
    together = 1 if parts > 1 else max(1, PASS_BYTES // (run * inside))
    pieces: list[Pass] = []
    for tap in range(0, taps, together):
        for part in range(parts):
            first, last = (steps * i // parts for i in (part, part + 1))
            count = min(together, taps - tap)
            pieces.append(Pass(tap, count, first * step, step, last - first))
    if rest:
        pieces.append(Pass(0, taps, steps * step, rest, 1))
    return tuple(pieces)


def equal_step(run: int) -> int:
    """Return the bytes of a step: all are equal where that costs less than a rest.

    >>> equal_step(28), equal_step(96), equal_step(80), equal_step(68)
    (28, 48, 64, 64)
    """
    step = next(s for s in range(min(run, ROW_BYTES), 0, -QUAD) if run % s == 0)
    return step if step >= min(run, WHOLE_STEP) else ROW_BYTES
