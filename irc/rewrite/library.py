"""Where rules come from: those of irc, files that the user names, packages that bring some."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from irc.errors import IrcError
from irc.rewrite.notation import parse_rules
from irc.rewrite.terms import Rule

SUFFIX = ".rules"


@cache
def builtin_rules() -> tuple[Rule, ...]:
    """The rules of irc, file by file."""
    folder = files("irc.rewrite") / "rules"
    texts = sorted((each.name, each) for each in folder.iterdir() if each.name.endswith(SUFFIX))
    return tuple(
        rule
        for name, each in texts
        for rule in parse_rules(each.read_text(encoding="utf-8"), where=name)
    )


def rules_of(paths: Sequence[str]) -> tuple[Rule, ...]:
    """Return the rules of files, then those of irc: a user's rule comes first.

    Raises:
        IrcError: ``file-missing`` or ``rewrite-syntax``.
    """
    found: list[Rule] = []
    for path in paths:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise IrcError(
                "file-missing", f"cannot read the rules in '{path}'", because=str(error),
                help=f"name a text file of rewrite rules, such as my{SUFFIX}",
            ) from error  # fmt: skip
        found += parse_rules(text, where=Path(path).name)
    return (*found, *builtin_rules())
