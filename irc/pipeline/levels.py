"""Which levels a pass takes and leaves, and the refusal of a program of another level.

A pass says ``level``, where a pipeline runs it, and may say ``also_on``, other levels on whose text
it is right too.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from irc.dialects.levels import LEVELS, levels_of
from irc.errors import IrcError
from irc.plugin import package_of

LOWERS_TO = {"auto-shard": "flow+sbp", "lower-boxing": "spmd", "map-tasks": "task"}
"""Passes that leave a program on another level than they found it."""


def level(each: ModulePass) -> str:
    """Return where a pipeline runs a pass."""
    return getattr(each, "level", "flow")


def left_level(each: ModulePass) -> str:
    """Return the level of a program after a pass."""
    return LOWERS_TO.get(each.name, level(each))


def taken_levels(each: ModulePass) -> tuple[str, ...]:
    """Return the levels on whose text a pass is right; all of them for one that does not say."""
    if not hasattr(each, "level"):
        return LEVELS
    return tuple(name for name in LEVELS if name == level(each) or name in also_on(each))


def also_on(each: ModulePass) -> tuple[str, ...]:
    """Return the further levels that a pass says it is right on."""
    return getattr(each, "also_on", ())


def levels_after(each: ModulePass, before: Sequence[str], module: ModuleOp) -> tuple[str, ...]:
    """Return the levels that a program may be at when a pass has run.

    Args:
        each: what ran.
        before: the levels that it may have been at until then.
        module: the program now; read again only where ``each`` may have lowered it.
    """
    if each.name in LOWERS_TO:
        return (LOWERS_TO[each.name],)
    taken = [name for name in before if name in taken_levels(each)]
    kept = tuple(name for name in before if LEVELS.index(name) >= LEVELS.index(taken[0]))
    if package_of(type(each)) == "irc":
        return kept
    levels = levels_of(module)
    return tuple(name for name in kept if name in levels) or levels


def require_level(each: ModulePass, possible: Sequence[str]) -> None:
    """Refuse a pass on a program of another level.

    Args:
        each: what is to run.
        possible: the levels that the program may be at.

    Raises:
        IrcError: ``pass-level`` naming both.
    """
    taken = taken_levels(each)
    if any(name in taken for name in possible):
        return
    if LEVELS.index(possible[-1]) < LEVELS.index(taken[0]):
        lead = next(p for p, to in LOWERS_TO.items() if LEVELS.index(to) >= LEVELS.index(taken[0]))
        advice = f"run {lead} before it"
    else:
        advice = f"run it earlier: ir/ of a plan holds the program of level {taken[-1]} too"
    raise IrcError(
        "pass-level",
        f"pass '{each.name}' works on level {' or '.join(taken)}, and the program is on level "
        f"{' or '.join(possible)}",
        help=advice,
    )
