"""Ensembles of decision trees: ``ai.onnx.ml`` TreeEnsemble and the two forms before it."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.values import Array, strings

MODES: Sequence[Callable[[Any, Any], Any]] = (
    np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal,
)  # fmt: skip
MEMBER, LEAF = 6, 7
MODE_NAMES = {
    "BRANCH_LEQ": 0, "BRANCH_LT": 1, "BRANCH_GTE": 2, "BRANCH_GT": 3, "BRANCH_EQ": 4,
    "BRANCH_NEQ": 5, "LEAF": LEAF,
}  # fmt: skip
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclass
class Forest:
    """Inner nodes as columns; a child is a node, or ``-1 - leaf``.

    Attributes:
        sets: for nodes of mode MEMBER, the numbers that go to the true child.
        leaves: for each leaf, pairs of target and weight.
    """

    roots: Sequence[int]
    feature: Sequence[int]
    mode: Sequence[int]
    split: Sequence[float]
    yes: Sequence[int]
    no: Sequence[int]
    missing: Sequence[int]
    sets: dict[int, Any]
    leaves: Sequence[Sequence[tuple[int, float]]]

    def leaf(self, row: Array, node: int) -> int:
        """Return the leaf that a row of features comes to from a node."""
        while node >= 0:
            value = row[self.feature[node]]
            if self.mode[node] == MEMBER:
                goes = bool(np.isin(value, self.sets[node]))
            else:
                goes = bool(MODES[self.mode[node]](value, self.split[node]))
            goes = goes or bool(np.isnan(value) and self.missing and self.missing[node])
            node = self.yes[node] if goes else self.no[node]
        return -1 - node

    def run(self, x: Array, targets: int, how: str) -> Array:
        """Return the aggregate of all trees for each row and target."""
        found = np.zeros((len(x), targets), np.float64)
        seen = np.zeros((len(x), targets), np.bool_)
        combine = {"MIN": np.minimum, "MAX": np.maximum}.get(how, np.add)
        for r, row in enumerate(x):
            for root in self.roots:
                for target, weight in self.leaves[self.leaf(row, root)]:
                    old = found[r, target]
                    found[r, target] = combine(old, weight) if seen[r, target] else weight
                    seen[r, target] = True
        return found / len(self.roots) if how == "AVERAGE" else found


def transformed(scores: Array, how: str) -> Array:
    """Apply ``post_transform``."""
    match how:
        case "SOFTMAX":
            powers = np.exp(scores - scores.max(-1, keepdims=True))
            return powers / powers.sum(-1, keepdims=True)
        case "SOFTMAX_ZERO":
            powers = np.where(scores == 0, 0, np.exp(scores - scores.max(-1, keepdims=True)))
            return powers / powers.sum(-1, keepdims=True)
        case "LOGISTIC":
            return 1 / (1 + np.exp(-scores))
        case "PROBIT":
            import torch

            return np.asarray(torch.special.ndtri(torch.as_tensor(scores)))
        case _:
            return scores


def _ensemble(call: Call) -> Array:
    modes = call.attr("nodes_modes").reshape(-1).tolist()
    values = call.attr("membership_values")
    sets: dict[int, Any] = {}
    if values is not None:
        parts = np.split(values, np.flatnonzero(np.isnan(values)))
        members = [node for node, mode in enumerate(modes) if mode == MEMBER]
        sets = {node: part[~np.isnan(part)] for node, part in zip(members, parts, strict=False)}
    weights = call.attr("leaf_weights").reshape(-1).tolist()
    forest = Forest(
        call.attr("tree_roots"), call.attr("nodes_featureids"), modes,
        call.attr("nodes_splits").reshape(-1).tolist(),
        _children(call, "true"), _children(call, "false"),
        call.attr("nodes_missing_value_tracks_true") or [], sets,
        [[pair] for pair in zip(call.attr("leaf_targetids"), weights, strict=True)],
    )  # fmt: skip
    how = AGGREGATES[call.attr("aggregate_function", 1)]
    found = forest.run(call[0], call.attr("n_targets"), how)
    return transformed(found, TRANSFORMS[call.attr("post_transform", 0)]).astype(call[0].dtype)


def _children(call: Call, side: str) -> list[int]:
    ids, leaf = call.attr(f"nodes_{side}nodeids"), call.attr(f"nodes_{side}leafs")
    return [-1 - i if is_leaf else i for i, is_leaf in zip(ids, leaf, strict=True)]


def _old_forest(call: Call, kind: str) -> Forest:
    trees, nodes = call.attr("nodes_treeids"), call.attr("nodes_nodeids")
    place = {key: i for i, key in enumerate(zip(trees, nodes, strict=True))}
    modes = [MODE_NAMES[name] for name in call.attr("nodes_modes")]
    leaves: list[list[tuple[int, float]]] = [[] for _ in place]
    for tree, node, target, weight in zip(
        *(call.attr(f"{kind}_{name}") for name in ("treeids", "nodeids", "ids", "weights")),
        strict=True,
    ):
        leaves[place[tree, node]].append((target, weight))

    def to(tree: int, node: int) -> int:
        at = place[tree, node]
        return -1 - at if modes[at] == LEAF else at

    yes, no = (
        [
            -1 if mode == LEAF else to(tree, child)
            for tree, child, mode in zip(
                trees, call.attr(f"nodes_{side}nodeids"), modes, strict=True
            )
        ]
        for side in ("true", "false")
    )
    roots = [to(tree, min(n for t, n in place if t == tree)) for tree in dict.fromkeys(trees)]
    return Forest(
        roots, call.attr("nodes_featureids"), modes, call.attr("nodes_values"), yes, no,
        call.attr("nodes_missing_value_tracks_true") or [], {}, leaves,
    )  # fmt: skip


def _regressor(call: Call) -> Array:
    targets = call.attr("n_targets", 1)
    found = _old_forest(call, "target").run(
        call[0], targets, call.attr("aggregate_function", "SUM")
    )
    if (base := call.attr("base_values")) is not None:
        found = found + np.asarray(base)
    return transformed(found, call.attr("post_transform", "NONE")).astype(np.float32)


def _classifier(call: Call) -> tuple[Array, Array]:
    names = call.attr("classlabels_strings") or call.attr("classlabels_int64s")
    used = set(call.attr("class_ids"))
    scores = _old_forest(call, "class").run(call[0], len(names), "SUM")
    if (base := call.attr("base_values")) is not None:
        scores[:, : len(base)] += np.asarray(base)
    if len(names) == 2 and len(used) == 1:
        # One score for two classes: of the second; half, or zero, decides.
        score = scores[:, [next(iter(used))]]
        logistic = call.attr("post_transform", "NONE") in ("LOGISTIC", "SOFTMAX")
        best = (score[:, 0] > (0 if logistic else 0.5)).astype(np.int64)
        scores = np.concatenate([-score if logistic else 1 - score, score], -1)
    else:
        best = scores.argmax(-1)
    label = (
        strings([names[i] for i in best]) if isinstance(names[0], str) else np.array(names)[best]
    )
    return label, transformed(scores, call.attr("post_transform", "NONE")).astype(np.float32)


KERNELS: Kernels = {
    "ai.onnx.ml::TreeEnsemble": _ensemble,
    "ai.onnx.ml::TreeEnsembleClassifier": _classifier,
    "ai.onnx.ml::TreeEnsembleRegressor": _regressor,
}
