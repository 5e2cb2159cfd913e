"""Attributes of ops as Python values, and Python values as attributes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    StringAttr,
    f64,
    i1,
    i64,
)
from xdsl.ir import Attribute

from irc.dialects.size import Size
from irc.dialects.types import ShapeAttr, SizeAttr


@lru_cache(maxsize=1 << 14)
def string(text: str) -> StringAttr:
    """Return an attribute; it never changes, and many ops have the same."""
    return StringAttr(text)


@lru_cache(maxsize=1 << 12)
def _unpacked(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(data) // 8}q", data)


@lru_cache(maxsize=1 << 12)
def _integer(value: int) -> IntegerAttr:
    """Return an attribute; see :func:`string`."""
    return IntegerAttr(value, i64)


@lru_cache(maxsize=1 << 12)
def integers(values: tuple[int, ...]) -> DenseArrayBase[IntegerType]:
    """Return an attribute; see :func:`string`."""
    return DenseArrayBase.from_list(i64, values)


def to_attribute(value: Any) -> Attribute:
    """Convert a Python value: bool, int, float, str, size, tuples of them, or an attribute."""
    match value:
        case Attribute():
            return value
        case bool():
            return IntegerAttr(int(value), i1)
        case int():
            return _integer(int(value))
        case float():
            return FloatAttr(value, f64)
        case str():
            return string(value)
        case Size():
            return SizeAttr(value)
        case tuple() | list():
            items = cast("Sequence[Any]", value)
            if any(isinstance(item, float) for item in items):
                return DenseArrayBase.from_list(f64, [float(item) for item in items])
            if all(isinstance(item, int) for item in items):
                return integers(tuple(int(item) for item in items))
            if all(isinstance(item, int | Size) for item in items):
                return ShapeAttr(tuple(items))
            return ArrayAttr([to_attribute(item) for item in items])
        case _:
            raise TypeError(f"no attribute form for {value!r}")


def to_python(attribute: Attribute) -> Any:
    """Convert back what :func:`to_attribute` made."""
    if type(attribute) is StringAttr:  # most are, and each case asks xDSL's classes in Python
        return attribute.data
    match attribute:
        case IntegerAttr():
            return bool(attribute.value.data) if attribute.type == i1 else attribute.value.data
        case FloatAttr():
            return attribute.value.data
        case DenseArrayBase() if attribute.elt_type is i64:
            return _unpacked(attribute.data.data)
        case DenseArrayBase():
            # Integers or floats; xDSL's signature has each, not both.
            return cast("DenseArrayBase[IntegerType]", attribute).get_values()
        case ShapeAttr() | SizeAttr():
            return attribute.data
        case ArrayAttr():
            return tuple(to_python(item) for item in attribute)
        case DictionaryAttr():
            return {name: to_python(item) for name, item in attribute.data.items()}
        case _:
            return attribute
