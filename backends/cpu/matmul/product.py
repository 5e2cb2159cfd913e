"""What a matmul kernel multiplies (which dims are m, n, k, batch), and how it will be computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from irc.backends.cpu.features import Features
from irc.backends.cpu.loops.nest import Access, Nest, Step
from irc.backends.cpu.loops.sizes import is_named, typical
from irc.backends.cpu.vector.storage import COMPUTE
from irc.dialects.types import is_float

SKINNY = 8
MAX_DEPTH = 2048
PANEL_BYTES = 400 << 10
"""Of a panel, as much as is used again and again: less than half of a second cache of 1 MiB."""
FIRST_PANEL_BYTES = 24 << 10
"""The same of a panel for tile registers: half of a first cache of 48 KiB."""
OPEN_GROUP, OPEN_CHUNK = 8, 8
"""Panels packed at once, and tiles of rows between panels, where the length of the sum is open."""
ROWS_BYTES = 8 << 20
"""Of A, as much as is read for one panel after the other: a part of the last cache."""
ROOMY_ROWS_BYTES = 1 << 20
"""The same where the second cache has room for it beside a panel."""


@dataclass(frozen=True)
class Product:
    """``c[batch, m, n] = sum over k of a[batch, m, k] * b[batch, k, n]`` inside a nest.

    ``m`` and ``n`` are dims of the nest, or None for a size of 1 (``n`` only with ``m``); all other
    parallel dims are batch.
    """

    nest: Nest
    step: Step
    a: Access
    b: Access
    m: int | None
    n: int
    k: int

    @property
    def batch(self) -> tuple[int, ...]:
        """The dims of the batch."""
        return tuple(d for d in range(self.nest.parallel) if d not in (self.m, self.n))

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The sizes of batch, m, n and k."""
        extents = self.nest.extents
        m = 1 if self.m is None else extents[self.m]
        return prod(extents[d] for d in self.batch), m, extents[self.n], extents[self.k]

    @property
    def element(self) -> str:
        """The LLVM type of the accumulator."""
        return "double" if self.a.dtype == "f64" else "float"

    @property
    def pair(self) -> int:
        """How many rows of a packed B lie together."""
        return next((size for d, size, _ in self.b.blocks if d == self.k), 1)

    @property
    def is_packed(self) -> bool:
        """True where B lies in panels already."""
        return bool(self.b.blocks)

    def swapped(self) -> Product:
        """Return the transposed product; ``m`` must be a dim."""
        assert self.m is not None
        return replace(self, a=self.b, b=self.a, m=self.n, n=self.m)


def recognise(nest: Nest) -> Product | None:
    """Return the product of a simplified nest, or None where the rows template has to do it."""
    contracts = [s for s in nest.steps if s.kind == "contract"]
    producers = nest.producers()
    if len(contracts) != 1 or any(s.kind == "reduce" for s in nest.steps):
        return None
    if len(nest.reduced) != 1 or 0 in nest.extents:
        return None
    step = contracts[0]
    loads = [producers[v] for v in step.operands]
    if any(s.kind != "load" or s.operands or not is_float(s.dtype) for s in loads):
        return None
    a, b = (s.access for s in loads)
    assert a is not None and b is not None
    if COMPUTE[a.dtype] != COMPUTE[b.dtype] or _others_are_full(nest, step):
        return None
    rows = [d for d in range(nest.parallel) if a.strides[d] and not b.strides[d]]
    columns = [d for d in range(nest.parallel) if b.strides[d] and not a.strides[d]]
    m = max(rows, key=lambda d: typical(nest.extents[d]), default=None)
    n = max(columns, key=lambda d: typical(nest.extents[d]), default=None)
    if n is None:
        a, b, m, n = b, a, n, m
    if n is None:
        return None
    return _oriented(Product(nest, step, a, b, m, n, max(nest.reduced)))


