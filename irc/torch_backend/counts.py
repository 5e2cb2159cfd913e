"""What the backend has done since it was imported."""

from __future__ import annotations

from collections import Counter

counters: Counter[str] = Counter()
"""What was done: graphs, forward, backward, ``backward run by torch``, ``library NAME``..."""
