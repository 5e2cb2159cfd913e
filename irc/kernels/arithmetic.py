"""The numbers of a kernel: held dtypes, accumulators, neutral elements, rounded literals."""

from __future__ import annotations

from collections.abc import Mapping

from irc.kernels.form import Step

FLOATS = frozenset({"f64", "f32", "f16", "bf16"})
INTEGERS = frozenset({"i64", "i32", "i16", "i8", "u8"})
LEAST: Mapping[str, int] = {
    "i64": -(2**63), "i32": -(2**31), "i16": -(2**15), "i8": -128, "u8": 0,
}  # fmt: skip
MOST: Mapping[str, int] = {
    "i64": 2**63 - 1, "i32": 2**31 - 1, "i16": 2**15 - 1, "i8": 127, "u8": 255,
}  # fmt: skip


def held(dtype: str) -> str:
    """Return the dtype in which values are computed: float32 for half types."""
    return "f32" if dtype in ("f16", "bf16") else dtype


def accumulator(step: Step) -> str:
    """Return the dtype in which a reduction runs (truth values count as i32)."""
    return "i32" if step.fn in ("any", "all") or step.dtype == "i1" else held(step.dtype)


def contraction(step: Step) -> str:
    """Return the dtype in which a contraction runs."""
    dtype = step.operand_dtypes[0]
    return held(dtype) if dtype in FLOATS else "i64"


def neutral(step: Step) -> float | int:
    """Return the neutral element of a reduction; a tail padded with it changes nothing."""
    kind = accumulator(step)
    if step.operand_dtypes[0] == "i1" and step.fn in ("max", "min"):
        return int(step.fn == "min")
    least, most = LEAST.get(kind, float("-inf")), MOST.get(kind, float("inf"))
    return {"sum": 0, "prod": 1, "max": least, "min": most, "any": 0, "all": 1}[step.fn]


def rounded(value: float, dtype: str) -> float:
    """Round to a float dtype, to nearest even.

    >>> rounded(0.1, "f16"), rounded(1.01, "bf16")
    (0.0999755859375, 1.0078125)
    """
    import numpy as np

    with np.errstate(over="ignore"):
        match dtype:
            case "f16":
                return float(np.float16(value))
            case "bf16" if value == value:
                bits = int(np.float32(value).view(np.uint32))
                bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
                return float(np.uint32(bits).view(np.float32))
            case "f32":
                return float(np.float32(value))
            case _:
                return value


def power_of_two(number: int) -> int:
    """Return the least power of two that is not below a number.

    >>> [power_of_two(n) for n in (0, 1, 3, 64)]
    [1, 1, 4, 64]
    """
    return 1 << max(0, number - 1).bit_length()
