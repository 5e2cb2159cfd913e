"""Constant folding: the functions whose result is the same on every machine, bit for bit.

Only IEEE-exact functions and integer ones are here. ``exp`` of a constant stays in the program,
since torch's and a kernel's may differ in the last bit from any value that we would compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from irc.dialects.items import LARGEST, integer_range, is_float

if TYPE_CHECKING:
    import numpy as np

Values: TypeAlias = tuple[float | int, ...]

MAX_VALUES = 64
"""Elements of a literal; a larger tensor is an argument."""

NUMPY: Mapping[str, str] = {
    "f64": "float64", "f32": "float32", "i64": "int64", "i32": "int32", "i16": "int16",
    "i8": "int8", "u8": "uint8", "i1": "bool_",
}  # fmt: skip
"""Element types in which folding is exact; half types are left to the program."""

CAST = frozenset({*NUMPY, "f16", "bf16"})
"""Element types to and from which a cast is folded."""

INTEGER: Mapping[str, str] = {
    "bit_and": "bitwise_and", "bit_or": "bitwise_or", "bit_xor": "bitwise_xor",
    "bit_not": "bitwise_not",
}  # fmt: skip
FLOAT: Mapping[str, str] = {
    "div": "divide", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
    "round": "rint", "reciprocal": "reciprocal",
}  # fmt: skip
BOTH: Mapping[str, str] = {
    "add": "add", "sub": "subtract", "mul": "multiply", "neg": "negative", "abs": "absolute",
    "maximum": "maximum", "minimum": "minimum", "eq": "equal", "ne": "not_equal", "lt": "less",
    "le": "less_equal", "gt": "greater", "ge": "greater_equal", "is_nan": "isnan",
    "is_inf": "isinf", "logical_and": "logical_and", "logical_or": "logical_or",
    "logical_xor": "logical_xor", "logical_not": "logical_not", "where": "where",
}  # fmt: skip


def fold_pointwise(
    fn: str,
    operands: Sequence[tuple[Values, Sequence[int], str]],
    shape: Sequence[int],
    dtype: str,
) -> Values | None:
    """Return the literal that a pointwise function of literals is, None where it should stay.

    Args:
        fn: the function.
        operands: values (one, or all row-major), shape and dtype of each.
        shape: of the result.
        dtype: of the result.

    >>> fold_pointwise("add", [((1.0,), (), "f32"), ((2.0, 3.0), (2,), "f32")], (2,), "f32")
    (3.0, 4.0)
    """
    import numpy as np

    if fn == "cast":
        return _cast(operands[0], dtype)
    run = _function(fn, operands[-1][2])
    if run is None or any(kind not in NUMPY for _, _, kind in operands):
        return None
    splat = all(len(values) == 1 for values, _, _ in operands)
    if not splat and _size(shape) > MAX_VALUES:
        return None
    arrays = [
        np.array(v, NUMPY[kind]).reshape(()) if len(v) == 1 else np.array(v, NUMPY[kind]).reshape(s)
        for v, s, kind in operands
    ]
    with np.errstate(all="ignore"):
        result = np.asarray(run(*arrays)).astype(NUMPY[dtype])
    return _values(result if splat else np.broadcast_to(result, tuple(shape)))


def fold_shape(
    name: str, attrs: Mapping[str, Any], values: Values, old: Sequence[int], new: Sequence[int]
) -> Values | None:
    """Return the literal that a shape op of a literal is, None where it would be too large."""
    import numpy as np

    if len(values) == 1:
        return values
    if _size(new) > MAX_VALUES:
        return None
    array = np.array(values).reshape(tuple(old))
    match name:
        case "flow.reshape":
            array = array.reshape(tuple(new))
        case "flow.transpose":
            array = array.transpose(attrs["perm"])
        case "flow.broadcast":
            array = np.broadcast_to(array, tuple(new))
        case _:
            bounds = zip(attrs["starts"], attrs["stops"], attrs["steps"], old, strict=True)
            array = array[tuple(slice(a, n if b == -1 else b, s) for a, b, s, n in bounds)]
    return _values(array)


def _function(fn: str, dtype: str) -> Callable[..., Any] | None:
    import numpy as np

    floating = dtype in ("f64", "f32")
    name = BOTH.get(fn) or (FLOAT if floating else INTEGER).get(fn)
    # Booleans add and negate by rules of their own in numpy.
    if name is None or (dtype == "i1" and fn in ("add", "sub", "mul", "neg", "abs")):
        return None
    return getattr(np, name)


def _cast(operand: tuple[Values, Sequence[int], str], dtype: str) -> Values | None:
    values, _, source = operand
    if dtype not in CAST or source not in CAST or (rounded := _rounded(values, source)) is None:
        return None
    if dtype == "i1":
        return tuple(int(v != 0) for v in rounded)
    if is_float(dtype):
        # A literal of a float type is rounded to it wherever it is read.
        held = all(math.isnan(v) or math.isinf(v) or abs(v) <= LARGEST[dtype] for v in rounded)
        return tuple(map(float, rounded)) if held else None
    numbers = integer_range(dtype if dtype in ("i8", "u8", "i16") else "i32")
    # NaN fails both comparisons; what a machine makes of it and of overflow is its own affair.
    held = all(numbers.start <= v < numbers.stop for v in rounded)
    return tuple(map(int, rounded)) if held else None


def _rounded(values: Values, dtype: str) -> Values | None:
    """Round to the element type, None where it has no such number."""
    import numpy as np

    if dtype == "bf16":
        numbers = np.array(values, np.float32)
        if not bool(np.isfinite(numbers).all()):
            return values if bool((numbers == np.array(values)).all()) else None
        bits = numbers.view(np.uint32)
        # To the nearest of 16 bits fewer, of two as near to the even one.
        bits = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
        return _values(bits.view(np.float32).astype(np.float64))
    if dtype == "f16":
        return _values(np.array(values, np.float16).astype(np.float64))
    if dtype == "f32":
        return _values(np.array(values, np.float32).astype(np.float64))
    return values


def _values(array: np.ndarray[Any, Any]) -> Values:
    return tuple(array.reshape(-1).tolist())


def _size(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
