"""``libdevice`` for Triton's interpreter, which has none: numpy gives the values.

The interpreter (``TRITON_INTERPRET=1``) runs a kernel as Python over numpy arrays, and raises on
every function that is linked from NVIDIA's library.
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


def complete_libdevice() -> None:
    """Put numpy functions in the place of libdevice's, in this process."""
    from triton.language.extra import libdevice

    for name, function in NUMPY.items():
        setattr(libdevice, name, _interpreted(function))


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
