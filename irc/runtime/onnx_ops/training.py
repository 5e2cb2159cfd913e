"""Optimiser steps of ``ai.onnx.preview.training``: rate, step count, then tensors in groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernel, Kernels
from irc.runtime.onnx_ops.values import Array


def _grouped(step: Callable[..., tuple[Array, ...]], states: int) -> Kernel:
    """Apply a step to each (parameter, gradient, states...); results are grouped by kind."""

    def kernel(call: Call) -> tuple[Array, ...]:
        rate, count = call[0].reshape(()), int(call.number(1))
        _, _, *tensors = call.inputs
        each = len(tensors) // (2 + states)
        columns = [tensors[i * each : (i + 1) * each] for i in range(2 + states)]
        rows = [step(call, rate, count, *row) for row in zip(*columns, strict=True)]
        return tuple(
            value.astype(tensors[0].dtype) for column in zip(*rows, strict=True) for value in column
        )

    return kernel


def _adagrad(call: Call, rate: Any, count: int, x: Array, g: Array, h: Array) -> tuple[Array, ...]:
    rate = rate / (1 + count * call.attr("decay_factor", 0.0))
    g = g + np.float32(call.attr("norm_coefficient", 0.0)) * x
    h = h + g * g
    return x - rate * g / (np.sqrt(h) + np.float32(call.attr("epsilon", 1e-6))), h


def _adam(
    call: Call, rate: Any, count: int, x: Array, g: Array, v: Array, h: Array
) -> tuple[Array, ...]:
    a, b = call.attr("alpha", 0.9), call.attr("beta", 0.999)
    g = g + np.float32(call.attr("norm_coefficient", 0.0)) * x
    v, h = a * v + (1 - a) * g, b * h + (1 - b) * g * g
    if count > 0:
        rate = rate * np.sqrt(1 - b**count) / (1 - a**count)
    moved = x - rate * v / (np.sqrt(h) + np.float32(call.attr("epsilon", 1e-6)))
    return (1 - np.float32(call.attr("norm_coefficient_post", 0.0))) * moved, v, h


def _momentum(call: Call, rate: Any, count: int, x: Array, g: Array, v: Array) -> tuple[Array, ...]:
    a, b = call.attr("alpha"), call.attr("beta")
    g = g + np.float32(call.attr("norm_coefficient", 0.0)) * x
    # The first step has no history to damp against.
    v = a * v + (b if count > 0 else 1.0) * g
    change = g + a * v if call.attr("mode") == "nesterov" else v
    return x - rate * change, v


DOMAIN = "ai.onnx.preview.training"

KERNELS: Kernels = {
    f"{DOMAIN}::Adagrad": _grouped(_adagrad, 1),
    f"{DOMAIN}::Adam": _grouped(_adam, 2),
    f"{DOMAIN}::Momentum": _grouped(_momentum, 1),
}