def _others_are_full(nest: Nest, contract: Step) -> bool:
    """True where something besides the two factors varies along k."""
    k = max(nest.reduced)
    factors = set(contract.operands)
    for step in nest.steps:
        if step.result in factors:
            continue
        if step.dim == k or (step.access is not None and step.access.strides[k]):
            return True
        if step is not contract and factors & set(step.operands):
            return True
    return False


def _oriented(product: Product) -> Product:
    """Transpose where that makes a skinny product, or rows of the result contiguous."""
    if product.m is None or product.is_packed:
        return product
    _, m, n, _ = map(typical, product.sizes)
    if m > SKINNY >= n:
        return product.swapped()
    if n > SKINNY >= m:
        return product
    stores = [s.access for s in product.nest.steps if s.kind == "store" and s.access is not None]
    across = sum(s.strides[product.n] == 1 for s in stores)
    along = sum(s.strides[product.m] == 1 for s in stores)
    return product.swapped() if along > across else product


@dataclass(frozen=True)
class Tiling:
    """How a product is computed.

    Attributes:
        form: packed (B packed into panels, register tiles), panels (the same, on a weight that lies
            in panels), tiles (that by tile registers), dots (few rows; lanes along k), or stream
            (few rows; lanes along n, B read in place).
        lanes: lanes of a vector.
        rows: rows of a register tile.
        columns: columns of a panel.
        group: panels packed at once by a thread; columns at once for dots.
        chunk: register tiles of rows between changes of the panel.
        copy: whether rows of A are copied (converted, or off a power of two) before use.
        pitch: floats from row to row of that copy.
        depth: how much of a long sum is done at a time.
        parallel: whether a thread pool is worth its start.
    """

    form: Literal["packed", "panels", "tiles", "dots", "stream"]
    lanes: int
    rows: int
    columns: int
    group: int = 1
    chunk: int = 1
    copy: bool = False
    pitch: int = 0
    depth: int = 0
    parallel: bool = False


