"""Shapes and the widths of elements: what is known of a tensor without its type in the IR."""

from collections.abc import Mapping
from typing import TypeAlias

from irc.dialects.size import Dim

Shape: TypeAlias = tuple[Dim, ...]

ITEM_BYTES: Mapping[str, int] = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1,
    "u16": 2, "u32": 4, "u64": 8, "i1": 1, "c32": 4, "c64": 8, "c128": 16,
}  # fmt: skip
"""By irc's short names of dtypes."""


def is_float(dtype: str) -> bool:
    """True for real floating-point element types."""
    return dtype in ("f64", "f32", "f16", "bf16")
