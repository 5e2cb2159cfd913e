"""Ensembles of decision trees: ``ai.onnx.ml`` TreeEnsemble and the two forms before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.forest import MEMBER, Forest
from irc.runtime.onnx_ops.scores import class_count, labels_of, of_two, transformed
from irc.runtime.onnx_ops.values import Array

LEAF = 7
MODE_NAMES = {
    "BRANCH_LEQ": 0, "BRANCH_LT": 1, "BRANCH_GTE": 2, "BRANCH_GT": 3, "BRANCH_EQ": 4,
    "BRANCH_NEQ": 5, "LEAF": LEAF,
}  # fmt: skip
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


def forest_of(
    roots: Sequence[int],
    modes: Sequence[int],
    children: Sequence[Sequence[int]],
    leaves: Sequence[Sequence[tuple[int, float]]],
    call: Call,
    splits: Any,
    sets: dict[int, Any],
) -> Forest:
    """Return a forest whose other columns are attributes of the call."""
    missing = call.attr("nodes_missing_value_tracks_true")
    return Forest(
        np.asarray(roots, np.int64),
        np.asarray(call.attr("nodes_featureids"), np.int64),
        np.asarray(modes, np.int64),
        np.asarray(splits, np.float64).reshape(-1),
        np.asarray(children[0], np.int64),
        np.asarray(children[1], np.int64),
        np.asarray(missing or [0] * len(modes), np.bool_),
        sets,
        leaves,
    )


def _new_forest(call: Call) -> Forest:
    modes = call.attr("nodes_modes").reshape(-1).tolist()
    values = call.attr("membership_values")
    sets: dict[int, Any] = {}
    if values is not None:
        parts = np.split(values, np.flatnonzero(np.isnan(values)))
        members = [node for node, mode in enumerate(modes) if mode == MEMBER]
        sets = {node: part[~np.isnan(part)] for node, part in zip(members, parts, strict=False)}
    weights = call.attr("leaf_weights").reshape(-1).tolist()
    leaves = [[pair] for pair in zip(call.attr("leaf_targetids"), weights, strict=True)]
    children = [_children(call, side) for side in ("true", "false")]
    splits = call.attr("nodes_splits")
    return forest_of(call.attr("tree_roots"), modes, children, leaves, call, splits, sets)


def _ensemble(call: Call) -> Array:
    forest: Forest = call.kept("forest", lambda: _new_forest(call))
    how: int = call.attr("aggregate_function", 1)
    aggregates, _ = forest.run(call[0], call.attr("n_targets"), AGGREGATES[how])
    after: int = call.attr("post_transform", 0)
    return transformed(aggregates, TRANSFORMS[after]).astype(call[0].dtype)


def _children(call: Call, side: str) -> list[int]:
    ids, leaf = call.attr(f"nodes_{side}nodeids"), call.attr(f"nodes_{side}leafs")
    return [-1 - i if is_leaf else i for i, is_leaf in zip(ids, leaf, strict=True)]


def _old_forest(call: Call, kind: str) -> Forest:
    trees, nodes = call.attr("nodes_treeids"), call.attr("nodes_nodeids")
    place = {key: i for i, key in enumerate(zip(trees, nodes, strict=True))}
    modes = [MODE_NAMES[name] for name in call.attr("nodes_modes")]
    leaves: list[list[tuple[int, float]]] = [[] for _ in place]
    for tree, node, target, weight in zip(
        *(call.attr(f"{kind}_{name}") for name in ("treeids", "nodeids", "ids")),
        _numbers(call, f"{kind}_weights").tolist(),
        strict=True,
    ):
        leaves[place[tree, node]].append((target, weight))

    def to(tree: int, node: int) -> int:
        at = place[tree, node]
        return -1 - at if modes[at] == LEAF else at

    children = [
        [
            -1 if mode == LEAF else to(tree, child)
            for tree, child, mode in zip(
                trees, call.attr(f"nodes_{side}nodeids"), modes, strict=True
            )
        ]
        for side in ("true", "false")
    ]
    first: dict[int, int] = {}
    for tree, node in place:
        first[tree] = min(node, first.get(tree, node))
    roots = [to(tree, node) for tree, node in first.items()]
    splits = _numbers(call, "nodes_values")
    return forest_of(roots, modes, children, leaves, call, splits, {})


def _numbers(call: Call, name: str) -> Array:
    """Return an attribute that a second one, of doubles, may stand for."""
    exact = call.attr(f"{name}_as_tensor")
    numbers = exact if exact is not None else call.attr(name)
    return np.asarray(numbers if numbers is not None else [], np.float64).reshape(-1)


def _regressor(call: Call) -> Array:
    targets = call.attr("n_targets", 1)
    how = call.attr("aggregate_function", "SUM")
    forest: Forest = call.kept("forest", lambda: _old_forest(call, "target"))
    aggregates, _ = forest.run(call[0], targets, how)
    base = _numbers(call, "base_values")
    aggregates = aggregates + base if base.size else aggregates
    return transformed(aggregates, call.attr("post_transform", "NONE")).astype(np.float32)


def _classifier(call: Call) -> tuple[Array, Array]:
    count, how = class_count(call), call.attr("post_transform", "NONE")
    forest: Forest = call.kept("forest", lambda: _old_forest(call, "class"))
    scores, seen = forest.run(call[0], count, "SUM")
    base = _numbers(call, "base_values")
    used = set(call.attr("class_ids"))
    if count == 2 and len(used) == 1:
        # One score for two classes: of the second; half, or zero, decides.
        score = scores[:, next(iter(used))] + (base[-1] if base.size else 0)
        margin = min(_numbers(call, "class_weights"), default=0.0) < 0
        best = (score > (0 if margin else 0.5)).astype(np.int64)
        return labels_of(call, best), of_two(score, how, margin=margin).astype(np.float32)
    if base.size:
        scores[:, : len(base)] += base
        seen[:, : len(base)] = True
    best = np.where(seen, scores, -np.inf).argmax(-1)
    return labels_of(call, best), transformed(scores, how).astype(np.float32)


KERNELS: Kernels = {
    "ai.onnx.ml::TreeEnsemble": _ensemble,
    "ai.onnx.ml::TreeEnsembleClassifier": _classifier,
    "ai.onnx.ml::TreeEnsembleRegressor": _regressor,
}
