"""Casts of Triton's interpreter, mended: it truncates to bfloat16 where every GPU rounds.

``_convert_float`` rounds to nearest only when told to, and the interpreter's own casts do not tell
it; other dtypes reach bfloat16 by numpy, as integers. Neither is how compiled kernels behave.
"""

from __future__ import annotations

from typing import Any


def mend_casts() -> None:
    """Replace the interpreter's casts from and to bfloat16 in this process."""
    from triton.runtime.interpreter import InterpreterBuilder

    plain = InterpreterBuilder.cast_impl
    if getattr(plain, "is_mended", False):
        return

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        return _cast(plain, self, src, dst_type)

    cast_impl.is_mended = True  # type: ignore[attr-defined]
    InterpreterBuilder.cast_impl = cast_impl  # type: ignore[method-assign]
    InterpreterBuilder.create_fp_to_fp = lambda self, src, dst, mode: cast_impl(self, src, dst)  # type: ignore[method-assign,assign]


def _cast(plain: Any, builder: Any, src: Any, dst_type: Any) -> Any:
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    source, target = src.dtype.scalar, dst_type.scalar
    if tl.bfloat16 not in (source, target) or source == target:
        return plain(builder, src, dst_type)
    if source == tl.bfloat16:
        single = (src.data.astype(np.uint32) << 16).view(np.float32)
        return plain(builder, TensorHandle(single, tl.float32), dst_type)
    with np.errstate(over="ignore", invalid="ignore"):
        single = src.data.astype(np.float32)
    bits = np.ascontiguousarray(single).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40
    narrowed = np.where(np.isnan(single), quiet, rounded).astype(np.uint16)
    return TensorHandle(narrowed.reshape(single.shape), tl.bfloat16)
