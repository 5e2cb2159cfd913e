"""What a convolution kernel contracts: which dims are places, channels and taps; its division.

The image is read through a table of pointers, one for each tap and place of a block (the indirect
convolution of Dukhan, arXiv:1907.02129): a place outside points at zeros. So strides, dilations,
borders and any number of spatial dims are the table's business, not the inner loop's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from irc.backends.cpu.features import Features
from irc.backends.cpu.loops.nest import Access, Nest, Step
from irc.backends.cpu.loops.sizes import is_named, typical
from irc.backends.cpu.vector.storage import COMPUTE
from irc.dialects.size import UnboundSizeError, is_negative, least
from irc.dialects.types import ITEM_BYTES, is_float
from irc.kernels.schedule import PLACES

LEAST_PRODUCTS = 12
"""Vectors of a register tile; with fewer, multiply-adds wait for one another."""
MOST_ROWS = 12
"""Places of a register tile: each has a pointer in a register of its own."""
TILE_COST = 2
"""What a step of a tile costs beside its products, in products."""
LEAST_UNITS = 8
"""Blocks times panels that there should be: work for a few cores."""
PANEL_BYTES = 640 << 10
"""Of a panel that tile after tile reads from the second cache."""


@dataclass(frozen=True)
class Windows:
    """``out[group, place, n] = sum over taps, c of image[group, place, tap, c] * weight``.

    Attributes:
        nest: the kernel; dims are numbered as there.
        step: its contraction.
        image: how it reads the image, with bounds where windows cross the border.
        weight: how it reads the packed weight, blocks along ``n`` (and pairs along ``c``).
        groups: dims of both.
        places: dims of the image alone.
        n: the output channels.
        taps: summed dims with a pointer of their own for each index.
        c: the summed dim that a pointer is followed along; None where all are taps.
    """

    nest: Nest
    step: Step
    image: Access
    weight: Access
    groups: tuple[int, ...]
    places: tuple[int, ...]
    n: int
    taps: tuple[int, ...]
    c: int | None

    @property
    def element(self) -> str:
        """The LLVM type of the accumulator."""
        return "double" if self.image.dtype == "f64" else "float"

    @property
    def panel(self) -> int:
        """Columns of a packed panel."""
        return next(size for dim, size, _ in self.weight.blocks if dim == self.n)

    @property
    def pair(self) -> int:
        """Channels that lie together in a panel."""
        return next(inner for dim, _, inner in self.weight.blocks if dim == self.n)

    @property
    def channels(self) -> int:
        """The size of ``c``."""
        return 1 if self.c is None else self.nest.extents[self.c]

    @property
    def num_taps(self) -> int:
        """Pointers of a place."""
        return prod(self.nest.extents[d] for d in self.taps)

    def sizes(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        """Return the extents of some dims."""
        return tuple(self.nest.extents[d] for d in dims)


def read_windows(nest: Nest) -> Windows | None:
    """Return the convolution of a simplified nest; None where rows of the nest must do it."""
    contracts = [s for s in nest.steps if s.kind == "contract"]
    if len(contracts) != 1 or 0 in nest.extents:
        return None
    (step,), producers = contracts, nest.producers()
    image, weight = (producers[v].access for v in step.operands)
    if image is None or weight is None or not is_float(image.dtype) or not weight.blocks:
        return None
    if COMPUTE[image.dtype] != COMPUTE[weight.dtype] or walks_back(nest, image):
        return None
    n, last = weight.blocks[0][0], len(nest.extents) - 1
    groups = tuple(d for d in range(nest.parallel) if weight.strides[d] and d != n)
    places = tuple(d for d in range(nest.parallel) if not weight.strides[d])
    # Packed weights are walked straight through: taps first, then channels.
    follows = not any(last in bound.dims for bound in image.bounds)
    follows &= not is_negative(image.strides[last])
    taps = tuple(d for d in sorted(nest.reduced) if not (follows and d == last))
    return Windows(nest, step, image, weight, groups, places, n, taps, last if follows else None)


def walks_back(nest: Nest, image: Access) -> bool:
    """True for an image whose places come in reverse order; its taps may."""
    return any(is_negative(image.strides[d]) for d in range(nest.parallel))


@dataclass(frozen=True)
class Blocking:
    """How a convolution is divided; places are counted in row-major order, whatever their dims.

    Attributes:
        lanes: of a vector of results.
        rows: places of a register tile; the last tile begins earlier rather than being short.
        columns: output channels of a register tile.
        places: of the whole kernel (of a group).
        tiles: of a block and a panel, at most.
        blocks: how many blocks the places make; 0 where that is known only at run time.
        chunk: taps that are summed at a time: their part of a panel stays in the second cache.
    """

    lanes: int
    rows: int
    columns: int
    places: int
    tiles: int
    blocks: int
    chunk: int

    @property
    def all_tiles(self) -> int:
        """Register tiles of all places and a panel."""
        return -(-self.places // self.rows)

    @property
    def pitch(self) -> int:
        """Pointers from tap to tap of the table; a vector of them may reach past the last."""
        return -(-self.tiles * self.rows // 8) * 8 + 16


def make_blocking(windows: Windows, features: Features) -> Blocking:
    """Divide the places into register tiles, and these into blocks whose windows fit the cache."""
    lanes = features.vector_bytes // (8 if windows.element == "double" else 4)
    registers = 24 if features.registers == 32 else 12
    vectors = min(4 if registers == 24 else 2, windows.panel // lanes)
    places = prod(windows.sizes(windows.places))
    most = min(registers // vectors, MOST_ROWS, fewest_of(places))
    shortest = max(1, min(most, LEAST_PRODUCTS // vectors))
    usual = typical(places)
    rows = min(
        range(most, shortest - 1, -1), key=lambda r: -(-usual // r) * (r * vectors + TILE_COST)
    )
    item = 8 if windows.element == "double" else 4
    tap = windows.channels * vectors * lanes * item
    chunk = windows.num_taps
    if chunk * tap > PANEL_BYTES:
        chunk = -(-chunk // -(-chunk * tap // PANEL_BYTES))
    return block_places(windows, lanes, vectors, rows, chunk=chunk)


def fewest_of(places: int) -> int:
    """Return the least number of places: a tile has no more, as none is short."""
    fewest = least(places)
    if fewest is None or fewest < 1:
        raise UnboundSizeError(f"a tile of the {places} places of a convolution needs their number")
    return fewest


def block_places(windows: Windows, lanes: int, vectors: int, rows: int, *, chunk: int) -> Blocking:
    """Divide the register tiles of (rows, vectors) into blocks."""
    places = prod(windows.sizes(windows.places))
    columns = vectors * lanes
    if is_named(places):
        return Blocking(lanes, rows, columns, places, max(1, PLACES // rows), 0, chunk)
    tiles = -(-places // rows)
    panels = prod(windows.sizes(windows.groups)) * -(-windows.nest.extents[windows.n] // columns)
    blocks = max(-(-tiles // max(1, PLACES // rows)), min(tiles, LEAST_UNITS // panels))
    return Blocking(lanes, rows, columns, places, -(-tiles // blocks), blocks, chunk)


@dataclass(frozen=True)
class Scratch:
    """Where a thread's memory holds what: the tiles at 0, zeros, the table; and its size."""

    tile: int
    zeros: int
    table: int
    size: int


