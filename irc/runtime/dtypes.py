"""Torch's dtypes and irc's names of them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from irc.errors import IrcError

if TYPE_CHECKING:
    import torch


@cache
def dtypes() -> dict[str, torch.dtype]:
    """Return torch's dtype for each of irc's dtype names."""
    import torch

    return {
        "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
        "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
        "u8": torch.uint8, "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64,
        "i1": torch.bool, "c32": torch.complex32, "c64": torch.complex64, "c128": torch.complex128,
        "f8e4m3fn": torch.float8_e4m3fn, "f8e4m3fnuz": torch.float8_e4m3fnuz,
        "f8e5m2": torch.float8_e5m2, "f8e5m2fnuz": torch.float8_e5m2fnuz,
        "f8e8m0fnu": torch.float8_e8m0fnu,
    }  # fmt: skip


@cache
def dtype_names() -> dict[torch.dtype, str]:
    """Return irc's dtype name for each of torch's dtypes."""
    return {dtype: name for name, dtype in dtypes().items()}


def dtype_name(dtype: torch.dtype) -> str:
    """Return irc's name of one of torch's dtypes.

    Raises:
        IrcError: ``op-unsupported``, where irc has none (bits, quantized numbers).
    """
    if dtype not in dtype_names():
        raise IrcError(
            "op-unsupported",
            f"irc has no element type for {dtype}",
            help=f"torch's dtypes that irc knows: {', '.join(map(str, dtype_names()))}",
        )
    return dtype_names()[dtype]
