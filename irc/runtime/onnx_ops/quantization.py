"""Quantised operators: exact integer arithmetic around a scale and a zero point."""

from __future__ import annotations

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.casts import FLOAT8, cast
from irc.runtime.onnx_ops.convolution import convolve
from irc.runtime.onnx_ops.values import ELEMENTS, HALF, SMALL_INTEGERS, Array, is_float


def limits(dtype: np.dtype) -> tuple[int, int]:
    """Return the smallest and largest integer of a type.

    >>> limits(ELEMENTS[22]), limits(np.dtype(np.uint8))
    ((-8, 7), (0, 255))
    """
    if dtype in SMALL_INTEGERS:
        bits = 4 if dtype in SMALL_INTEGERS[:2] else 2
        signed = dtype in (SMALL_INTEGERS[1], SMALL_INTEGERS[3])
        return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def spread(value: Array, x: Array, axis: int, block: int) -> Array:
    """Shape a scale or zero point to broadcast: one, one for a slice of an axis, or blocks."""
    if value.size == 1 and value.ndim <= 1:
        return value.reshape(())
    if value.ndim == 1 and not block:
        return value.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    wide = np.repeat(value, block, axis)
    return np.take(wide, range(x.shape[axis]), axis)


def quantized(x: Array, scale: Array, zero: Array | None, dtype: np.dtype, *,
              saturate: bool = True) -> Array:  # fmt: skip
    """``saturate(round(x / scale) + zero)``, rounding to even."""
    scaled = x / scale
    if is_float(dtype):
        if zero is not None and dtype not in FLOAT8:
            scaled = scaled + zero.astype(scaled.dtype)
        return cast(np.asarray(scaled), dtype, saturate=saturate)
    whole = np.rint(scaled.astype(np.float64))
    if zero is not None:
        whole = whole + zero.astype(np.float64)
    low, high = limits(dtype)
    return (
        np.clip(whole, low, high).astype(np.int32 if low >= -(1 << 31) else np.int64).astype(dtype)
    )


def dequantized(x: Array, scale: Array, zero: Array | None) -> Array:
    """``(x - zero) * scale`` in float32."""
    wide = x.astype(np.float64 if x.dtype.itemsize == 4 else np.float32)
    if zero is not None and not is_float(x.dtype):
        wide = wide - zero.astype(wide.dtype)
    return wide.astype(np.float32) * scale.astype(np.float32)


def _quantize(call: Call) -> Array:
    x, scale, zero = call[0], call[1], call[2]
    axis, block = call.attr("axis", 1), call.attr("block_size", 0)
    dtype = zero.dtype if zero is not None else ELEMENTS[call.attr("output_dtype", 0) or 2]
    precision = call.attr("precision", 0)
    if precision:
        x, scale = x.astype(ELEMENTS[precision]), scale.astype(ELEMENTS[precision])
    elif (x.dtype in HALF and scale.dtype not in HALF) or not is_float(x.dtype):
        x = x.astype(scale.dtype)
    scale = spread(scale, x, axis, block)
    zero = None if zero is None else spread(zero, x, axis, block)
    return quantized(x, scale, zero, dtype, saturate=bool(call.attr("saturate", 1)))


def _dequantize(call: Call) -> Array:
    x, scale, zero = call[0], call[1], call[2]
    axis, block = call.attr("axis", 1), call.attr("block_size", 0)
    zero = None if zero is None else spread(zero, x, axis, block)
    values = dequantized(x, spread(scale, x, axis, block), zero)
    element = call.attr("output_dtype", 0)
    return np.asarray(values).astype(ELEMENTS[element] if element else scale.dtype)


def _dynamic_quantize(call: Call) -> tuple[Array, Array, Array]:
    x = call[0]
    low = np.minimum(np.min(x, initial=0), np.float32(0))
    high = np.maximum(np.max(x, initial=0), np.float32(0))
    scale = np.asarray((high - low) / np.float32(255), np.float32)
    if scale == 0:
        scale = np.ones((), np.float32)
    zero = np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8)
    return quantized(x, scale, zero, np.dtype(np.uint8)), scale, zero


def _rows(value: Array) -> Array:
    """Shape a parameter of rows of a matrix to broadcast from the left of its columns."""
    return value if value.size == 1 else value.reshape(-1, 1)


def centred(x: Array, zero: Array | None) -> Array:
    """Return integers less their zero point, in int32."""
    wide = x.astype(np.int32)
    return wide if zero is None else wide - zero.astype(np.int32)


def _matmul_integer(call: Call) -> Array:
    a, b = centred(call[0], _rows(call[2]) if call.has(2) else None), centred(call[1], call[3])
    return np.matmul(a, b)


def _qlinear_matmul(call: Call) -> Array:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = call.inputs
    whole = np.matmul(centred(a, _rows(a_zero)), centred(b, b_zero))
    scale = _rows(a_scale).astype(np.float32) * b_scale.astype(np.float32)
    product = whole.astype(np.float32) * scale / y_scale.astype(np.float32)
    return quantized(product, np.ones((), np.float32), y_zero, y_zero.dtype)


def _conv_integer(call: Call) -> Array:
    x, w, x_zero, w_zero = call[0], call[1], call[2], call[3]
    kernels = centred(w, None if w_zero is None else _channels(w_zero, w.ndim))
    return convolve(call, centred(x, x_zero).astype(np.float64), kernels.astype(np.float64),
                    None).astype(np.int32)  # fmt: skip


def _channels(value: Array, ndim: int) -> Array:
    return value if value.size == 1 else value.reshape(-1, *[1] * (ndim - 1))


def _qlinear_conv(call: Call) -> Array:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *_ = call.inputs
    bias = None if call[8] is None else call[8].astype(np.float64)
    kernels = centred(w, _channels(w_zero, w.ndim)).astype(np.float64)
    whole = convolve(call, centred(x, x_zero).astype(np.float64), kernels, bias)
    scale = x_scale.astype(np.float32) * w_scale.astype(np.float32) / y_scale.astype(np.float32)
    if scale.size > 1:
        scale = scale.reshape(-1, *[1] * (x.ndim - 2))
    return quantized(whole * scale, np.ones((), np.float32), y_zero, y_zero.dtype)


KERNELS: Kernels = {
    "ConvInteger": _conv_integer,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize,
}
