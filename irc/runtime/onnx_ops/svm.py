"""Support vector machines: ``ai.onnx.ml`` SVMClassifier and SVMRegressor."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.scores import class_count, labels_of, logistic, of_two, transformed
from irc.runtime.onnx_ops.values import Array

CLOSE_ENOUGH, MAX_STEPS = 0.005, 100
"""When the coupling of pairwise probabilities ends, as in libsvm."""


def kernel(call: Call, x: Array, vectors: Array, kind: str) -> Array:
    """Return the kernel of each row of ``x`` (n, features) and each vector (m, features)."""
    gamma, coef0, degree = call.attr("kernel_params") or (0.0, 0.0, 0.0)
    if kind == "RBF":
        apart = np.square(x).sum(-1)[:, None] + np.square(vectors).sum(-1) - 2 * x @ vectors.T
        return np.exp(-gamma * np.maximum(apart, 0))
    product = x @ vectors.T
    match kind:
        case "POLY":
            return (gamma * product + coef0) ** degree
        case "SIGMOID":
            return np.tanh(gamma * product + coef0)
        case _:
            return product


def numbers(call: Call, name: str) -> Array:
    """Return an attribute as float64; empty where it is absent."""
    return np.asarray(call.attr(name) or [], np.float64)


def _rows(call: Call) -> Array:
    x = np.asarray(call[0], np.float64)
    return x.reshape(-1, x.shape[-1])


def _regressor(call: Call) -> Array:
    x, weights, rho = _rows(call), numbers(call, "coefficients"), numbers(call, "rho")
    if count := call.attr("n_supports", 0):
        vectors = numbers(call, "support_vectors").reshape(count, -1)
        scores = kernel(call, x, vectors, call.attr("kernel_type", "LINEAR")) @ weights + rho[0]
    else:
        scores = x @ weights + rho[0]
    if call.attr("one_class", 0):
        scores = np.where(scores > 0, 1.0, -1.0)
    scores = transformed(scores[:, None], call.attr("post_transform", "NONE"))
    return scores.astype(np.float32)


def pair_scores(call: Call, x: Array, per_class: list[int]) -> Array:
    """Return a score for each pair of classes, (n, pairs): above zero for the first of the two.

    ``coefficients`` are [classes - 1, vectors]: of each vector, its weight against each other
    class (libsvm's ``sv_coef``).
    """
    total, starts = sum(per_class), np.cumsum([0, *per_class])
    vectors = numbers(call, "support_vectors").reshape(total, -1)
    values = kernel(call, x, vectors, call.attr("kernel_type", "LINEAR"))
    weights = numbers(call, "coefficients").reshape(-1, total)
    of = [slice(a, b) for a, b in pairwise(starts)]
    columns = [
        values[:, of[i]] @ weights[j - 1, of[i]] + values[:, of[j]] @ weights[i, of[j]]
        for i, j in combinations(range(len(per_class)), 2)
    ]
    return np.stack(columns, -1) + numbers(call, "rho")[: len(columns)]


def coupled(pairs: Array, count: int) -> Array:
    """Return class probabilities from pairwise ones: Wu, Lin and Weng (JMLR 2004), method 2.

    Args:
        pairs: (n, classes, classes), the probability of the first against the second.
        count: of classes.
    """
    chances = np.full((len(pairs), count), 1 / count)
    for p, r in zip(chances, pairs, strict=True):
        Q = -r.T * r
        np.fill_diagonal(Q, np.square(r.T).sum(1) - np.diag(np.square(r)))
        for _ in range(MAX_STEPS):
            Qp = Q @ p
            pQp = p @ Qp
            if np.abs(Qp - pQp).max() < CLOSE_ENOUGH / count:
                break
            for i in range(count):
                step = (pQp - Qp[i]) / Q[i, i]
                p[i] += step
                pQp = (pQp + step * (step * Q[i, i] + 2 * Qp[i])) / (1 + step) ** 2
                Qp = (Qp + step * Q[i]) / (1 + step)
                p /= 1 + step
    return chances


def probabilities(call: Call, scores: Array, count: int) -> Array:
    """Return class probabilities from the scores of pairs (Platt's sigmoid, then coupling)."""
    each = 1 - logistic(scores * numbers(call, "prob_a") + numbers(call, "prob_b"))
    each = np.clip(each, 1e-7, 1 - 1e-7)
    pairs = np.zeros((len(scores), count, count))
    for index, (i, j) in enumerate(combinations(range(count), 2)):
        pairs[:, i, j], pairs[:, j, i] = each[:, index], 1 - each[:, index]
    return coupled(pairs, count)


def votes(scores: Array, count: int) -> Array:
    """Return for each row the class that wins most pairs, the first of several."""
    won = np.zeros((len(scores), count), np.int64)
    for index, (i, j) in enumerate(combinations(range(count), 2)):
        first = scores[:, index] > 0
        won[:, i] += first
        won[:, j] += ~first
    return won.argmax(-1)


def _classifier(call: Call) -> tuple[Array, Array]:
    x, count, how = _rows(call), class_count(call), call.attr("post_transform", "NONE")
    per_class = [int(n) for n in call.attr("vectors_per_class") or ()]
    if not sum(per_class):
        weights = numbers(call, "coefficients").reshape(count, -1)
        scores = x @ weights.T + numbers(call, "rho")[0]
        best = scores.argmax(-1)
        if count == 2:
            half = 0.5 if (weights >= 0).all() else 0.0
            top = scores.max(-1)
            best = np.where(top >= half if half else top > 0, 1, best)
        return labels_of(call, best), transformed(scores, how).astype(np.float32)
    scores = pair_scores(call, x, per_class)
    best = votes(scores, count)
    if call.attr("prob_a"):
        scores = transformed(probabilities(call, scores, count), how)
    elif count == 2:
        scores = of_two(scores[:, 0], how, margin=how == "NONE")
    else:
        scores = transformed(scores, how)
    return labels_of(call, best), scores.astype(np.float32)


KERNELS: Kernels = {
    "ai.onnx.ml::SVMClassifier": _classifier,
    "ai.onnx.ml::SVMRegressor": _regressor,
}
