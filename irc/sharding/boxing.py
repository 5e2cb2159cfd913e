"""Boxing: the cheapest way from one placement of a tensor to another.

A placement changes one mesh axis at a time, by a collective over that axis or by a local chunk:

    S(d) -> B      all_gather       the axis must be the last that was applied to d
    B    -> S(d)   local_chunk      the axis becomes the last that is applied to d
    S(i) -> S(j)   all_to_all       the last of i becomes the last of j
    P    -> B      all_reduce
    P    -> S(d)   reduce_scatter   the axis becomes the last that is applied to d

Nothing makes a partial value: those come from ops alone. The cheapest path is found on the
bytes that a rank holds before and after each step, so that ``(B, S0) -> (S0, S0)``, which moves the
inner blocks, is not mistaken for a free slice of the outer axis (OneFlow's table has that error).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from threading import RLock
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

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


Priced: TypeAlias = tuple[Step, float]
"""A transition and its seconds."""


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
                yield Step("all_reduce", axis, _with(placement, axis, B), reduction=reduction)
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


def step_between(source: Placement, target: Placement, ndim: int) -> Step | None:
    """Return the transition that leads from one placement to the other, if one does."""
    return next((step for step in _steps_from(source, ndim) if step.result == target), None)


class Boxing:
    """Paths and prices on one mesh, remembered by shape and dtype.

    Args:
        mesh: The mesh of all placements.
        prices: What one step costs.
        aside: The library of collectives gathers and scatters in memory of its own (gloo), which
            is there beside what is sent and received.
    """

    def __init__(self, mesh: Mesh, prices: StepPrices, *, aside: bool = False) -> None:
        self.mesh = mesh
        self.aside = aside
        self._prices = prices
        self._tables: dict[tuple[LocalShape, str], _Table] = {}

    def steps(self, shape: LocalShape, dtype: str, source: Placement) -> Sequence[Priced]:
        """Return the even transitions out of a placement with their seconds."""
        table = self._table(shape, dtype)
        return table.steps[table.index(source)]

    def direct_steps(self, shape: LocalShape, dtype: str, source: Placement) -> Sequence[Priced]:
        """Return the transitions that no way around is cheaper than (as emulated ones are)."""
        table = self._table(shape, dtype)
        row = table.index(source)
        reach = table.distances[row]
        # The sum of a path rounds otherwise than the price of a step.
        return [
            (step, seconds)
            for step, seconds in table.steps[row]
            if seconds <= reach[table.index(step.result)] * (1 + 1e-12)
        ]

    def seconds(self, shape: LocalShape, dtype: str, source: Placement, target: Placement) -> float:
        """Return the seconds of the cheapest path.

        Raises:
            InternalError: where there is none (``target`` is partial, ``source`` otherwise).
        """
        seconds = float(self.matrix(shape, dtype, [source], [target])[0, 0])
        if seconds == float("inf"):
            raise InternalError(f"there is no boxing from {source} to {target}")
        return seconds

    def reaches(self, shape: LocalShape, dtype: str, source: Placement, target: Placement) -> bool:
        """Return whether there is a path."""
        return float(self.matrix(shape, dtype, [source], [target])[0, 0]) < float("inf")

    def matrix(
        self,
        shape: LocalShape,
        dtype: str,
        sources: Sequence[Placement],
        targets: Sequence[Placement],
    ) -> NDArray[np.float64]:
        """Return the seconds from each source (rows) to each target; infinity: no path."""
        table = self._table(shape, dtype)
        rows, columns = [table.index(p) for p in sources], [table.index(p) for p in targets]
        return table.distances[np.ix_(rows, columns)]

    def path(
        self, shape: LocalShape, dtype: str, source: Placement, target: Placement
    ) -> tuple[Step, ...]:
        """Return the steps of the cheapest path; the fewest steps among equally cheap ones."""
        self.seconds(shape, dtype, source, target)
        return self._table(shape, dtype).path(source, target)

    def _table(self, shape: LocalShape, dtype: str) -> _Table:
        key = (shape, dtype)
        if key not in self._tables:
            self._tables[key] = _Table(self.mesh, self._prices, shape, dtype)
        return self._tables[key]


class _Table:
    """All placements of one shape that can arise, their transitions, and all distances."""

    def __init__(self, mesh: Mesh, prices: StepPrices, shape: LocalShape, dtype: str) -> None:
        self._mesh, self._prices, self._shape, self._dtype = mesh, prices, shape, dtype
        self._place: dict[Placement, int] = {}
        self.placements: list[Placement] = []
        self.steps: list[list[Priced]] = []
        self._distances: NDArray[np.float64] | None = None
        # Searches in several threads share a table, which grows while it is read.
        self._lock = RLock()
        # From a sum over all axes every placement can be reached but those of other reductions.
        self.index(Placement(tuple((axis, Partial("sum")) for axis in mesh.names)))
        self._num_first = len(self.placements)

    def index(self, placement: Placement) -> int:
        """Return the row of a placement, after adding all that it leads to."""
        with self._lock:
            if placement not in self._place:
                stack = [placement]
                self._add(placement)
                while stack:
                    for step, _ in self.steps[self._place[stack.pop()]]:
                        if step.result not in self._place:
                            self._add(step.result)
                            stack.append(step.result)
            return self._place[placement]

    def _add(self, placement: Placement) -> None:
        before = even_shape(self._shape, placement, self._mesh)
        if before is None:
            raise InternalError(f"{placement} does not divide {self._shape} evenly on {self._mesh}")
        self._place[placement] = len(self.placements)
        self.placements.append(placement)
        self.steps.append(
            [
                (step, self._prices.step_seconds(step, before, after, self._dtype))
                for step in _steps_from(placement, len(self._shape))
                # An axis of one rank splits nothing: splits over it only multiply the placements.
                if (step.split_dim is None or self._mesh.size(step.axis) > 1)
                and (after := even_shape(self._shape, step.result, self._mesh)) is not None
            ]
        )
        self._distances = None

    @property
    def distances(self) -> NDArray[np.float64]:
        """All distances, by Floyd and Warshall's algorithm."""
        with self._lock:
            if self._distances is None:
                size = len(self.placements)
                d = np.full((size, size), np.inf)
                for here, steps in enumerate(self.steps):
                    d[here, here] = 0.0
                    for step, seconds in steps:
                        there = self._place[step.result]
                        d[here, there] = min(d[here, there], seconds)
                # Sums round by their order, which must not be that in which readers came.
                later = sorted(range(self._num_first, size), key=lambda i: str(self.placements[i]))
                for between in (*range(self._num_first), *later):
                    np.minimum(d, d[:, between, None] + d[None, between, :], out=d)
                self._distances = d
            return self._distances

    def path(self, source: Placement, target: Placement) -> tuple[Step, ...]:
        """Return the cheapest path by Dijkstra's algorithm; (cost, steps) orders the queue."""
        best: dict[Placement, tuple[float, int]] = {source: (0.0, 0)}
        came: dict[Placement, tuple[Step, Placement]] = {}
        # The number of the push comes before the placement, so that ties never compare placements.
        queue: list[tuple[float, int, int, Placement]] = [(0.0, 0, 0, source)]
        done: set[Placement] = set()
        pushes = count(1)
        while queue and target not in done:
            cost, length, _, here = heapq.heappop(queue)
            if here in done:
                continue
            done.add(here)
            for step, seconds in self.steps[self.index(here)]:
                total = (cost + seconds, length + 1)
                if step.result not in best or total < best[step.result]:
                    best[step.result], came[step.result] = total, (step, here)
                    heapq.heappush(queue, (*total, next(pushes), step.result))
        steps: list[Step] = []
        while target != source:
            step, target = came[target]
            steps.append(step)
        return tuple(reversed(steps))


@lru_cache(maxsize=4096)
def _steps_from(placement: Placement, ndim: int) -> tuple[Step, ...]:
    return tuple(steps_from(placement, ndim))
