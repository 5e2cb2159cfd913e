"""Arithmetic, elementwise: ONNX's operators on numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernel, Kernels
from irc.runtime.onnx_ops.values import HALF, Array, as_array, as_tensor, is_float


def in_single(fn: Callable[..., Any]) -> Callable[..., Array]:
    """Compute half types in float32 and round once."""

    def widened(*operands: Array, **options: Any) -> Array:
        dtype = operands[0].dtype
        if dtype not in HALF:
            return np.asarray(fn(*operands, **options))
        wide = (x.astype(np.float32) if x.dtype in HALF else x for x in operands)
        return np.asarray(fn(*wide, **options)).astype(dtype)

    return widened


def each(fn: Callable[[Array], Any]) -> Kernel:
    """A function of one operand, which keeps its dtype."""
    widened = in_single(fn)
    return lambda call: widened(call[0]).astype(call[0].dtype, copy=False)


def both(fn: Callable[..., Any]) -> Kernel:
    """A function of two operands of one dtype, broadcast; the result has it too."""
    widened = in_single(fn)
    return lambda call: widened(call[0], call[1]).astype(call[0].dtype, copy=False)


def variadic(fn: Callable[..., Any]) -> Kernel:
    """A function of two operands, joined over any number of them."""
    widened = in_single(fn)
    return lambda call: reduce(widened, call.inputs).astype(call[0].dtype, copy=False)


def divide(a: Array, b: Array) -> Array:
    """Divide; integers towards zero, and by zero giving zero rather than a trap."""
    if is_float(a.dtype) or a.dtype.kind == "c":
        return a / b
    quotient = np.floor_divide(a, b)
    rest = a - quotient * b
    return quotient + ((rest != 0) & ((a < 0) != (b < 0)) & (b != 0)).astype(a.dtype)


def rounding(fn: Callable[..., Any]) -> Kernel:
    """A rounding; integers are round already."""
    widened = in_single(fn)
    return lambda call: widened(call[0]) if is_float(call[0].dtype) else call[0].copy()


def _erf(x: Array) -> Array:
    import torch

    if not is_float(x.dtype):
        x = x.astype(np.float64)
    return as_array(torch.erf(as_tensor(x)))


def _mod(call: Call) -> Array:
    # fmod takes the sign of the dividend (C), remainder that of the divisor (Python).
    return in_single(np.fmod if call.attr("fmod", 0) else np.mod)(call[0], call[1])


def _pow(call: Call) -> Array:
    base, exponent = call[0], call[1]
    if not is_float(base.dtype) and not is_float(exponent.dtype):
        power: Array = np.power(base.astype(np.float64), exponent.astype(np.float64))
        exact = np.power(base.astype(np.int64), np.maximum(exponent, 0).astype(np.int64))
        power = np.where(exponent >= 0, exact, power.astype(np.int64))
    else:
        wide = np.float64 if np.float64 in (base.dtype, exponent.dtype) else np.float32
        power = np.power(base.astype(wide), exponent.astype(wide))
    return power.astype(base.dtype)


def _clip(call: Call) -> Array:
    x = call[0]
    if call.version < 11:
        low, high = call.attr("min"), call.attr("max")
        low, high = (None if v is None else np.asarray(v, x.dtype) for v in (low, high))
    else:
        low, high = call[1], call[2]
    if low is not None:
        x = np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def _mean(call: Call) -> Array:
    total = reduce(np.add, [x.astype(np.float64) for x in call.inputs])
    return (total / len(call.inputs)).astype(call[0].dtype)


def _einsum(call: Call) -> Array:
    spec = call.attr("equation").replace(" ", "")
    product = in_single(lambda *operands: np.einsum(spec, *operands))(*call.inputs)
    return product.astype(call[0].dtype, copy=False)


def matmul(a: Array, b: Array) -> Array:
    """Multiply matrices, half types in float32."""
    if a.dtype in HALF:
        return np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(a.dtype)
    return np.matmul(a, b)


def _gemm(call: Call) -> Array:
    a, b = (call[i].T if call.attr(n, 0) else call[i] for i, n in ((0, "transA"), (1, "transB")))
    wide = np.float32 if a.dtype in HALF else a.dtype
    product = np.matmul(a.astype(wide), b.astype(wide)) * np.asarray(call.attr("alpha", 1.0), wide)
    if call.has(2):
        product = product + call[2].astype(wide) * np.asarray(call.attr("beta", 1.0), wide)
    return product.astype(a.dtype)


def _det(call: Call) -> Array:
    return np.asarray(np.linalg.det(call[0].astype(np.float64)), call[0].dtype)


KERNELS: Kernels = {
    "Abs": each(np.abs),
    "Acos": each(np.arccos),
    "Acosh": each(np.arccosh),
    "Add": both(np.add),
    "Asin": each(np.arcsin),
    "Asinh": each(np.arcsinh),
    "Atan": each(np.arctan),
    "Atanh": each(np.arctanh),
    "Ceil": rounding(np.ceil),
    "Clip": _clip,
    "Cos": each(np.cos),
    "Cosh": each(np.cosh),
    "Det": _det,
    "Div": both(divide),
    "Einsum": _einsum,
    "Erf": each(_erf),
    "Exp": each(np.exp),
    "Floor": rounding(np.floor),
    "Gemm": _gemm,
    "Log": each(np.log),
    "MatMul": lambda call: matmul(call[0], call[1]),
    "Max": variadic(np.maximum),
    "Mean": _mean,
    "Min": variadic(np.minimum),
    "Mod": _mod,
    "Mul": both(np.multiply),
    "Neg": each(np.negative),
    "Pow": _pow,
    "Reciprocal": each(lambda x: 1 / x),
    "Round": rounding(np.rint),
    "Sign": each(np.sign),
    "Sin": each(np.sin),
    "Sinh": each(np.sinh),
    "Sqrt": each(np.sqrt),
    "Sub": both(np.subtract),
    "Sum": variadic(np.add),
    "Tan": each(np.tan),
    "Tanh": each(np.tanh),
}
