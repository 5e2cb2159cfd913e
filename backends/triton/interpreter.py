"""What Triton's interpreter lacks: ``libdevice``, and products of bfloat16.

The interpreter (``TRITON_INTERPRET=1``) runs a kernel as Python over numpy arrays. It raises on
every function that is linked from NVIDIA's library, for which numpy gives the values here, and
multiplies the bits of bfloat16 as if they were integers.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

NUMPY: Mapping[str, str] = {
    "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan",
    "atan2": "arctan2", "atanh": "arctanh", "cosh": "cosh", "expm1": "expm1", "fmod": "fmod",
    "log10": "log10", "log1p": "log1p", "log2": "log2", "pow": "power", "rint": "rint",
    "sinh": "sinh", "tan": "tan", "tanh": "tanh", "trunc": "trunc",
}  # fmt: skip


def complete_interpreter() -> None:
    """Put numpy functions in the place of libdevice's, and mend products, in this process."""
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import InterpreterBuilder

    for name, function in NUMPY.items():
        setattr(libdevice, name, _interpreted(function))
    if InterpreterBuilder.create_dot is not _dot:
        global _plain_dot
        _plain_dot = InterpreterBuilder.create_dot
        InterpreterBuilder.create_dot = _dot  # type: ignore[method-assign]  # mended


_plain_dot: Callable[..., Any] | None = None


def _dot(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
    """Multiply in float32 what is held as the bits of bfloat16."""
    assert _plain_dot is not None
    return _plain_dot(builder, _widened(a), _widened(b), *rest)


def _widened(handle: Any) -> Any:
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    if handle.dtype.scalar != tl.bfloat16:
        return handle
    bits = handle.data.astype(np.uint32) << 16
    return TensorHandle(bits.view(np.float32), tl.float32)


def _interpreted(name: str) -> Callable[..., Any]:
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    def function(*args: Any, **_: Any) -> Any:
        arrays = [a.handle.data for a in args]
        with np.errstate(all="ignore"):
            found = np.asarray(getattr(np, name)(*arrays))
        kind = args[0].type.scalar
        shape = list(found.shape)
        full = (
            tl.block_type(kind, shape)
            if args[0].type.is_block() or shape not in ([], [1])
            else kind
        )
        return tl.tensor(TensorHandle(found.astype(arrays[0].dtype), kind), full)

    return function
