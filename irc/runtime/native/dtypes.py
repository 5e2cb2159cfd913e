"""numpy's dtypes by irc's names."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from irc.errors import IrcError

CODES = {
    "f64": "f8", "f32": "f4", "f16": "f2", "i64": "i8", "i32": "i4", "i16": "i2", "i8": "i1",
    "u8": "u1", "u16": "u2", "u32": "u4", "u64": "u8", "i1": "?", "c64": "c8", "c128": "c16",
}  # fmt: skip


@cache
def dtype_of(name: str) -> np.dtype[Any]:
    """Return numpy's dtype.

    Raises:
        IrcError: ``package-missing`` where ml_dtypes has it and is not installed;
            ``op-unsupported`` where nobody has it.
    """
    if name in CODES:
        return np.dtype(CODES[name])
    if name != "bf16":
        raise IrcError("op-unsupported", f"numpy has no numbers of dtype {name}")
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        raise IrcError(
            "package-missing",
            "the program takes or gives bfloat16, which numpy has from ml_dtypes alone",
            help="pip install ml_dtypes",
        ) from None
    return np.dtype(bfloat16)
