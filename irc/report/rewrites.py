"""The account of rewrite rules: where they were applied, and where they nearly were."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

NEAR = 3
"""Ops that fit before a rule counts as one that somebody may have expected."""
MOST = 20


class Tried(Protocol):
    """A rule at an op; ``reason`` is empty where it was applied."""

    @property
    def rule(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def loc(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def ops(self) -> int: ...
    @property
    def fits(self) -> bool: ...


def write(places: Sequence[Tried], own: Collection[str] = ()) -> str:
    """Return a table of rules, the places of each, and the nearest misses.

    Args:
        places: in the order in which they were tried.
        own: names of the rules that the user gave: all of them are listed, with all their misses.
    """
    lines: list[str] = []
    for rule in dict.fromkeys((*own, *(place.rule for place in places))):
        mine = [place for place in places if place.rule == rule]
        if not mine:
            lines.append(f"{rule}: tried nowhere: no op is one that it begins with")
            continue
        done = [place for place in mine if not place.reason]
        lines.append(f"{rule}: applied {len(done)} times, tried at {len(mine)} ops")
        lines += [
            f"  {place.op} ({place.loc}): {place.ops} ops became one form" for place in done[:MOST]
        ]
        near = (p for p in mine if p.reason and (p.fits or rule in own or p.ops >= NEAR))
        missed = sorted(near, key=lambda p: (not p.fits, -p.ops))
        lines += [f"  {place.op} ({place.loc}): no: {place.reason}" for place in missed[:MOST]]
    return "\n".join(lines) or "no op is one that a rule may begin with"
