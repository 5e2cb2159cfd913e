"""Activation functions, elementwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernel, Kernels
from irc.runtime.onnx_ops.math import in_single
from irc.runtime.onnx_ops.values import Array, as_array, as_tensor


def unit(fn: Callable[..., Any], **defaults: float) -> Kernel:
    """A function of one operand and of float attributes with these defaults."""
    widened = in_single(fn)

    def kernel(call: Call) -> Array:
        options = {name: call.attr(name, value) for name, value in defaults.items()}
        return widened(call[0], **options).astype(call[0].dtype, copy=False)

    return kernel


def sigmoid(x: Array) -> Array:
    """``1 / (1 + exp(-x))``, without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype)


def softplus(x: Array) -> Array:
    """``log(1 + exp(x))``, without overflow."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def gelu(x: Array, approximate: str = "none") -> Array:
    """Gelu by erf, or with ``approximate="tanh"``."""
    import torch

    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    wide = x.astype(np.float64)
    return (0.5 * wide * (1 + as_array(torch.erf(as_tensor(wide / np.sqrt(2)))))).astype(x.dtype)


def _selu(x: Array, alpha: float, gamma: float) -> Array:
    return gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _celu(x: Array, alpha: float) -> Array:
    return np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(np.minimum(x, 0) / alpha))


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    return np.clip(alpha * x + beta, 0, 1)


def _hard_swish(x: Array) -> Array:
    return x * np.clip(x / 6 + 0.5, 0, 1)


def _leaky_relu(x: Array, alpha: float) -> Array:
    return np.where(x < 0, alpha * x, x)


def _mish(x: Array) -> Array:
    return x * np.tanh(softplus(x))


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


def _softsign(x: Array) -> Array:
    return x / (1 + np.abs(x))


def _swish(x: Array, alpha: float) -> Array:
    return x * sigmoid(alpha * x)


def _thresholded_relu(x: Array, alpha: float) -> Array:
    return np.where(x > alpha, x, 0 * x)


def _shrink(x: Array, lambd: float, bias: float) -> Array:
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0 * x))


def _prelu(call: Call) -> Array:
    x: Array = call[0]
    return np.where(x < 0, x * call[1], x)


def _gelu(call: Call) -> Array:
    return in_single(gelu)(call[0], approximate=call.attr("approximate", "none"))


KERNELS: Kernels = {
    "Celu": unit(_celu, alpha=1.0),
    "Elu": unit(_elu, alpha=1.0),
    "Gelu": _gelu,
    "HardSigmoid": unit(_hard_sigmoid, alpha=0.2, beta=0.5),
    "HardSwish": unit(_hard_swish),
    "LeakyRelu": unit(_leaky_relu, alpha=0.01),
    "Mish": unit(_mish),
    "PRelu": _prelu,
    "Relu": unit(_relu),
    "Selu": unit(_selu, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875),
    "Shrink": unit(_shrink, lambd=0.5, bias=0.0),
    "Sigmoid": unit(sigmoid),
    "Softplus": unit(softplus),
    "Softsign": unit(_softsign),
    "Swish": unit(_swish, alpha=1.0),
    "ThresholdedRelu": unit(_thresholded_relu, alpha=1.0),
}
