"""The boxings of one value for all its readers: a cheapest tree of transitions.

Readers that want one placement share its boxing, and two wanted placements share the steps that
lead to both: a partial value that is read split and whole pays a reduce-scatter and an all-gather
of the result, not an all-reduce besides. Such a tree is a Steiner arborescence in the graph of
placements.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from irc.dialects.placement import Partial, Placement, Split
from irc.sharding.boxing import Boxing, LocalShape
from irc.sharding.spaces import num_bytes

MAX_EXACT = 5
"""Up to so many wanted placements the tree is exact; beyond, it is grown greedily."""

Costs: TypeAlias = dict[Placement, float]
Wanted: TypeAlias = int
"""A set of targets as bits."""


@dataclass(frozen=True)
class Branch:
    """One boxing: the value under ``source`` gives the value under ``target``."""

    source: Placement
    target: Placement


@dataclass(frozen=True)
class Tree:
    """The boxings of one value, parents before children, and the seconds of all together."""

    seconds: float
    branches: tuple[Branch, ...]


class Trees:
    """Finds trees on one mesh, and remembers them."""

    def __init__(self, boxing: Boxing) -> None:
        self._boxing = boxing
        self._found: dict[object, Tree | None] = {}
        self._bytes: dict[object, int] = {}

    def tree(
        self, shape: LocalShape, dtype: str, source: Placement, targets: Iterable[Placement]
    ) -> Tree | None:
        """Return the cheapest tree from the producer's placement to all wanted ones.

        None where a target cannot be reached: it is partial and the source is not, on some axis.
        """
        # Sorted by text, so that the order of readers cannot change a plan.
        wanted = tuple(sorted({t for t in targets if t != source}, key=str))
        key = (shape, dtype, source, wanted)
        if key not in self._found:
            self._found[key] = self._search(shape, dtype, source, wanted)
        return self._found[key]

    def num_bytes(self, shape: LocalShape, dtype: str, placement: Placement) -> int:
        """Return the bytes that a rank holds of a value."""
        key = (shape, dtype, placement)
        if key not in self._bytes:
            self._bytes[key] = num_bytes(shape, dtype, placement, self._boxing.mesh)
        return self._bytes[key]

    def scratch_bytes(
        self, shape: LocalShape, dtype: str, source: Placement, target: Placement
    ) -> tuple[int, int]:
        """Return what a boxing holds while it runs, beside the value before and after.

        Chunks along another dim than the first are packed; and some libraries gather and scatter in
        memory of their own, the second number. Either is as large as the larger side.
        """
        packed = aside = False
        for axis, before in source.axes:
            after = target[axis]
            if before == after or not isinstance(before, Split | Partial):
                continue
            split = [p.dim for p in (before, after) if isinstance(p, Split)]
            packed = packed or any(prod(shape[:dim]) > 1 for dim in split)
            # A sum is added up in place; a reduction into parts, and a gathering, are not.
            aside = aside or (len(split) == 1 and self._boxing.aside)
        sides = (self.num_bytes(shape, dtype, p) for p in (source, target))
        most = max(sides)
        return packed * most, aside * most

    def _search(
        self, shape: LocalShape, dtype: str, source: Placement, targets: tuple[Placement, ...]
    ) -> Tree | None:
        if not all(self._boxing.reaches(shape, dtype, source, t) for t in targets):
            return None
        if len(targets) > MAX_EXACT:
            branches = self._grow(shape, dtype, source, targets)
        elif len(targets) < 2:
            branches = [Branch(source, target) for target in targets]
        else:
            steps = _Steiner(self._boxing, shape, dtype, source, targets).steps()
            branches = _joined(source, steps, targets)
        seconds = sum(self._boxing.seconds(shape, dtype, b.source, b.target) for b in branches)
        return Tree(seconds, tuple(branches))

    def _grow(
        self, shape: LocalShape, dtype: str, source: Placement, targets: Sequence[Placement]
    ) -> list[Branch]:
        """Prim's rule: repeatedly add the cheapest branch from what is there to what is wanted."""
        have, wanted, grown = [source], list(targets), list[Branch]()
        while wanted:
            _, i, j = min(
                (self._boxing.seconds(shape, dtype, h, w), i, j)
                for i, h in enumerate(have)
                for j, w in enumerate(wanted)
                if self._boxing.reaches(shape, dtype, h, w)
            )
            grown.append(Branch(have[i], wanted[j]))
            have.append(wanted.pop(j))
        return grown


