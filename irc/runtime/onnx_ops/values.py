"""The values that ONNX ops take and give: arrays, lists (sequences), dicts (maps), None.

Element types that numpy lacks (bfloat16, float8, int4, ...) are those of ml_dtypes; strings are
object arrays of ``str``. Torch tensors come in and go out over the same memory.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

try:
    import ml_dtypes
except ImportError:  # programs without torch need numpy alone
    ml_dtypes = None

if TYPE_CHECKING:
    import torch

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Item: TypeAlias = Any
"""An array, a list of items, a map (a dict), or None where an optional is empty."""


def _small(name: str) -> np.dtype[Any]:
    """Return a dtype of ml_dtypes; without that package, one that no array has."""
    return np.dtype([(name, "V1")] if ml_dtypes is None else getattr(ml_dtypes, name))


# fmt: off
ELEMENTS: Mapping[int, Any] = {
    1: np.dtype(np.float32), 2: np.dtype(np.uint8), 3: np.dtype(np.int8), 4: np.dtype(np.uint16),
    5: np.dtype(np.int16), 6: np.dtype(np.int32), 7: np.dtype(np.int64), 8: np.dtype(object),
    9: np.dtype(np.bool_), 10: np.dtype(np.float16), 11: np.dtype(np.float64),
    12: np.dtype(np.uint32), 13: np.dtype(np.uint64), 14: np.dtype(np.complex64),
    15: np.dtype(np.complex128), 16: _small("bfloat16"),
    17: _small("float8_e4m3fn"), 18: _small("float8_e4m3fnuz"),
    19: _small("float8_e5m2"), 20: _small("float8_e5m2fnuz"),
    21: _small("uint4"), 22: _small("int4"),
    23: _small("float4_e2m1fn"), 24: _small("float8_e8m0fnu"),
    25: _small("uint2"), 26: _small("int2"),
}
"""numpy's dtype for each number of ``TensorProto.DataType``."""

FLOW: Mapping[str, Any] = {
    "f64": ELEMENTS[11], "f32": ELEMENTS[1], "f16": ELEMENTS[10], "bf16": ELEMENTS[16],
    "i64": ELEMENTS[7], "i32": ELEMENTS[6], "i16": ELEMENTS[5], "i8": ELEMENTS[3],
    "u8": ELEMENTS[2], "i1": ELEMENTS[9], "c64": ELEMENTS[14], "c128": ELEMENTS[15],
}
"""numpy's dtype for each of irc's dtype names."""
# fmt: on

HALF = (np.dtype(np.float16), ELEMENTS[16])
SMALL_INTEGERS = (ELEMENTS[21], ELEMENTS[22], ELEMENTS[25], ELEMENTS[26])


def is_float(dtype: Any) -> bool:
    """True for real floating-point dtypes, those of ml_dtypes included.

    >>> is_float(ELEMENTS[17]), is_float(ELEMENTS[21])
    (True, False)
    """
    return dtype.kind == "f" or (dtype.kind == "V" and dtype not in SMALL_INTEGERS)


def as_array(value: torch.Tensor | Array) -> Array:
    """Return a torch tensor as an array over the same memory; an array as it is."""
    if isinstance(value, np.ndarray):
        return value
    import torch

    value = value.detach()
    if value.dtype == torch.bfloat16:
        return value.contiguous().view(torch.int16).numpy().view(ELEMENTS[16])
    return value.resolve_conj().numpy()


def as_tensor(value: Array | Any) -> torch.Tensor:
    """Return an array of a dtype that torch has as a tensor, over the same memory where it can."""
    import torch

    value = np.asarray(value)
    if not value.flags.writeable or not value.flags.c_contiguous or value.dtype.byteorder == ">":
        value = np.array(value, order="C")
    if value.dtype == ELEMENTS[16]:
        bits = torch.from_numpy(value.view(np.int16))  # pyright: ignore[reportUnknownMemberType]
        return bits.view(torch.bfloat16)
    return torch.from_numpy(value)  # pyright: ignore[reportUnknownMemberType]


# Told apart by these, values keep the type Any, and so does what stands in them.
_TAKEN: tuple[type[Any], ...] = (np.ndarray, dict)
_LISTS: tuple[type[Any], ...] = (list, tuple)


def as_item(value: Any) -> Item:
    """Return what a program holds as what kernels take."""
    if value is None or isinstance(value, _TAKEN):
        return value
    if isinstance(value, _LISTS):
        return [as_item(each) for each in value]
    return as_array(value)


@cache
def _literal(number: int, shape: tuple[int, ...], text: str) -> Array:
    dtype = ELEMENTS[number]
    return np.frombuffer(base64.b64decode(text), dtype).reshape(shape)


def literal(form: Mapping[str, Any]) -> Array:
    """Return an array from its JSON form.

    >>> literal({"element": 2, "shape": [2], "data": "AQI="})
    array([1, 2], dtype=uint8)
    """
    if "strings" in form:
        array: Array = np.empty(len(form["strings"]), object)
        array[:] = form["strings"]
        return array.reshape(form["shape"])
    return _literal(form["element"], tuple(form["shape"]), form["data"])


def to_literal(array: Array) -> dict[str, Any]:
    """Return the JSON form of an array."""
    shape = list(array.shape)
    if array.dtype == object:
        return {"strings": [str(text) for text in array.reshape(-1).tolist()], "shape": shape}
    numbers = {dtype: number for number, dtype in ELEMENTS.items()}
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
    return {"element": numbers[array.dtype], "shape": shape, "data": data}


def strings(values: Any, shape: tuple[int, ...] | None = None) -> Array:
    """Return an object array of strings.

    >>> strings(["a", "bc"]).shape
    (2,)
    """
    flat = list(values)
    array = np.empty(len(flat), object)
    array[:] = flat
    return array if shape is None else array.reshape(shape)
