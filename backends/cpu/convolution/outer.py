"""What a kernel of template ``outer`` sums: products of two runs of channels, place after place.

    out[outer, m, n] = sum over k of  left[outer, k, m] * right[outer, k, n]

``m`` and ``n`` lie side by side in the memory of their factors, so a place adds an outer product
to a register tile and nothing is packed (the gradient of a convolution's kernel; oneDNN's
``bwd_w`` kernels do the same on blocked layouts: Georganas et al. 2018, arXiv:1808.05567). Windows
that cross a border only shorten the loops over k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from irc.backends.cpu.features import Features
from irc.backends.cpu.loops.nest import Access, Bound, Nest, Step, analyse
from irc.backends.cpu.loops.sizes import is_named
from irc.backends.cpu.vector.storage import COMPUTE
from irc.dialects.size import is_negative
from irc.dialects.types import ITEM_BYTES, is_float

TILE_COST = 2
"""What a place costs a tile beside its products, in products."""
MOST_ROWS = 14
MOST_VECTORS = 8
CHUNK_BYTES = 512 << 10
"""Of both factors, as much as is read by tile after tile from the second cache."""
LEAST_STEPS = 96
"""Places of a chunk: a tile is loaded and stored around them."""
ROUND_BYTES = 1 << 20
"""Of tiles that a thread adds to at a time."""
CORES = 4
"""Tiles should divide evenly among so many."""


@dataclass(frozen=True)
class Sums:
    """The factors of a nest.

    Attributes:
        nest: the kernel, its sum as a contraction.
        step: the contraction.
        left: the factor whose elements are broadcast; where it varies along ``n`` as the other one
            does (depthwise), it is read in vectors.
        right: the factor that is read in vectors along ``n``.
        m: a dim of ``left`` alone, side by side in memory; None for one row.
        n: see above.
        outer: all other parallel dims.
        inner: the summed dims, outermost first.
    """

    nest: Nest
    step: Step
    left: Access
    right: Access
    m: int | None
    n: int
    outer: tuple[int, ...]
    inner: tuple[int, ...]

    @property
    def element(self) -> str:
        """The LLVM type of the accumulator."""
        return "double" if self.left.dtype == "f64" else "float"

    @property
    def rows(self) -> int:
        """The size of ``m``."""
        return 1 if self.m is None else self.nest.extents[self.m]

    @property
    def columns(self) -> int:
        """The size of ``n``."""
        return self.nest.extents[self.n]

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """Where a factor is read: products outside of them are zeros."""
        return (*self.left.bounds, *self.right.bounds)

    def sizes(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        """Return the extents of some dims."""
        return tuple(self.nest.extents[d] for d in dims)


def read_sums(nest: Nest) -> Sums | None:
    """Return the factors of a simplified nest; None where rows of the nest must sum them."""
    contraction = _contraction(nest)
    if contraction is None or 0 in nest.extents or any(map(is_named, nest.extents)):
        return None
    nest, step = contraction
    makers = nest.producers()
    factors = [makers[value] for value in step.operands]
    if any(not _is_plain(s) for s in factors):
        return None
    one, other = (s.access for s in factors)
    assert one is not None and other is not None
    if COMPUTE[one.dtype] != COMPUTE[other.dtype]:
        return None
    place = _lanes(nest, one, other)
    if place is None:
        return None
    left, right, m, n = place
    outer = tuple(d for d in range(nest.parallel) if d not in (m, n))
    sums = Sums(nest, step, left, right, m, n, outer, tuple(sorted(nest.reduced)))
    return sums if all(_shortens(sums, bound) for bound in sums.bounds) else None


def _contraction(nest: Nest) -> tuple[Nest, Step] | None:
    """Return the nest with its one sum of products as a contraction, and that."""
    sums = [s for s in nest.steps if s.kind in ("reduce", "contract")]
    if len(sums) != 1 or not nest.reduced:
        return None
    (total,), makers = sums, nest.producers()
    inner = set(total.operands)
    if total.kind == "reduce":
        product = makers[total.operands[0]]
        if total.fn != "sum" or product.kind != "pointwise" or product.fn != "mul":
            return None
        inner |= set(product.operands)
        contract = Step("contract", total.result, product.operands, total.dtype, "sum")
        steps = tuple(contract if s is total else s for s in nest.steps if s is not product)
        nest, total = replace(nest, steps=steps), contract
    facts = analyse(nest)
    others = [s for s in nest.steps if s.result not in inner]
    if any(s.result >= 0 and facts.dims[s.result] & nest.reduced for s in others):
        return None
    if any(set(total.operands) & set(s.operands) for s in nest.steps if s is not total):
        return None
    return nest, total


def _is_plain(factor: Step) -> bool:
    access = factor.access
    return (
        factor.kind == "load"
        and access is not None
        and is_float(access.dtype)
        and not access.index_strides
        and not access.blocks
        and not any(map(is_negative, access.strides))
        and not (access.bounds and access.fill)
    )


def _lanes(nest: Nest, one: Access, other: Access) -> tuple[Access, Access, int | None, int] | None:
    """Return left, right, m and n: results that lie side by side are in the lanes of a vector."""

    def runs(a: Access, b: Access, step: int) -> list[int]:
        return [
            d for d in range(nest.parallel)
            if a.strides[d] == 1 and b.strides[d] == step
            and not any(bound.strides[d] for bound in (*a.bounds, *b.bounds))
        ]  # fmt: skip

    def longest(dims: list[int]) -> int | None:
        return max(dims, key=lambda d: nest.extents[d], default=None)

    shared = longest(runs(one, other, 1))
    if shared is not None:
        return one, other, None, shared
    first, second = longest(runs(one, other, 0)), longest(runs(other, one, 0))
    stored = {
        d
        for s in nest.steps
        if s.kind == "store" and s.access is not None
        for d in range(nest.parallel)
        if s.access.strides[d] == 1
    }
    if first is None and second is None:
        return None
    if second is None or (first is not None and first in stored and second not in stored):
        assert first is not None
        return other, one, second, first
    return one, other, first, second


def _shortens(sums: Sums, bound: Bound) -> bool:
    """True where a border only says from where to where one loop over places runs."""
    moved = [d for d in sums.inner if bound.strides[d]]
    fixed = bound.dims - set(moved)
    return len(moved) <= 1 and fixed <= set(sums.outer) and all(s >= 0 for s in bound.strides)


@dataclass(frozen=True)
class Blocking:
    """How the sums are divided.

    Attributes:
        lanes: of a vector.
        rows: of a register tile; the last tile begins earlier rather than being short.
        vectors: of a row of a tile.
        chunk: which of the inner dims is cut into chunks; those before it are walked one by one.
        length: of a chunk.
        together: tiles that a thread adds to at a time.
    """

    lanes: int
    rows: int
    vectors: int
    chunk: int
    length: int
    together: int

    @property
    def columns(self) -> int:
        """Of a register tile."""
        return self.lanes * self.vectors


def make_blocking(sums: Sums, features: Features) -> Blocking:
    """Choose the register tile, and how many places are summed at a time."""
    item = 8 if sums.element == "double" else 4
    lanes = features.vector_bytes // item
    rows, vectors = _tile(sums, features, lanes)
    chunk, length = _chunk(sums)
    tiles = (
        prod(sums.sizes(sums.outer))
        * _parts(sums.rows, rows)
        * _parts(sums.columns, vectors * lanes)
    )
    together = max(1, min(tiles, ROUND_BYTES // (rows * vectors * lanes * item)))
    return Blocking(lanes, rows, vectors, chunk, length, together)


def _parts(size: int, part: int) -> int:
    return -(-size // part)


def _tile(sums: Sums, features: Features, lanes: int) -> tuple[int, int]:
    """Rows and vectors of the register tile that wastes least and divides among cores."""
    registers = 28 if features.registers == 32 else 12
    m, n, outer = sums.rows, sums.columns, prod(sums.sizes(sums.outer))

    def cost(shape: tuple[int, int]) -> tuple[float, int]:
        rows, vectors = shape
        tiles = outer * _parts(m, rows) * _parts(n, vectors * lanes)
        # A vector of the left factor is loaded as well where there is no row to broadcast.
        loads = vectors + (rows / 2 if sums.left.strides[sums.n] == 0 else vectors)
        step = max(rows * vectors, loads, 4) + TILE_COST
        return _parts(tiles, CORES) * step, -rows * vectors

    most = min(MOST_VECTORS, max(1, n // lanes))
    shapes = [
        (rows, vectors)
        for vectors in range(1, most + 1)
        for rows in range(1, min(m, MOST_ROWS) + 1)
        if rows * vectors + vectors + 1 <= registers + 3 and rows * vectors <= registers
    ]
    return min(shapes, key=cost)


def _chunk(sums: Sums) -> tuple[int, int]:
    """The inner dim that is cut, and how long its pieces are."""
    *_, last = sums.inner
    place = (sums.rows + sums.columns) * ITEM_BYTES[sums.right.dtype]
    if sums.m is None:
        place = 2 * sums.columns * ITEM_BYTES[sums.right.dtype]
    inside = 1
    dim, length = last, max(LEAST_STEPS, CHUNK_BYTES // place)
    for d in reversed(sums.inner):
        if inside * place > CHUNK_BYTES:
            break
        dim, length = d, max(1, CHUNK_BYTES // (inside * place))
        if d == last:
            length = max(length, LEAST_STEPS)
        inside *= sums.nest.extents[d]
    return sums.inner.index(dim), min(length, sums.nest.extents[dim])
