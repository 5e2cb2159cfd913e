"""What is known of entries beforehand."""

from __future__ import annotations

UNINITIALISED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    }
)
"""Their results hold whatever was in memory: shape, dtype and layout are compared."""
