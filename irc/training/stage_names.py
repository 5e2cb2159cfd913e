"""What a name means where a user says what a stage computes: parameters, modules, runs, globs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from irc.dialects.globs import matches_glob
from irc.errors import IrcError, did_you_mean


def named_by(word: str, names: Sequence[str]) -> list[str]:
    """Return the parameters that a word means.

    >>> named_by("l.0-l.1", ["tok.weight", "l.0.up", "l.1.up", "l.10.up"])
    ['l.0.up', 'l.1.up']
    >>> named_by("l.*.up", ["l.0.up.weight", "l.0.down.weight"])
    ['l.0.up.weight']
    """
    return [name for name in names if _is_in(name, word)]


def _is_in(name: str, word: str) -> bool:
    first, dash, last = word.partition("-")
    low, high = (re.fullmatch(r"(.*?)(\d+)", end.strip()) for end in (first, last))
    if dash and low is not None and high is not None and low[1] == high[1]:
        here = re.match(re.escape(low[1]) + r"(\d+)(?:\.|$)", name)
        return here is not None and int(low[2]) <= int(here[1]) <= int(high[2])
    parts = name.split(".")
    return any(matches_glob(word, ".".join(parts[:n])) for n in range(1, len(parts) + 1))


def unknown_name(word: str, stage: int, names: Sequence[str], where: str = "") -> IrcError:
    """Return the error for a name that no parameter has."""
    known = sorted({name.rpartition(".")[0] or name for name in names})
    return IrcError(
        "pipeline-stages",
        f"stage {stage} is to have '{word}', and no parameter has such a name",
        where=where,
        because="a weight that several layers share has the name of the first of them",
        help=did_you_mean(word, known),
    )