def scratch_layout(windows: Windows, blocking: Blocking) -> Scratch:
    """Lay out the scratch memory of a thread, in bytes."""
    item = 8 if windows.element == "double" else 4
    reach = 2
    if windows.c is not None:
        reach += windows.image.strides[windows.c] * (windows.channels - 1)
    elif not windows.weight.blocks:  # depthwise: a place's channels are all read
        reach += windows.nest.extents[windows.n]
    tile = blocking.rows * blocking.columns * item
    kept = 1 if blocking.chunk == windows.num_taps else blocking.tiles
    zeros = _lines(tile * kept)
    table = zeros + _lines(reach * ITEM_BYTES[windows.image.dtype])
    return Scratch(tile, zeros, table, table + _lines(windows.num_taps * blocking.pitch * 8))


def _lines(size: int) -> int:
    return -(-size // 64) * 64


def epilogue_nest(windows: Windows) -> tuple[Nest, tuple[int, ...], tuple[int, ...], int]:
    """Return the nest of what follows, its dims of groups and of places, and its channel dim.

    Taps are gone, and places are one dim wherever results and what is read beside them allow.
    """
    nest, step = windows.nest, windows.step
    steps: list[Step] = []
    for old in nest.steps:
        if old.access is None:
            steps.append(old)
            continue
        strides = old.access.strides[: nest.parallel]
        if old.result in step.operands:
            # Never loaded here; says only what the contraction varies over.
            strides = tuple(1 for _ in strides)
            access = replace(old.access, strides=(*strides, 0), bounds=(), blocks=())
        else:
            access = replace(old.access, strides=(*strides, 0))
        steps.append(replace(old, access=access))
    epilogue = Nest((*nest.extents[: nest.parallel], 1), nest.parallel, tuple(steps))
    groups, places, n = list(windows.groups), list(windows.places), windows.n
    while (d := _joined(epilogue, places, step)) is not None:
        epilogue = _without(epilogue, d, step)
        groups = [g - (g > d) for g in groups]
        places = [p - (p > d) for p in places if p != d]
        n -= n > d
    return epilogue, tuple(groups), tuple(places), n


def _joined(nest: Nest, places: list[int], contract: Step) -> int | None:
    """Return a place dim that what follows walks as one with the next."""
    indexed = {step.dim for step in nest.steps if step.kind == "index"}
    accesses = [
        s.access for s in nest.steps if s.access is not None and s.result not in contract.operands
    ]
    for d in places:
        if d + 1 not in places or d in indexed or d + 1 in indexed:
            continue
        inner = nest.extents[d + 1]
        walks = [a.strides for a in accesses] + [x.strides for a in accesses for x in a.bounds]
        if all(strides[d] == strides[d + 1] * inner for strides in walks):
            return d
    return None


def _without(nest: Nest, d: int, contract: Step) -> Nest:
    """Return the nest with a dim joined into the next."""

    def shorter(numbers: tuple[int, ...]) -> tuple[int, ...]:
        return (*numbers[:d], *numbers[d + 1 :])

    def changed(step: Step) -> Step:
        dim = step.dim if step.dim is None or step.dim < d else step.dim - 1
        if step.access is None:
            return replace(step, dim=dim)
        bounds = tuple(replace(x, strides=shorter(x.strides)) for x in step.access.bounds)
        access = replace(step.access, strides=shorter(step.access.strides), bounds=bounds)
        return replace(step, access=access)

    extents = list(nest.extents)
    extents[d + 1] *= extents[d]
    return Nest(shorter(tuple(extents)), nest.parallel - 1, tuple(map(changed, nest.steps)))
