"""Losses of classification."""

from __future__ import annotations

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.reductions import log_softmax
from irc.runtime.onnx_ops.values import Array


def likelihood(scores: Array, target: Array, weight: Array | None, call: Call) -> Array:
    """Return minus the score of each target, weighted and reduced as the attributes say."""
    ignored = call.attr("ignore_index")
    valid = np.ones(target.shape, np.bool_) if ignored is None else target != ignored
    chosen = np.where(valid, target, 0).astype(np.int64)
    weights = np.ones(target.shape, scores.dtype) if weight is None else weight[chosen]
    weights = np.where(valid, weights, np.zeros((), scores.dtype))
    losses = -np.take_along_axis(scores, chosen[:, None], 1)[:, 0] * weights
    match call.attr("reduction", "mean"):
        case "none":
            return losses.astype(scores.dtype)
        case "sum":
            return np.asarray(losses.sum()).astype(scores.dtype)
        case _:
            return np.asarray(losses.sum() / weights.sum()).astype(scores.dtype)


def _cross_entropy(call: Call) -> tuple[Array, Array]:
    scores = log_softmax(call[0], 1)
    return likelihood(scores, call[1], call[2], call), scores


KERNELS: Kernels = {
    "NegativeLogLikelihoodLoss": lambda call: likelihood(call[0], call[1], call[2], call),
    "SoftmaxCrossEntropyLoss": _cross_entropy,
}
