"""Whether weights hold what they held, whoever has written to them.

A look at all of BERT's weights would take a twentieth of its call. So up to ``WHOLE_BYTES`` are
looked at whole, and of more than that ``LINES`` lines of each weight, one somewhere in each of as
many equal parts: a write to a whole weight, to a tensor that follows another, by an optimizer or a
mask, is seen. A write of few elements to a large weight may not be: a user says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

WHOLE_BYTES = 1 << 16
LINES, LINE_BYTES = 32, 256
GOLDEN = 0.6180339887498949
"""Multiples of it, less their whole part, lie evenly in [0, 1) (Knuth, 6.4)."""


class Watch:
    """Looks at memory for what it holds.

    Args:
        digest: gives another value for other contents.
    """

    def __init__(self, digest: Callable[[], bytes]) -> None:
        self._digest = digest
        self._seen: bytes | None = None

    @property
    def is_new(self) -> bool:
        """Whether nobody has looked yet."""
        return self._seen is None

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
    return Watch(digest(looked_at([(x.data_ptr(), x.numel() * x.itemsize) for x in tensors])))


def looked_at(pieces: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what is looked at of pieces of memory: addresses and bytes, in order.

    >>> looked_at([(0, 1000), (4096, 24)])
    [(0, 1000), (4096, 24)]
    >>> lines = looked_at([(0, 1 << 20)])
    >>> len(lines), [start >> 15 for start, _ in lines[:3]]
    (32, [0, 1, 2])
    """
    if sum(size for _, size in pieces) <= WHOLE_BYTES:
        return [*pieces]
    return [line for start, size in pieces for line in _lines(start, size)]


def _lines(start: int, size: int) -> list[tuple[int, int]]:
    if size <= LINES * LINE_BYTES:
        return [(start, size)]
    part = size / LINES
    places = (int((k + k * GOLDEN % 1.0) * part) // LINE_BYTES * LINE_BYTES for k in range(LINES))
    return [(start + min(place, size - LINE_BYTES), LINE_BYTES) for place in places]


def _is_dense(x: torch.Tensor) -> bool:
    """True for a tensor that is one piece of memory, in whatever order its dims lie there."""
    if not x.numel():
        return True
    dims = sorted(zip(x.stride(), x.shape, strict=True))
    step = 1
    for stride, size in dims:
        if size != 1 and stride != step:
            return False
        step *= size
    return x.layout is torch.strided
