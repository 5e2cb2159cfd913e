"""What a kernel of template ``grouped`` multiplies, and how its rows are sorted by their matrix.

    count the rows of each matrix; place them in that order          (each thread, in its scratch)
    for matrices: for panels: for tiles of its rows: multiply        (tiles shared out evenly)
    for rows that name no matrix: zeros

Tiles are counted matrix after matrix, panel after panel, so a thread's share is a range of that
count, whatever the router chose, and a panel is read by one thread for all rows that meet it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from irc.backends.cpu.features import Features
from irc.backends.cpu.loops.nest import Access, Nest, Step
from irc.backends.cpu.matmul.product import Product
from irc.kernels.weights.panels import COLUMNS

PANEL_BYTES = 640 << 10
"""Of a panel that tile after tile reads from the second cache."""


@dataclass(frozen=True)
class Grouped:
    """``tile[r, n] = sum over k of x[r, k] * w[index[r], n, k]`` and what follows.

    Attributes:
        nest: as it was read.
        product: for what follows: n joins panels and their columns; every other dim is a row's.
        x, w, index: accesses over the dims of ``nest``; ``w`` has the stride of its index.
        rows: dims of ``product.nest`` that number rows.
        of: dims of ``nest`` by those of ``product.nest`` (of n: its columns).
        panels, depth, pair, matrices: sizes of w [matrices, panels, depth / pair, 64, pair].
        run: elements of x from k to k.
    """

    nest: Nest
    product: Product
    x: Access
    w: Access
    index: Access
    rows: tuple[int, ...]
    of: tuple[int, ...]
    panels: int
    depth: int
    pair: int
    matrices: int
    run: int

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return prod(self.product.nest.extents[d] for d in self.rows)

    @property
    def panel(self) -> int:
        """Elements of a panel."""
        return self.depth * COLUMNS

    def stride(self, access: Access, dim: int) -> int:
        """Return how far an access of the nest moves along a dim of rows."""
        return access.strides[self.of[dim]]


def read_grouped(nest: Nest) -> Grouped | None:
    """Read a kernel of template ``grouped``; None where its steps are others."""
    makers = nest.producers()
    steps = [s for s in nest.steps if s.kind == "contract"]
    if len(steps) != 1 or 0 in nest.extents:
        return None
    (step,) = steps
    left, right = (makers[v] for v in step.operands)
    x, w = left.access, right.access
    if x is None or w is None or len(w.index_strides) != 1 or x.index_strides or x.bounds:
        return None
    index = _index_of(makers, right.operands[0])
    columns = [d for d in range(nest.parallel) if w.strides[d]]
    if index is None or not columns or x.dtype != w.dtype:
        return None
    pair = w.strides[columns[-1]]
    depth = prod(nest.extents[d] for d in nest.reduced)
    panels = prod(nest.extents[d] for d in columns) // COLUMNS
    product, of = _outside(nest, step, columns)
    if product is None or panels * COLUMNS != product.sizes[2] or pair not in (1, 2):
        return None
    run = _run(nest, x, pair)
    if run is None or w.index_strides[0] != panels * depth * COLUMNS or w.offset:
        return None
    rows = tuple(d for d in range(product.nest.parallel) if d != product.n)
    matrices = w.index_counts[0]
    return Grouped(nest, product, x, w, index, rows, of, panels, depth, pair, matrices, run)


def _index_of(makers: dict[int, Step], value: int) -> Access | None:
    """The one load of integers that a looked-up index is made of."""
    loads: list[Access] = []
    pending = [value]
    while pending:
        step = makers[pending.pop()]
        pending += step.operands
        if step.access is not None:
            loads.append(step.access)
    unique = list(dict.fromkeys(loads))
    return unique[0] if len(unique) == 1 and unique[0].dtype in ("i64", "i32") else None


def _run(nest: Nest, x: Access, pair: int) -> int | None:
    """Elements of x from k to k, where all of a row is one run."""
    total, step = 1, 0
    for d in sorted(nest.reduced, reverse=True):
        if step and x.strides[d] != step * total:
            return None
        step = step or x.strides[d]
        total *= nest.extents[d]
    return step if pair == 1 or step in (0, 1) else None


def _outside(
    nest: Nest, step: Step, columns: Sequence[int]
) -> tuple[Product | None, tuple[int, ...]]:
    """Return what follows as a product of its own: panels and their columns are one dim."""
    lane = columns[-1]
    kept = [d for d in range(nest.parallel) if d == lane or d not in columns]
    place = {d: i for i, d in enumerate(kept)}
    needed = _needed(nest, step)
    rest = [s for s in nest.steps if s.result in needed or s.kind == "store"]
    for s in rest:
        if s.dim in columns or (s.access is not None and not _joined(nest, s.access, columns)):
            return None, ()
    extents = [nest.extents[d] for d in kept]
    extents[place[lane]] = prod(nest.extents[d] for d in columns)

    def moved(s: Step) -> Step:
        dim = None if s.dim is None else place[s.dim]
        if s.access is None:
            return replace(s, dim=dim)
        strides = (*(s.access.strides[d] for d in kept), 0)
        return replace(s, dim=dim, access=replace(s.access, strides=strides))

    value = max(s.result for s in nest.steps) + 1
    anywhere = Access(-1, step.dtype, 1, 0, (*[1] * len(kept), 0))
    load = Step("load", value, (), step.dtype, access=anywhere)
    contract = replace(step, operands=(value,))
    depth = prod(nest.extents[d] for d in nest.reduced)
    outer = Nest((*extents, depth), len(kept), (load, contract, *map(moved, rest)))
    product = Product(outer, contract, anywhere, anywhere, None, place[lane], len(kept))
    return product, tuple(kept)


def _needed(nest: Nest, contract: Step) -> set[int]:
    """The values that what is stored is made of, beside the product."""
    makers = nest.producers()
    needed: set[int] = set()
    pending = [v for s in nest.steps if s.kind == "store" for v in s.operands]
    while pending:
        value = pending.pop()
        if value != contract.result and value not in needed:
            needed.add(value)
            pending += makers[value].operands
    return needed


def _joined(nest: Nest, access: Access, columns: Sequence[int]) -> bool:
    """True where an access walks all columns as one dim."""
    return not access.bounds and all(
        access.strides[a] == access.strides[b] * nest.extents[b] for a, b in pairwise(columns)
    )


@dataclass(frozen=True)
class Blocking:
    """How a grouped product is divided.

    Attributes:
        lanes: of a vector of results.
        rows: of register tiles, the largest first; one that is not full computes rows in vain.
        vectors: of a register tile's columns.
        parts: into how many runs the sum is cut, so that a panel's part stays in the second cache.
    """

    lanes: int
    rows: tuple[int, ...]
    vectors: int
    parts: int

    @property
    def chunks(self) -> int:
        """Register tiles of a panel."""
        return COLUMNS // (self.lanes * self.vectors)


def make_blocking(grouped: Grouped, features: Features) -> Blocking:
    """Choose register tiles."""
    lanes = features.vector_bytes // 4
    wide = features.registers == 32
    vectors = min(4 if wide else 2, COLUMNS // lanes)
    rows = (6, 4, 2, 1)
    item = 2 if grouped.w.dtype == "bf16" else 4
    steps = grouped.depth // grouped.pair
    parts = -(-grouped.panel * item // PANEL_BYTES)
    while steps % parts:
        parts += 1
    return Blocking(lanes, rows, vectors, parts)
