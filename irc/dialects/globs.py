"""Globs on dotted names: ``*``, ``?`` and number ranges ``{0-5,7}``."""

from __future__ import annotations

import re
from functools import cache


def matches_glob(glob: str, name: str) -> bool:
    """Return whether a glob fits a name.

    >>> matches_glob("l.{0-2}.*", "l.1.up"), matches_glob("l.?.up", "l.10.up")
    (True, False)
    """
    return _regex(glob).fullmatch(name) is not None


_NUMBERS = r"\{\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*\}"


@cache
def _regex(glob: str) -> re.Pattern[str]:
    parts = re.split(rf"(\*|\?|{_NUMBERS})", glob, flags=re.ASCII)
    return re.compile("".join(_regex_part(part) for part in parts), re.DOTALL)


def _regex_part(part: str) -> str:
    if part in ("*", "?"):
        return ".*" if part == "*" else "."
    if not re.fullmatch(_NUMBERS, part, re.ASCII):
        return re.escape(part)
    numbers: list[str] = []
    for one in part[1:-1].split(","):
        first, _, last = one.partition("-")
        if int(first) > int(last or first):
            return re.escape(part)
        numbers += [str(n) for n in range(int(first), min(int(last or first), 99_999) + 1)]
    return f"(?:{'|'.join(numbers)})"
