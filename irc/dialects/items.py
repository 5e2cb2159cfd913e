"""Shapes, element types, and what a Python number is in one: what needs no type of the IR."""

from collections.abc import Mapping
from typing import TypeAlias

from irc.dialects.size import Dim

Shape: TypeAlias = tuple[Dim, ...]

ALIGNMENT = 64
"""Bytes of a cache line and of the widest vector: at multiples of it buffers begin."""

ITEM_BYTES: Mapping[str, int] = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1,
    "u16": 2, "u32": 4, "u64": 8, "i1": 1, "c32": 4, "c64": 8, "c128": 16, "f8e4m3fn": 1,
    "f8e4m3fnuz": 1, "f8e5m2": 1, "f8e5m2fnuz": 1, "f8e8m0fnu": 1,
}  # fmt: skip
"""By irc's short names of dtypes."""

LARGEST: Mapping[str, float] = {
    "f64": 1.7976931348623157e308, "c128": 1.7976931348623157e308, "f32": 3.4028234663852886e38,
    "c64": 3.4028234663852886e38, "bf16": 3.3895313892515355e38, "f16": 65504.0, "c32": 65504.0,
    "f8e4m3fn": 448.0, "f8e4m3fnuz": 240.0, "f8e5m2": 57344.0, "f8e5m2fnuz": 57344.0,
    "f8e8m0fnu": 1.7014118346046923e38,
}  # fmt: skip
"""The largest finite number of each floating-point dtype; of a complex one, of its parts."""


class NumberError(ValueError):
    """A dtype cannot hold a number; the text says which."""


def is_float(dtype: str) -> bool:
    """True for the real floating-point element types that kernels compute in."""
    return dtype in ("f64", "f32", "f16", "bf16")


def is_complex(dtype: str) -> bool:
    """True for complex element types."""
    return dtype.startswith("c")


def is_smooth(dtype: str) -> bool:
    """True for element types whose values have gradients."""
    return dtype in LARGEST


def integer_range(dtype: str) -> range:
    """Return the numbers of an integer dtype.

    >>> integer_range("i8")
    range(-128, 128)
    """
    bits = 8 * ITEM_BYTES[dtype]
    if dtype == "i1":
        return range(2)
    return range(1 << bits) if dtype.startswith("u") else range(-(1 << bits - 1), 1 << bits - 1)


def holds(value: complex, dtype: str) -> bool:
    """True for a number that :func:`number_in` has a literal of."""
    try:
        number_in(value, dtype)
    except NumberError:
        return False
    return True


def number_in(value: complex, dtype: str) -> float | int:
    """Return what a Python bool, int, float or complex is in a dtype: how a literal of it reads.

    This is torch's meaning. In a complex dtype a real number has the imaginary part 0; integers
    are cut towards zero, and unsigned ones wrap where a number is negative. Numbers of floating
    dtypes stay in double precision: whoever reads a literal rounds it.

    Args:
        value: the number.
        dtype: irc's short name.

    Raises:
        NumberError: where torch refuses the number, or a literal of real numbers cannot say it, as
            of a complex infinity, which has many forms.

    >>> number_in(2.5, "i64"), number_in(True, "f32"), number_in(-1, "u8"), number_in(0.5, "c64")
    (2, 1.0, 255, 0.5)
    >>> number_in(300, "i8")
    Traceback (most recent call last):
        ...
    irc.dialects.items.NumberError: i8 does not hold 300
    """
    if isinstance(value, complex):
        raise NumberError(f"a literal does not hold {value}")
    if dtype == "i1":
        return int(bool(value))
    finite = value - value == 0
    if dtype in LARGEST:
        fits = -LARGEST[dtype] <= value <= LARGEST[dtype] if finite else not is_complex(dtype)
        if not fits:
            raise NumberError(f"{dtype} does not hold {value}")
        return float(value)
    numbers = integer_range(dtype)
    least = numbers.start or 1 - numbers.stop
    if not finite or not least <= (whole := int(value)) < numbers.stop:
        raise NumberError(f"{dtype} does not hold {value}")
    return whole % numbers.stop if not numbers.start else whole
