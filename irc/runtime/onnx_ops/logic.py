"""Comparison, logic and choice, elementwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernel, Kernels
from irc.runtime.onnx_ops.values import Array


def _compare(fn: Callable[..., Any]) -> Kernel:
    return lambda call: np.asarray(fn(call[0], call[1])).astype(np.bool_)


def _is_inf(call: Call) -> Array:
    x = call[0].astype(np.float32) if call[0].dtype.kind == "V" else call[0]
    mask = np.zeros(x.shape, np.bool_)
    if call.attr("detect_positive", 1):
        mask |= x == np.inf
    if call.attr("detect_negative", 1):
        mask |= x == -np.inf
    return mask


def _is_nan(call: Call) -> Array:
    x: Any = call[0]
    return x != x


def _where(call: Call) -> Array:
    truth: Array = call[0]
    yes: Array = call[1]
    no: Array = call[2]
    return np.where(truth, yes, no)


KERNELS: Kernels = {
    "And": _compare(np.logical_and),
    "Equal": _compare(np.equal),
    "Greater": _compare(np.greater),
    "GreaterOrEqual": _compare(np.greater_equal),
    "IsInf": _is_inf,
    "IsNaN": _is_nan,
    "Less": _compare(np.less),
    "LessOrEqual": _compare(np.less_equal),
    "Not": lambda call: np.logical_not(call[0]),
    "Or": _compare(np.logical_or),
    "Where": _where,
    "Xor": _compare(np.logical_xor),
}
