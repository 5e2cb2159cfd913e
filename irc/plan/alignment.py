"""Where buffers of an arena may begin."""

from __future__ import annotations

ALIGNMENT = 64
"""Arena offsets are multiples of a cache line, which is also the widest vector."""


def aligned(size_bytes: int) -> int:
    """Round up to the alignment.

    >>> aligned(1), aligned(64)
    (64, 64)
    """
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT
