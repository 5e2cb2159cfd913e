"""How the meaning of an op is called: its attributes, operands and what it states of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

Attrs: TypeAlias = Mapping[str, Any]
"""Attributes as Python values."""

Results: TypeAlias = Sequence[tuple[tuple[int, ...], str]]
"""Shape and dtype of each result, as the op states them."""

Kernel: TypeAlias = Callable[..., Any]
"""Called with :data:`Attrs`, a list of operands and :data:`Results`; gives a tensor or several."""
