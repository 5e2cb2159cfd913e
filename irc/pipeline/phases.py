"""Where a compilation stops and goes on: a level of the IR, or behind a pass, by name.

A phase is ``capture``, where the program is all that is to be computed; a level (``flow``,
``flow+sbp``, ``spmd``, ``task``), behind the last pass that leaves the program on it; or the name
of a pass, behind the last place where it runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.passes import ModulePass

from irc.dialects.levels import LEVELS
from irc.errors import IrcError, did_you_mean
from irc.pipeline.default import Passes
from irc.pipeline.levels import left_level
from irc.pipeline.order import ORDER

CAPTURE = "capture"


def check_phase(phase: str, passes: Sequence[str] = ()) -> None:
    """Refuse, before any work, a name that no compilation stops at.

    Args:
        phase: as a user says it.
        passes: of plug-ins that the user asks for, with their options.

    Raises:
        IrcError: ``phase-unknown``.
    """
    own = [text.partition("{")[0] for text in passes]
    known = [CAPTURE, *LEVELS, *dict.fromkeys(row.name for row in ORDER), *own]
    if phase not in known:
        raise IrcError(
            "phase-unknown",
            f"no level or pass is called '{phase}'",
            help=did_you_mean(phase, known) or "irc list passes names the passes, in order",
        )


def position(phase: str, passes: Passes) -> int:
    """Return how many passes have run where a compilation stops at a phase.

    Args:
        phase: as a user says it.
        passes: of this compilation.

    Raises:
        IrcError: ``phase-unknown`` for one that this compilation does not reach.
    """
    start, every = len(passes.training), [*passes.training, *passes.stage, *passes.function]
    names = [each.name for each in every]
    check_phase(phase, names)
    if phase == CAPTURE:
        return start
    if phase in LEVELS:
        return _behind_level(phase, every, start)
    if phase not in names:
        when = next((row.when for row in ORDER if row.name == phase), "")
        raise IrcError(
            "phase-unknown",
            f"this compilation does not run pass '{phase}'",
            because=f"it is run of: {when}" if when else (),
            help=f"it runs {', '.join(dict.fromkeys(names))}",
        )
    return len(names) - names[::-1].index(phase)


def _behind_level(level: str, every: Sequence[ModulePass], start: int) -> int:
    if level == "flow+sbp" and all(left_level(each) != level for each in every):
        raise IrcError(
            "phase-unknown",
            f"this compilation has no level '{level}'",
            because="one device has no placements",
            help="choose a mesh, or stop at another level",
        )
    below = [LEVELS.index(left_level(each)) > LEVELS.index(level) for each in every]
    return below.index(True, start) if any(below[start:]) else len(every)


def phase_name(done: int, passes: Passes) -> str:
    """Return what a user calls the place behind so many passes."""
    every = [*passes.training, *passes.stage, *passes.function]
    return CAPTURE if done == len(passes.training) else every[done - 1].name if done else CAPTURE
