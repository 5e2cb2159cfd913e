"""Where buffers of an arena may begin."""

from __future__ import annotations

from irc.dialects.items import ALIGNMENT


def aligned(size_bytes: int) -> int:
    """Round up to the alignment.

    >>> aligned(1), aligned(64)
    (64, 64)
    """
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT
