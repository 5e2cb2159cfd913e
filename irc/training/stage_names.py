"""What a name means where a user says what a stage computes: parameters, modules, runs, globs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from irc.dialects.globs import matches_glob
from irc.errors import IrcError, did_you_mean


def named_by(word: str, names: Sequence[str]) -> list[str]:
    """Return the parameters that a word means; none for a run of which an end is missing.

    >>> named_by("l.0-l.2", ["l.0.up", "l.1.up"])
    []

    >>> named_by("l.0-l.1", ["tok.weight", "l.0.up", "l.1.up", "l.10.up"])
    ['l.0.up', 'l.1.up']
    >>> named_by("l.*.up", ["l.0.up.weight", "l.0.down.weight"])
    ['l.0.up.weight']
    """
    if (run := _run(word)) is None:
        return [name for name in names if _is_in(name, word)]
    if _missing_end(word, names):
        return []
    first, low, high = run
    return [n for n in names if (at := _number(n, first)) is not None and low <= at <= high]


def _run(word: str) -> tuple[str, int, int] | None:
    """Return what the modules of a run ``l.0-l.3`` begin with, and the first and last number."""
    first, dash, last = word.partition("-")
    low, high = (re.fullmatch(r"(.*?)(\d+)", end.strip()) for end in (first, last))
    if dash and low is not None and high is not None and low[1] == high[1]:
        return low[1], int(low[2]), int(high[2])
    return None


def _number(name: str, first: str) -> int | None:
    """Return the number of the module of a list that a parameter is of, if it is of one."""
    place = re.match(re.escape(first) + r"(\d+)(?:\.|$)", name)
    return None if place is None else int(place[1])


def _missing_end(word: str, names: Sequence[str]) -> str:
    """Return the end of a run that the list of modules does not have; empty where it has both.

    A list that has modules without parameters, by its gaps, may end in one.
    """
    if (run := _run(word)) is None:
        return ""
    first, *ends = run
    known = {at for name in names if (at := _number(name, first)) is not None}
    if len(known) < 2 or len(known) != max(known) - min(known) + 1:
        return ""
    return next((f"{first}{end}" for end in ends if end not in known), "")


def _is_in(name: str, word: str) -> bool:
    parts = name.split(".")
    return any(matches_glob(word, ".".join(parts[:n])) for n in range(1, len(parts) + 1))


def unknown_name(word: str, stage: int, names: Sequence[str], where: str = "") -> IrcError:
    """Return the error for a name that no parameter has."""
    known = sorted({name.rpartition(".")[0] or name for name in names})
    missing = _missing_end(word, names)
    return IrcError(
        "pipeline-stages",
        f"stage {stage} is to have '{word}', and no parameter has "
        + (f"a name that begins with '{missing}'" if missing else "such a name"),
        where=where,
        because="a weight that several layers share has the name of the first of them",
        help=did_you_mean(word, known),
    )
