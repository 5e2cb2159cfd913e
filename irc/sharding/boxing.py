"""Boxing: the cheapest way from one placement of a tensor to another.

A placement changes one mesh axis at a time, by a collective over that axis or by a local chunk:

    S(d) -> B      all_gather       the axis must be the last that was applied to d
    B    -> S(d)   local_chunk      the axis becomes the last that is applied to d
    S(i) -> S(j)   all_to_all       the last of i becomes the last of j
    P    -> B      all_reduce
    P    -> S(d)   reduce_scatter   the axis becomes the last that is applied to d

Nothing makes a partial value: those come from ops alone. The path is found by Dijkstra's algorithm on the
bytes that a rank holds before and after each step, so that ``(B, S0) -> (S0, S0)``, which moves the
inner blocks, is not mistaken for a free slice of the outer axis (OneFlow's table has that error).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol, TypeAlias

from irc.dialects.placement import AxisPlacement, B, Mesh, Partial, Placement, Reduction, Split
from irc.errors import InternalError

StepKind: TypeAlias = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "local_chunk"
]
LocalShape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One transition of one axis.

    Attributes:
        kind: a collective, or ``local_chunk``.
        axis: the mesh axis over which it runs.
        result: the placement after it.
        split_dim: the dim that is split among the ranks, where one is.
        concat_dim: the dim along which parts of the ranks are joined, where they are.
        reduction: how partial values are reduced, where they are.
    """

    kind: StepKind
    axis: str
    result: Placement
    split_dim: int | None = None
    concat_dim: int | None = None
    reduction: Reduction | None = None


class StepPrices(Protocol):
    """What boxing asks of a cost model."""

    def step_seconds(
        self, step: Step, before: LocalShape, after: LocalShape, dtype: str
    ) -> float: ...


def even_shape(shape: LocalShape, placement: Placement, mesh: Mesh) -> LocalShape | None:
    """Return the shape that every rank holds, or None where shards would differ.

    >>> mesh = Mesh.parse("data=2,tensor=2")
    >>> even_shape((8, 6), Placement.of(data=Split(0), tensor=Split(1)), mesh)
    (4, 3)
    >>> even_shape((6, 6), Placement.of(data=Split(0), tensor=Split(0)), mesh) is None
    True
    """
    local = list(shape)
    for axis, placed in placement.axes:
        if isinstance(placed, Split):
            size = mesh.size(axis)
            if placed.dim >= len(local) or local[placed.dim] % size:
                return None
            local[placed.dim] //= size
    return tuple(local)


def steps_from(placement: Placement, ndim: int) -> Iterator[Step]:
    """Yield every transition of one axis, in a fixed order."""
    if len({p.reduction for p in placement if isinstance(p, Partial)}) > 1:
        # A sum of maxima is no maximum of sums: no order of reducing them is the meaning.
        return
    for axis, placed in placement.axes:
        match placed:
            case Partial(reduction):
                yield Step(
                    "all_reduce", axis, _with(placement, axis, B), reduction=reduction
                )
                for dim in range(ndim):
                    yield Step(
                        "reduce_scatter",
                        axis,
                        _append(placement, axis, dim),
                        split_dim=dim,
                        reduction=reduction,
                    )
            case Split(dim):
                if placement.split_axes(dim)[-1] != axis:
                    continue
                yield Step("all_gather", axis, _with(placement, axis, B), concat_dim=dim)
                for other in range(ndim):
                    if other != dim:
                        moved = _append(_with(placement, axis, B), axis, other)
                        yield Step("all_to_all", axis, moved, split_dim=other, concat_dim=dim)
            case _:
                for dim in range(ndim):
                    chunked = _append(placement, axis, dim)
                    yield Step("local_chunk", axis, chunked, split_dim=dim)


def _with(placement: Placement, axis: str, placed: AxisPlacement) -> Placement:
    return Placement(tuple((n, placed if n == axis else p) for n, p in placement.axes))


