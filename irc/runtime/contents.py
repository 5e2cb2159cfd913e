"""Whether weights hold what they held, whoever has written to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class Watch:
    """Looks at memory for what it holds.

    Args:
        digest: gives another value for other contents.
    """

    def __init__(self, digest: Callable[[], bytes]) -> None:
        self._digest = digest
        self._seen: bytes | None = None

    def has_changed(self) -> bool:
        """Return whether it holds something else than when it was looked at last."""
        return self._digest() != self._seen

    def looked(self) -> bool:
        """Look at it, and return whether it has changed; the first time it has not."""
        before, self._seen = self._seen, self._digest()
        return before is not None and before != self._seen


def watch_of(segments: Sequence[object], tensors: Sequence[torch.Tensor]) -> Watch | None:
    """Return what watches tensors; None where no backend of these segments reads memory.

    Args:
        segments: compiled kernels.
        tensors: held by the caller; one that has gaps in memory, or elements in one place, is not
            watched, nor are those beside it.
    """
    digest: Any = next((d for s in segments if (d := getattr(s, "digest", None))), None)
    if digest is None or not tensors or not all(map(_is_dense, tensors)):
        return None
    return Watch(digest([(x.data_ptr(), x.numel() * x.itemsize) for x in tensors]))


def _is_dense(x: torch.Tensor) -> bool:
    """True for a tensor that is one piece of memory, in whatever order its dims lie there."""
    dims = sorted(zip(x.stride(), x.shape, strict=True))
    step = 1
    for stride, size in dims:
        if size != 1 and stride != step:
            return False
        step *= size
    return x.layout is torch.strided