def make_tiling(product: Product, features: Features, workers: int) -> Tiling:
    """Decide how a product is computed."""
    batch, m, n, k = map(typical, product.sizes)
    if is_named(product.sizes[1]):
        m = max(m, SKINNY + 1)  # any number of rows: the form for many
    item = 8 if product.element == "double" else 4
    lanes = features.vector_bytes // item
    flops = 2.0 * batch * m * n * k
    parallel = workers > 1 and (flops > 200_000 or is_named(prod(product.sizes)))
    registers = 24 if features.registers == 32 else 12
    half = product.a.dtype in ("f16", "bf16")
    along = 0 if product.m is None else product.a.strides[product.m]
    pitch = product.sizes[3] + lanes
    if product.is_packed:
        return _on_panels(product, features, parallel=parallel)
    open_n, open_k = is_named(product.sizes[2]), is_named(product.sizes[3])
    if m <= SKINNY and product.b.strides[product.k] == 1 and not open_k:
        copy = product.a.strides[product.k] != 1
        group = next(g for g in (8, 4, 2, 1) if g * m <= registers)
        return Tiling("dots", lanes, m, 2 * lanes, group, copy=copy, pitch=pitch, parallel=parallel)
    if m <= SKINNY and product.b.strides[product.n] == 1 and not open_n:
        vectors = next((v for v in (16, 8, 4, 2) if v * m <= registers and v * lanes <= n), 0)
        if vectors:
            columns = vectors * lanes
            return Tiling("stream", lanes, m, columns, copy=half, pitch=pitch, parallel=parallel)
    rows, columns = min(registers // 2, m), 2 * lanes
    if is_named(along):  # few rows: each needs an address of its own
        rows, columns = min(registers // 4, m), 4 * lanes
    if open_k:
        return _open_depth(product, lanes, (rows, columns), parallel=parallel)
    depth = k if k <= MAX_DEPTH else -(-k // -(-k // MAX_DEPTH) // lanes) * lanes + lanes
    panel, tile = columns * depth * item, rows * depth * item
    # Rows a multiple of 4 KiB apart fall on one cache set: a tile's rows would evict each other.
    aliased = product.a.strides[product.k] == 1 and n >= 4 * columns
    aliased &= not is_named(along) and along * item % 4096 == 0
    tiles = -(-m // rows)
    group = min(-(-n // columns), (4 << 20) // panel)
    if depth < k:
        group = min(group, (4 << 20) // (tiles * rows * columns * item))
    return Tiling(
        "packed",
        lanes,
        rows,
        columns,
        group=max(1, group),
        chunk=max(1, min(tiles, (256 << 10) // tile)),
        copy=half or (aliased and rows > 4),
        pitch=depth + lanes,
        depth=depth,
        parallel=parallel,
    )


def _open_depth(product: Product, lanes: int, shape: tuple[int, int], *, parallel: bool) -> Tiling:
    """Decide for a sum whose length is known only at run time: it is not cut."""
    depth, half = product.sizes[3], product.a.dtype in ("f16", "bf16")
    return Tiling(
        "packed", lanes, *shape, group=OPEN_GROUP, chunk=OPEN_CHUNK, copy=half,
        pitch=depth + lanes, depth=depth, parallel=parallel,
    )  # fmt: skip


def _by_tiles(product: Product, features: Features) -> bool:
    """True where tile registers multiply: rows of A are pairs of bfloat16 as those of B are."""
    a, k = product.a, product.sizes[3]
    paired = product.pair == 2 and a.dtype == "bf16" and a.strides[product.k] == 1
    return features.tiles and paired and not is_named(k) and k % 2 == 0


def _on_tiles(product: Product, *, parallel: bool) -> Tiling:
    """Decide for a weight in panels and tile registers.

    A product of tiles waits for its loads: from the second cache they take longer than it does. So
    a block of a panel is short enough to stay in the first one while all tiles of rows pass, beside
    the rows that go with it; that their sums go through memory costs less.
    """
    _, m, _, k = product.sizes
    columns = product.b.blocks[0][1]
    some_rows = is_named(m) or m > 32
    blocks = -(-k * columns * 2 // (FIRST_PANEL_BYTES if some_rows else PANEL_BYTES))
    depth = k if blocks == 1 else -(-k // (32 * blocks)) * 32
    # Processors with tile registers have a second cache of 2 MiB. Rows of a long sum do not stay
    # there; a panel would be read again for each of them.
    chunk = ROOMY_ROWS_BYTES // (32 * min(k, PANEL_BYTES // (columns * 2)) * 2)
    if not is_named(m):
        chunk = min(chunk, -(-m // 32))
    return Tiling("tiles", 16, 32, columns, chunk=max(1, chunk), depth=depth, parallel=parallel)


def _on_panels(product: Product, features: Features, *, parallel: bool) -> Tiling:
    """Decide for a weight that lies in panels."""
    if _by_tiles(product, features):
        return _on_tiles(product, parallel=parallel)
    _, m, _, k = product.sizes
    item, lanes = 4, features.vector_bytes // 4
    registers = 24 if features.registers == 32 else 12
    vectors = min(product.b.blocks[0][1] // lanes, registers // 6)
    rows = registers // vectors
    rows_bytes = ROOMY_ROWS_BYTES if features.roomy else ROWS_BYTES
    tiles = rows_bytes
    if not is_named(m):
        tiles = -(-m // rows)
        rows = -(-m // tiles)
    pair = product.pair
    blocks = -(-k * vectors * lanes * item // (PANEL_BYTES * pair))
    depth = k if blocks == 1 else -(-k // blocks // lanes) * lanes + lanes
    return Tiling(
        "panels",
        lanes,
        rows,
        vectors * lanes,
        chunk=max(1, min(tiles, rows_bytes // (rows * depth * item))),
        depth=depth,
        parallel=parallel,
    )