class _Steiner:
    """Dreyfus and Wagner's recurrence over sets T of targets (Networks 1, 1971).

    A(T, v), the cost of the cheapest tree from v to all of T:

        A(T, v) = min of  min over parts T' of T of  A(T', v) + A(T - T', v)
                     and  min over transitions v -> u of  c(v, u) + A(T, u)

    The first line starts, and the second is Dijkstra's algorithm on the reversed transitions.
    """

    def __init__(
        self,
        boxing: Boxing,
        shape: LocalShape,
        dtype: str,
        source: Placement,
        targets: tuple[Placement, ...],
    ) -> None:
        self._source = source
        self._all: Wanted = (1 << len(targets)) - 1
        self._before = _reversed(boxing, shape, dtype, source)
        self._A: dict[Wanted, Costs] = {}
        self._next: dict[tuple[Wanted, Placement], Placement | Wanted] = {}
        for T in range(1, self._all + 1):
            at = [i for i in range(len(targets)) if T >> i & 1]
            start = {targets[at[0]]: 0.0} if len(at) == 1 else self._splits(T)
            self._A[T] = self._dijkstra(T, start)

    def steps(self) -> list[Branch]:
        """Return the transitions of the tree, parents before children."""
        return list(self._walk(self._all, self._source))

    def _splits(self, T: Wanted) -> Costs:
        best: Costs = {}
        part = (T - 1) & T
        while part > 0:
            left, right = self._A[part], self._A[T - part]
            for v in left.keys() & right.keys() if part > T - part else ():
                cost = left[v] + right[v]
                if v not in best or cost < best[v]:
                    best[v], self._next[T, v] = cost, part
            part = (part - 1) & T
        return best

    def _dijkstra(self, T: Wanted, best: Costs) -> Costs:
        queue = [(cost, str(v), v) for v, cost in best.items()]
        heapq.heapify(queue)
        done: set[Placement] = set()
        while queue:
            cost, _, v = heapq.heappop(queue)
            if v in done:
                continue
            done.add(v)
            for u, seconds in self._before.get(v, ()):
                if u not in best or cost + seconds < best[u]:
                    best[u], self._next[T, u] = cost + seconds, v
                    heapq.heappush(queue, (best[u], str(u), u))
        return best

    def _walk(self, T: Wanted, v: Placement) -> Iterator[Branch]:
        follow = self._next.get((T, v))
        if isinstance(follow, int):
            yield from self._walk(follow, v)
            yield from self._walk(T - follow, v)
        elif follow is not None:
            yield Branch(v, follow)
            yield from self._walk(T, follow)


def _reversed(
    boxing: Boxing, shape: LocalShape, dtype: str, source: Placement
) -> dict[Placement, list[tuple[Placement, float]]]:
    before: dict[Placement, list[tuple[Placement, float]]] = {}
    seen, stack = {source}, [source]
    while stack:
        here = stack.pop()
        for step, seconds in boxing.steps(shape, dtype, here):
            before.setdefault(step.result, []).append((here, seconds))
            if step.result not in seen:
                seen.add(step.result)
                stack.append(step.result)
    return before


def _joined(
    source: Placement, steps: Sequence[Branch], targets: Sequence[Placement]
) -> list[Branch]:
    """Join steps that nobody branches from or reads between into one boxing."""
    unique = list(dict.fromkeys(steps))
    children: dict[Placement, list[Placement]] = {}
    for step in unique:
        children.setdefault(step.source, []).append(step.target)
    keep = {source, *targets, *(p for p, after in children.items() if len(after) > 1)}
    joined: list[Branch] = []
    for step in unique:
        if step.source in keep:
            end = step.target
            while end not in keep:
                (end,) = children[end]
            joined.append(Branch(step.source, end))
    return joined
