"""How a convolution of bfloat16 is divided among tile registers (AMX).

    sums[places of tile t][panel p] += rows of tile t [places][32] * panel p [32 / 2][columns][2]

A row of A is a window: its taps one after another, of each the channels, an even number of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from irc.backends.cpu.amx.tiles import ROW_BYTES, ROWS
from irc.backends.cpu.convolution.windows import Blocking, Windows, fewest_of
from irc.backends.cpu.features import Features
from irc.backends.cpu.loops.sizes import is_named, typical

DEPTH = ROW_BYTES // 2
"""Channels of a tile's row."""
PANEL_BYTES = 33 << 10
"""Of a panel that tile after tile reads: two thirds of a first cache of 48 KiB."""
WEIGHTS_BYTES = 1280 << 10
"""Of all panels, as much as stays in the second cache from block to block."""
NEAR_BYTES, GATHERED_BYTES = 256 << 10, 1 << 20
"""Rows of a block, which every panel reads: few where the panels are near; where they come from
memory for each block, as many as the second cache holds."""
MOST_PLACES = 256
"""Of a block."""
LEAST_PLACES = 8
"""With fewer, rows of tiles would be empty."""
LINES = 4
"""Lines of a row that straight code gathers, about."""
MOST_LINES = 128
"""At most; so many channels that fill no whole lines are left to vectors."""
TILE_COST = 4
"""What a tile costs beside its rows, in rows."""
THREADS = (2, 4)
"""Numbers of threads that blocks are divided well for."""


@dataclass(frozen=True)
class Rows:
    """How the rows of a block's windows lie in memory.

    Attributes:
        halves: rows of the two blocks of a tile.
        taps: pointers of a place.
        channels: of a tap.
        steps: of 32 of the sum, the last one perhaps padded.
        columns: of a panel.
        alone: there is one panel. Then each tile is gathered just before it is multiplied, where
            the one before lay: its rows are still in the first cache.
    """

    halves: tuple[int, int]
    taps: int
    channels: int
    steps: int
    columns: int
    alone: bool

    @property
    def step(self) -> int:
        """Bytes from step to step: of the places of a tile."""
        return sum(self.halves) * ROW_BYTES

    @property
    def tile(self) -> int:
        """Bytes from tile to tile."""
        return self.steps * self.step

    @property
    def taps_at_a_time(self) -> int:
        """Taps that are gathered in one go: they fill whole lines, or are all."""
        period = DEPTH // gcd(self.even, DEPTH)
        lines = period * self.even // DEPTH
        return min(self.taps, period * max(1, LINES // lines))

    @property
    def even(self) -> int:
        """Channels of a tap, with the padding of an odd one."""
        return self.channels + self.channels % 2

    @property
    def padded(self) -> bool:
        """True where the panels are copied."""
        return bool(self.channels % 2 or self.taps * self.channels % DEPTH)

    @property
    def parts(self) -> list[tuple[int, int]]:
        """The first step and the number of steps of each part of the sum."""
        count = 1 if self.alone else -(-self.steps * self.step_bytes // PANEL_BYTES)
        most = -(-self.steps // count)
        return [(first, min(most, self.steps - first)) for first in range(0, self.steps, most)]

    @property
    def step_bytes(self) -> int:
        """Of a panel."""
        return DEPTH * 2 * self.columns


def by_tiles(windows: Windows, features: Features) -> bool:
    """True where tile registers multiply: bfloat16, pairs of channels, enough places."""
    w = windows
    if not features.tiles or w.pair != 2 or w.c is None or w.image.strides[w.c] != 1:
        return False
    if (w.image.dtype, w.weight.dtype) != ("bf16", "bf16") or w.panel % (2 * ROWS):
        return False
    summed = (*w.sizes(w.taps), w.channels, *w.sizes(w.groups), w.nest.extents[w.n])
    if any(is_named(size) for size in summed) or w.nest.extents[w.n] < ROWS:
        return False
    rows = lay_out(w, 2 * ROWS)
    if rows.taps_at_a_time * rows.even > MOST_LINES * DEPTH:
        return False
    return fewest_of(prod(w.sizes(w.places))) >= LEAST_PLACES


def lay_out(windows: Windows, rows: int) -> Rows:
    """Return how tiles of so many rows are gathered."""
    taps, channels = windows.num_taps, windows.channels
    steps = -(-taps * (channels + channels % 2) // DEPTH)
    first = -(-rows // 2)
    alone = windows.nest.extents[windows.n] <= windows.panel
    return Rows((first, rows - first), taps, channels, steps, windows.panel, alone)


def divide_places(windows: Windows) -> Blocking:
    """Divide the places into tiles of two blocks of rows, and these into blocks."""
    w, columns = windows, windows.panel
    places = prod(w.sizes(w.places))
    usual, most = typical(places), min(2 * ROWS, fewest_of(places))
    shortest = max(2, min(most, ROWS + 1))
    rows = min(range(most, shortest - 1, -1), key=lambda r: -(-usual // r) * (r + TILE_COST))
    panels = -(-w.nest.extents[w.n] // columns)
    layout, fit = lay_out(w, rows), MOST_PLACES // rows
    if not layout.alone:
        weights = layout.steps * layout.step_bytes * panels
        most = GATHERED_BYTES if weights > WEIGHTS_BYTES else NEAR_BYTES
        fit = min(fit, most // layout.tile)
    fit = max(1, fit)
    if is_named(places):
        return Blocking(16, rows, columns, places, fit, 0, w.num_taps)
    every = -(-places // rows)

    def longest(tiles: int) -> int:
        """What the busiest threads do, in tiles, over some numbers of threads."""
        units = prod(w.sizes(w.groups)) * panels * -(-every // tiles)
        return sum(-(-units // threads) * tiles * threads for threads in THREADS)

    fit = min(fit, every)
    tiles = min(range(fit, max(1, fit // 3) - 1, -1), key=longest)
    return Blocking(16, rows, columns, places, tiles, -(-every // tiles), w.num_taps)
