"""What a search left alone, not priced or not made smaller, since its step is longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from irc.report.table import counted, seconds
from irc.search.everything import Outcome

BOUND = "{} at least by layers that were planned"
ESTIMATE = "about {} or more by a closed form"


@dataclass(frozen=True)
class Alone:
    """A configuration that was left alone.

    Attributes:
        configuration: in words.
        step_s: seconds of its step.
        is_bound: it takes so long at least, by layers of the model that were planned; else it seems
            to, by a closed form that prices were held against.
    """

    configuration: str
    step_s: float
    is_bound: bool


def alone_of(outcome: Outcome) -> tuple[Alone, ...]:
    """Return what a search left alone, shortest first."""
    return tuple(Alone(str(own), why.seconds, why.is_bound) for own, why in outcome.left)


def alone_text(every: Sequence[Alone]) -> str:
    """Say how many were left alone, and what the shortest of them takes.

    >>> alone_text([Alone("pipe=8", 7.5, True), Alone("pipe=16", 9.0, True)])
    '2 configurations, whose steps take 7.500 s at least by layers that were planned (--json)'
    """
    words: list[str] = []
    for is_bound, how in ((True, BOUND), (False, ESTIMATE)):
        if own := [each.step_s for each in every if each.is_bound == is_bound]:
            whose = "whose step takes" if len(own) == 1 else "whose steps take"
            number = counted(len(own), "configuration")
            words.append(f"{number}, {whose} {how.format(seconds(min(own)))}")
    return f"{'; '.join(words)} (--json)"
