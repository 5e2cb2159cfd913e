"""How a rows kernel runs: the dim in the lanes, what each pass computes, how work is divided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from irc.backends.cpu.features import Features
from irc.backends.cpu.loops.nest import Access, Facts, Nest, Step, points, step_cost, step_dims
from irc.backends.cpu.loops.sizes import is_named, typical
from irc.backends.cpu.vector.storage import COMPUTE
from irc.dialects.types import ITEM_BYTES

HEAVY = 6.0
MAX_CACHED_BYTES = 1 << 20
PARALLEL_NS = 4000.0
SHORT, LONG = 6.0, 16.0
LINE = 64
OPEN_POINTS = 8192
"""Points of a unit of work where the size of the whole is open."""


@dataclass(frozen=True)
class Pass:
    """One walk over the reduced dims.

    Attributes:
        roots: the reductions and stores that it does.
        steps: what it computes at each point, in order.
        rows: values constant along the reduced dims that it needs.
        loads: values that an earlier pass has cached.
        saves: values to cache for later passes.
    """

    roots: tuple[Step, ...]
    steps: tuple[Step, ...]
    rows: frozenset[int]
    loads: frozenset[int]
    saves: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Schedule:
    """Everything that is decided before a rows kernel is written.

    Attributes:
        vector: the dim in the lanes, or None.
        lanes: how many.
        unroll: how many vectors at once.
        masked: whether tails are masked vectors (else scalar loops).
        passes: the walks over the reduced dims.
        cached: where values kept between passes lie in the scratch row.
        scratch_bytes: the size of the scratch row.
        block: how many indices of a parallel vector dim make a unit of work.
        chunks: into how many parts the mapping lets the work be divided.
        parallel: whether a thread pool is worth its start.
    """

    vector: int | None
    lanes: int
    unroll: int
    masked: bool
    passes: tuple[Pass, ...]
    cached: dict[int, Access] = field(default_factory=dict[int, Access])
    scratch_bytes: int = 0
    block: int = 0
    chunks: int = 1
    parallel: bool = False


def make_schedule(nest: Nest, facts: Facts, workers: int, features: Features) -> Schedule:
    """Decide how a kernel runs."""
    width = _lanes(nest, features)
    vector = _vector_dim(nest, width)
    lanes = 1 if vector is None else width
    units = all(vector is None or a.strides[vector] in (0, 1) for a in nest.accesses)
    plain = not any(a.index_strides for a in nest.accesses)
    cost = sum(step_cost(s, vector) for s in nest.steps)
    passes = plan_passes(nest, facts, vector)
    longest = max((sum(step_cost(s, vector) for s in p.steps) for p in passes), default=cost)
    unroll = _unroll(nest, vector, lanes, longest)
    reduced = prod(nest.extents[d] for d in sorted(nest.reduced))
    row = reduced * (lanes * unroll if vector is not None and vector < nest.parallel else 1)
    saved = sorted(frozenset[int]().union(*(p.saves for p in passes)))
    by_value = nest.producers()
    if saved and typical(row) * 8 * len(saved) > MAX_CACHED_BYTES:
        passes, saved = plan_passes(nest, facts, vector, cache=False), []
    cached, size = _scratch(nest, [by_value[v] for v in saved], vector, lanes * unroll, row)
    chunks, block = _divide(nest, vector, lanes * unroll, workers)
    estimate_ns = typical(points(nest)) * point_ns(nest, vector, lanes)
    return Schedule(
        vector, lanes, unroll, features.masked and units and plain, passes, cached, size, block,
        chunks, chunks > 1 and (estimate_ns > PARALLEL_NS or is_named(points(nest))),
    )  # fmt: skip


def point_ns(nest: Nest, vector: int | None, lanes: int) -> float:
    """Estimate what one point of the space costs a thread."""
    cost = sum(step_cost(s, vector) for s in nest.steps)
    memory = sum(ITEM_BYTES[a.dtype] for a in nest.accesses) / 16
    return max(cost * 0.4 / lanes, memory * 0.25)


def _lanes(nest: Nest, features: Features) -> int:
    """Return the lanes such that most values fill one register."""
    sizes = [ITEM_BYTES[step.dtype] for step in nest.steps if step.dtype] or [4]
    floats = any(step.dtype in ("f32", "f16", "bf16") for step in nest.steps)
    item = 4 if floats else max(sizes)
    return features.vector_bytes // max(item, 2)


def _vector_dim(nest: Nest, lanes: int) -> int | None:
    """Choose the dim whose vectors cost least for one point of the space."""
    body = sum(step_cost(s, None) for s in nest.steps if s.access is None)
    reduced = max(prod(typical(nest.extents[d]) for d in nest.reduced), 1)

    def cost(d: int) -> float:
        extent = typical(nest.extents[d])
        filled = -(-extent // lanes) * lanes / max(extent, 1)
        total = body * filled / lanes
        for access in nest.accesses:
            once = any(access.strides[e] for e in nest.reduced) or not nest.reduced
            weight = 1.0 if once else 1.0 / reduced
            total += weight * (filled / lanes if access.strides[d] in (0, 1) else 0.75)
        return total

    blocked = {d for access in nest.accesses for d, _, _ in access.blocks}
    wide = [d for d, extent in enumerate(nest.extents) if typical(extent) > 1]
    choices = [d for d in wide if d not in blocked]
    best = min(choices, key=lambda d: (cost(d), -d), default=None)
    return None if best is None or cost(best) >= body + len(nest.accesses) else best


def _unroll(nest: Nest, vector: int | None, lanes: int, cost: float) -> int:
    """Return how many vectors go side by side: enough to hide latency, few where code is long."""
    if vector is None:
        return 1
    wanted = 4 if cost <= SHORT else 2 if cost <= LONG else 1
    if vector < nest.parallel and not nest.reduced:
        wanted = min(wanted, 2)
    while wanted > 1 and wanted * lanes > typical(nest.extents[vector]):
        wanted //= 2
    return wanted


def plan_passes(
    nest: Nest, facts: Facts, vector: int | None, *, cache: bool = True
) -> tuple[Pass, ...]:
    """Assign steps to passes; heavy values that two passes need are cached by the first."""
    roots: dict[int, list[Step]] = {}
    for step in nest.steps:
        inside = bool(step_dims(step, facts) & nest.reduced)
        if step.kind in ("reduce", "contract") or (step.kind == "store" and inside):
            stage = max(facts.stage[v] for v in step.operands)
            roots.setdefault(stage, []).append(step)
    by_value, computed, saves = nest.producers(), dict[int, int](), dict[int, set[int]]()
    drafts: list[Pass] = []
    for number in sorted(roots):
        wanted: set[int] = set()
        rows: set[int] = set()
        loads: set[int] = set()
        stack = [v for root in roots[number] for v in root.operands]
        while stack:
            v = stack.pop()
            if v in wanted or v in rows or v in loads:
                continue
            if not facts.dims[v] & nest.reduced:
                rows.add(v)
            elif cache and v in computed and cone_cost(v, by_value, facts, nest, vector) > HEAVY:
                loads.add(v)
                saves.setdefault(computed[v], set()).add(v)
            else:
                wanted.add(v)
                stack += by_value[v].operands
        for v in wanted:
            computed.setdefault(v, len(drafts))
        steps = tuple(s for s in nest.steps if s.result in wanted and s.result >= 0)
        drafts.append(Pass(tuple(roots[number]), steps, frozenset(rows), frozenset(loads)))
    return tuple(
        Pass(p.roots, p.steps, p.rows, p.loads, frozenset(saves.get(i, ())))
        for i, p in enumerate(drafts)
    )


def cone_cost(
    value: int, by_value: dict[int, Step], facts: Facts, nest: Nest, vector: int | None
) -> float:
    """Estimate what recomputing a full value costs at each point."""
    seen: set[int] = set()
    stack = [value]
    while stack:
        v = stack.pop()
        if v not in seen and facts.dims[v] & nest.reduced:
            seen.add(v)
            stack += by_value[v].operands
    return sum(step_cost(by_value[v], vector) for v in seen)


def _scratch(
    nest: Nest, saved: Sequence[Step], vector: int | None, width: int, row: int
) -> tuple[dict[int, Access], int]:
    """Lay cached values out in the scratch row, as accesses over the nest's dims."""
    strides = [0] * len(nest.extents)
    step = 1
    if vector is not None and vector < nest.parallel:
        strides[vector], step = 1, width
    order = [d for d in sorted(nest.reduced) if d != vector]
    if vector is not None and vector in nest.reduced:
        order.append(vector)
    for d in reversed(order):
        strides[d], step = step, step * nest.extents[d]
    places: dict[int, Access] = {}
    offset = 0
    if is_named(row):
        return _open_rows(saved, strides, row)
    for value in saved:
        dtype = "f32" if COMPUTE[value.dtype] == "float" else value.dtype
        item = ITEM_BYTES[dtype]
        places[value.result] = Access(-1, dtype, row, offset // item, tuple(strides))
        offset += -(-row * item // 64) * 64
    return places, offset


def _open_rows(
    saved: Sequence[Step], strides: Sequence[int], row: int
) -> tuple[dict[int, Access], int]:
    """Lay out rows whose length is known only at run time: each is a buffer of its own."""
    places: dict[int, Access] = {}
    size = 0
    for number, value in enumerate(saved):
        dtype = "f32" if COMPUTE[value.dtype] == "float" else value.dtype
        places[value.result] = Access(-1 - number, dtype, row, 0, tuple(strides))
        size = size + row * ITEM_BYTES[dtype] + LINE
    return places, size


def _divide(nest: Nest, vector: int | None, width: int, workers: int) -> tuple[int, int]:
    """Return the number of chunks and the block of a parallel vector dim."""
    tasks = prod(nest.extents[: nest.parallel])
    if is_named(points(nest)):
        return workers, _open_block(nest, vector, width)
    if vector is None or vector >= nest.parallel:
        return min(workers, tasks), 0
    if tasks == 0:
        return 0, 1
    extent = nest.extents[vector]
    rows = tasks // extent
    pieces = -(-min(workers, tasks) // rows)
    block = max(-(-extent // pieces), 1)
    block = min(-(-block // width) * width, extent)
    return min(workers, rows * -(-extent // block)), block


def _open_block(nest: Nest, vector: int | None, width: int) -> int:
    """Return the block of a parallel vector dim where sizes are open: some 8192 points."""
    if vector is None or vector >= nest.parallel:
        return 0
    reduced = max(prod(typical(nest.extents[d]) for d in nest.reduced), 1)
    block = max(OPEN_POINTS // reduced // width, 1) * width
    return block if is_named(nest.extents[vector]) else min(block, nest.extents[vector])


def least_points(nest: Nest, vector: int | None, lanes: int) -> int:
    """Return from how many points on a thread pool is worth its start."""
    return int(PARALLEL_NS / point_ns(nest, vector, lanes)) + 1
