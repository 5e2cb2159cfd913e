"""How far a search is, as whoever asked for it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from irc.search.judge import Judged


@dataclass(frozen=True)
class Status:
    """How far a search is.

    Attributes:
        judged: configurations that were priced or planned.
        most: of them that there will be, at most.
        best: the best one so far; None where nothing fits yet.
        doing: what is done next.
        bound_s: what no plan is faster than.
    """

    judged: int
    most: int
    best: Judged | None
    doing: str
    bound_s: float


Progress: TypeAlias = Callable[[Status], None]
"""Is told before each piece of work."""
