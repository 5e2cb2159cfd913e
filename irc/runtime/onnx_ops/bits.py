"""Bitwise operators, and bits read as another type."""

from __future__ import annotations

import numpy as np

from irc.ops import names
from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.values import ELEMENTS, SMALL_INTEGERS, Array


def _shift(call: Call) -> Array:
    fn = {"LEFT": np.left_shift, "RIGHT": np.right_shift}[call.attr("direction")]
    bits = call[0].dtype.itemsize * 8
    # A shift by all bits or more leaves nothing but the sign; in C it is undefined.
    shifted: Array = fn(call[0], np.minimum(call[1], bits - 1))
    if call.attr("direction") == "RIGHT" and shifted.dtype.kind == "i":
        return shifted
    return np.where(call[1] >= bits, np.zeros_like(shifted), shifted)


FOUR_BITS = (*SMALL_INTEGERS[:2], ELEMENTS[23])
TWO_BITS = SMALL_INTEGERS[2:]


def _bits(dtype: np.dtype) -> int:
    return 4 if dtype in FOUR_BITS else 2 if dtype in TWO_BITS else dtype.itemsize * 8


def _bit_cast(call: Call) -> Array:
    x, dtype = call[0], ELEMENTS[call.attr("to")]
    if _bits(x.dtype) != _bits(dtype):
        raise ValueError(f"BitCast from {x.dtype} to {dtype}, which is of another size")
    return np.ascontiguousarray(x).view(dtype).reshape(x.shape)


def _view(call: Call) -> Array:
    """Bytes that a program stores, as the elements that they are."""
    return call[0].view(ELEMENTS[call.attr("element")]).reshape(call.attr("shape"))


KERNELS: Kernels = {
    "BitCast": _bit_cast,
    "BitShift": _shift,
    "BitwiseAnd": lambda call: np.bitwise_and(call[0], call[1]),
    "BitwiseNot": lambda call: np.bitwise_not(call[0]),
    "BitwiseOr": lambda call: np.bitwise_or(call[0], call[1]),
    "BitwiseXor": lambda call: np.bitwise_xor(call[0], call[1]),
    names.VIEW: _view,
}
