"""What Triton's interpreter lacks: ``libdevice``, and products of bfloat16.

The interpreter (``TRITON_INTERPRET=1``) runs a kernel as Python over numpy arrays. It raises on
every function that is linked from NVIDIA's library, for which numpy gives the values here, and
multiplies the bits of bfloat16 as if they were integers.
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from irc.ops.functions import POINTWISE
from irc.ops.functions.record import text

OF_LIBRARY = re.compile(r"libdevice\.(\w+)\((?:\{\d\}(?:, )?)*\)")
"""The text of a function that is one of libdevice and no more."""


def complete_interpreter() -> None:
    """Put torch's functions in the place of libdevice's, and mend products, in this process."""
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import InterpreterBuilder

    for function in POINTWISE.values():
        if known := OF_LIBRARY.fullmatch(text(function.triton).floats):
            setattr(libdevice, known[1], _interpreted(function.reference))
    builder: Any = InterpreterBuilder
    if builder.create_dot is not _dot:
        global _plain_dot
        _plain_dot = builder.create_dot
        builder.create_dot = _dot


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


def _interpreted(reference: str) -> Callable[..., Any]:
    """Return a function of the interpreter that computes what a function of ATen does."""
    import numpy as np
    import torch
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    library: Any = torch  # types know its from_numpy only in part
    compute = getattr(library.ops.aten, reference.removeprefix("aten::"))

    def function(*args: Any, **_: Any) -> Any:
        arrays = [np.asarray(a.handle.data) for a in args]
        result = compute(*map(library.from_numpy, arrays)).numpy()
        kind = args[0].type.scalar
        shape = list(result.shape)
        full = (
            tl.block_type(kind, shape)
            if args[0].type.is_block() or shape not in ([], [1])
            else kind
        )
        return tl.tensor(TensorHandle(result.astype(arrays[0].dtype), kind), full)

    return function
