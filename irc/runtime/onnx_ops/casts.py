"""Conversions of element types, the small ones and strings included.

Saturation and rounding follow the tables of Cast in ONNX's operator documentation: float8 types
saturate unless told otherwise, integers wrap, float8e8m0 rounds as ``round_mode`` says.
"""

from __future__ import annotations

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.values import ELEMENTS, SMALL_INTEGERS, Array, is_float, strings

FLOAT8 = (ELEMENTS[17], ELEMENTS[18], ELEMENTS[19], ELEMENTS[20])
E8M0 = ELEMENTS[24]
LARGEST = {ELEMENTS[17]: 448.0, ELEMENTS[18]: 240.0, ELEMENTS[19]: 57344.0, ELEMENTS[20]: 57344.0}
"""The largest finite number of each float8 type."""


def cast(x: Array, dtype: np.dtype, *, saturate: bool = True, round_mode: str = "up") -> Array:
    """Convert elements.

    >>> cast(np.array([1000.0, -1000.0], np.float32), ELEMENTS[17]).astype(np.float32).tolist()
    [448.0, -448.0]
    """
    if dtype.kind == "O":
        return _to_strings(x)
    if x.dtype.kind == "O":
        x = np.array([_number(text) for text in x.reshape(-1).tolist()]).reshape(x.shape)
        if not is_float(dtype):
            return x.astype(np.float64).astype(dtype)
        x = x.astype(np.float64 if dtype == np.float64 else np.float32)
    if dtype in FLOAT8:
        return _to_float8(x, dtype, saturate)
    if dtype == E8M0:
        return _to_e8m0(x, saturate, round_mode)
    if dtype == np.bool_:
        return x.astype(np.float32) != 0 if x.dtype.kind == "V" else x != 0
    if dtype in SMALL_INTEGERS:
        return _to_small_integer(x, dtype)
    if x.dtype.kind == "V" and not is_float(dtype):
        return x.astype(np.float32 if is_float(x.dtype) else np.int64).astype(dtype)
    return x.astype(dtype)


def _to_strings(x: Array) -> Array:
    wide = x.astype(np.float32) if x.dtype.kind == "V" else x
    return strings([str(t) for t in wide.reshape(-1)], x.shape)


def _number(text: str) -> float:
    # "INF" and "-inf" are both written; anything else that is no number is the caller's error.
    return float(text.strip())


def _to_float8(x: Array, dtype: np.dtype, saturate: bool) -> Array:
    wide = x.astype(np.float32)
    if saturate:
        limit = np.float32(LARGEST[dtype])
        wide = np.where(np.isnan(wide), wide, np.clip(wide, -limit, limit))
    return wide.astype(dtype)


def _to_small_integer(x: Array, dtype: np.dtype) -> Array:
    """Keep the low bits; floats round towards zero first."""
    bits = 4 if dtype in SMALL_INTEGERS[:2] else 2
    whole = np.trunc(x.astype(np.float32)) if is_float(x.dtype) else x
    low = whole.astype(np.int64) & ((1 << bits) - 1)
    if dtype in (SMALL_INTEGERS[1], SMALL_INTEGERS[3]):
        sign = 1 << (bits - 1)
        low = (low ^ sign) - sign
    return low.astype(np.int8).astype(dtype)


def _to_e8m0(x: Array, saturate: bool, mode: str) -> Array:
    """Keep the exponent of a positive number: ``2**(bits - 127)``, 255 for what is not one."""
    wide = x.astype(np.float32)
    bits = wide.view(np.uint32) if wide.ndim else wide.reshape(1).view(np.uint32).reshape(())
    exponent = ((bits >> 23) & 0xFF).astype(np.int32)
    rest = bits & 0x7FFFFF
    match mode:
        case "up":
            more = rest > 0
        case "nearest":
            half = np.uint32(1 << 22)
            more = (rest > half) | ((rest == half) & (exponent > 0))
        case _:
            more = np.zeros(rest.shape, np.bool_)
    special = exponent == 255
    exponent = exponent + more
    exponent = np.where(exponent > 254, 254 if saturate else 255, exponent)
    return np.where(special, 255, exponent).astype(np.uint8).view(E8M0)


def _cast(call: Call) -> Array:
    dtype = ELEMENTS[call.attr("to")] if call.op == "Cast" else call[1].dtype
    return cast(call[0], dtype, saturate=bool(call.attr("saturate", 1)),
                round_mode=call.attr("round_mode", "up"))  # fmt: skip


KERNELS: Kernels = {"Cast": _cast, "CastLike": _cast}
