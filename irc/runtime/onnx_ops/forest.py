"""Walking an ensemble of decision trees: all rows through all trees at once, a level at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from irc.runtime.onnx_ops.values import Array

MODES: Sequence[Callable[[Any, Any], Any]] = (
    np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal,
)  # fmt: skip
MEMBER = 6
"""The mode of nodes that ask for a member of a set; the modes before are comparisons."""

AT_ONCE = 1 << 20
"""Places in trees that are kept at the same time; more rows are walked in parts."""

STARTS: Mapping[str, float] = {"MIN": np.inf, "MAX": -np.inf}
COMBINE: Mapping[str, Any] = {"MIN": np.minimum, "MAX": np.maximum}


@dataclass(frozen=True)
class Forest:
    """Inner nodes as columns; a child is a node, or ``-1 - leaf``.

    Attributes:
        roots: of each tree, a child.
        feature: which of a row's features a node asks about.
        mode: how it asks.
        split: what it compares with.
        yes: the child where the answer is yes.
        no: the other child.
        missing: whether a feature that is not a number goes to the child ``yes``.
        sets: for nodes of mode MEMBER, the numbers that are in the set.
        leaves: for each leaf, pairs of target and weight.
    """

    roots: Array
    feature: Array
    mode: Array
    split: Array
    yes: Array
    no: Array
    missing: Array
    sets: Mapping[int, Array]
    leaves: Sequence[Sequence[tuple[int, float]]]

    def places(self, x: Array) -> Array:
        """Return for each row of ``x`` (n, features) the leaf in each tree, (n, trees)."""
        at = np.broadcast_to(self.roots, (len(x), len(self.roots))).copy()
        for _ in range(len(self.feature) + 1):
            rows, trees = np.nonzero(at >= 0)
            if not rows.size:
                return -1 - at
            node = at[rows, trees]
            goes = self._answers(x[rows, self.feature[node]], node)
            at[rows, trees] = np.where(goes, self.yes[node], self.no[node])
        raise ValueError("a tree whose nodes form a cycle")

    def _answers(self, value: Array, node: Array) -> Array:
        goes = np.zeros(len(node), np.bool_)
        modes = self.mode[node]
        for mode in self._modes:
            asked = slice(None) if len(self._modes) == 1 else modes == mode
            if mode < MEMBER:
                goes[asked] = MODES[mode](value[asked], self.split[node[asked]])
        for at, members in self.sets.items():
            here = node == at
            goes[here] = np.isin(value[here], members)
        return goes | (np.isnan(value) & self.missing[node])

    @cached_property
    def _modes(self) -> list[int]:
        return np.unique(self.mode).tolist()

    @cached_property
    def _weights(self) -> tuple[Array, Array, Array]:
        """Targets, weights and which of them count, each (leaves, most pairs of a leaf)."""
        most = max(map(len, self.leaves), default=0)
        shape = (len(self.leaves), most)
        targets, weights = np.zeros(shape, np.int64), np.zeros(shape)
        counts = np.zeros(shape, np.bool_)
        for leaf, pairs in enumerate(self.leaves):
            for index, (target, weight) in enumerate(pairs):
                targets[leaf, index], weights[leaf, index] = target, weight
                counts[leaf, index] = True
        return targets, weights, counts

    def run(self, x: Array, targets: int, how: str) -> tuple[Array, Array]:
        """Return the aggregate of all trees for each row and target, and whether there is one."""
        step = max(1, AT_ONCE // max(1, len(self.roots)))
        parts = [self._part(x[at : at + step], targets, how) for at in range(0, len(x), step)]
        none = (np.zeros((0, targets)), np.zeros((0, targets), np.bool_))
        aggregates, seen = (np.concatenate(each) for each in zip(none, *parts, strict=True))
        aggregates = np.where(seen, aggregates, 0)
        return (aggregates / len(self.roots) if how == "AVERAGE" else aggregates), seen

    def _part(self, x: Array, targets: int, how: str) -> tuple[Array, Array]:
        shape = (len(x), targets)
        aggregates = np.full(shape, STARTS.get(how, 0.0))
        seen = np.zeros(shape, np.bool_)
        leaf = self.places(x)
        for target, weight, counts in zip(*(np.moveaxis(w[leaf], -1, 0) for w in self._weights),
                                          strict=True):  # fmt: skip
            rows, trees = np.nonzero(counts)
            place = rows, target[rows, trees]
            COMBINE.get(how, np.add).at(aggregates, place, weight[rows, trees])
            seen[place] = True
        return aggregates, seen
