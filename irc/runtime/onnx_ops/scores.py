"""What classifiers of ``ai.onnx.ml`` share: transforms of scores, two columns of one, labels.

The specification says little about two classes with one score; where it is silent, these are the
forms of ONNX Runtime, in whose results the exporters of scikit-learn and others are tested.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from irc.runtime.onnx_ops.call import Call
from irc.runtime.onnx_ops.values import Array, strings


def logistic(x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))`` without overflow.

    >>> logistic(np.array([-1e4, 0.0, 1e4])).tolist()
    [0.0, 0.5, 1.0]
    """
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


def transformed(scores: Array, how: str) -> Array:
    """Apply ``post_transform`` to scores, classes last."""
    match how:
        case "SOFTMAX" | "SOFTMAX_ZERO":
            powers = np.exp(scores - scores.max(-1, keepdims=True))
            if how == "SOFTMAX_ZERO":
                powers = np.where(np.abs(scores) <= 1e-7, 0, powers)
            return powers / powers.sum(-1, keepdims=True)
        case "LOGISTIC":
            return logistic(scores)
        case "PROBIT":
            import torch

            special: Any = torch.special  # its functions have no types
            return np.asarray(special.ndtri(torch.as_tensor(scores)))
        case _:
            return scores


def of_two(score: Array, how: str, *, margin: bool) -> Array:
    """Return two columns for the score of the second class.

    Args:
        score: one for each row.
        how: ``post_transform``.
        margin: whether zero, not one half, lies between the classes.
    """
    if how == "LOGISTIC":
        return np.stack([logistic(-score), logistic(score)], -1)
    return np.stack([-score if margin else 1 - score, score], -1)


def labels_of(call: Call, classes: Array) -> Array:
    """Return the labels of classes by their numbers."""
    words = call.attr("classlabels_strings")
    if words:
        return strings([words[i] for i in classes])
    numbers = call.attr("classlabels_ints") or call.attr("classlabels_int64s")
    return np.asarray(numbers, np.int64)[classes]


def class_count(call: Call) -> int:
    """Return how many classes there are."""
    names = ("classlabels_strings", "classlabels_ints", "classlabels_int64s")
    return max(len(call.attr(name) or ()) for name in names)