def _append(placement: Placement, axis: str, dim: int) -> Placement:
    """Split ``dim`` over ``axis`` after the axes that split it already."""
    return _with(placement, axis, Split(dim, len(placement.split_axes(dim))))


class Boxing:
    """Paths and prices on one mesh, remembered by shape and dtype.

    Args:
        mesh: The mesh of all placements.
        prices: What one step costs.
    """

    def __init__(self, mesh: Mesh, prices: StepPrices) -> None:
        self.mesh = mesh
        self._prices = prices
        self._steps: dict[tuple[LocalShape, str, Placement], tuple[tuple[Step, float], ...]] = {}
        self._searches: dict[tuple[LocalShape, str, Placement], _Search] = {}

    def steps(self, shape: LocalShape, dtype: str, source: Placement) -> tuple[tuple[Step, float], ...]:
        """Return the even transitions out of a placement with their seconds."""
        key = (shape, dtype, source)
        if key not in self._steps:
            before = even_shape(shape, source, self.mesh)
            if before is None:
                raise InternalError(f"{source} does not divide {shape} evenly on mesh {self.mesh}")
            self._steps[key] = tuple(
                (step, self._prices.step_seconds(step, before, after, dtype))
                for step in _steps_from(source, len(shape))
                if (after := even_shape(shape, step.result, self.mesh)) is not None
            )
        return self._steps[key]

    def seconds(self, shape: LocalShape, dtype: str, source: Placement, target: Placement) -> float:
        """Return the seconds of the cheapest path.

        Raises:
            InternalError: where there is none (``target`` is partial, ``source`` otherwise).
        """
        return 0.0 if source == target else self._search(shape, dtype, source).cost(target)

    def reachable(self, shape: LocalShape, dtype: str, source: Placement) -> Mapping[Placement, float]:
        """Return the seconds to every placement that there is a path to."""
        return self._search(shape, dtype, source).best

    def reaches(self, shape: LocalShape, dtype: str, source: Placement, target: Placement) -> bool:
        """Return whether there is a path."""
        return source == target or target in self._search(shape, dtype, source).best

    def path(
        self, shape: LocalShape, dtype: str, source: Placement, target: Placement
    ) -> tuple[Step, ...]:
        """Return the steps of the cheapest path; the fewest steps among equally cheap ones."""
        if source == target:
            return ()
        search = self._search(shape, dtype, source)
        search.cost(target)
        steps: list[Step] = []
        while target != source:
            step, target = search.came[target]
            steps.append(step)
        return tuple(reversed(steps))

    def _search(self, shape: LocalShape, dtype: str, source: Placement) -> _Search:
        key = (shape, dtype, source)
        if key not in self._searches:
            self._searches[key] = self._dijkstra(shape, dtype, source)
        return self._searches[key]

    def _dijkstra(self, shape: LocalShape, dtype: str, source: Placement) -> _Search:
        search = _Search(source, {source: 0.0}, {})
        done: set[Placement] = set()
        # The last part of an entry numbers the pushes, so that ties never compare placements.
        queue: list[tuple[float, int, int, Placement]] = [(0.0, 0, 0, source)]
        pushed = 0
        while queue:
            cost, length, _, here = heapq.heappop(queue)
            if here in done:
                continue
            done.add(here)
            for step, seconds in self.steps(shape, dtype, here):
                there, total = step.result, cost + seconds
                if there not in search.best or total < search.best[there]:
                    search.best[there] = total
                    search.came[there] = (step, here)
                    pushed += 1
                    heapq.heappush(queue, (total, length + 1, pushed, there))
        return search


@dataclass(frozen=True)
class _Search:
    """All that is reachable from one placement."""

    source: Placement
    best: dict[Placement, float]
    came: dict[Placement, tuple[Step, Placement]]

    def cost(self, target: Placement) -> float:
        if target not in self.best:
            raise InternalError(f"there is no boxing from {self.source} to {target}")
        return self.best[target]


@lru_cache(maxsize=4096)
def _steps_from(placement: Placement, ndim: int) -> tuple[Step, ...]:
    return tuple(steps_from(placement, ndim))
