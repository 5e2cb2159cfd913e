"""The version of a plan's files."""

from __future__ import annotations

from irc.errors import IrcError
from irc.plan.json_text import corrupt

FORMAT = 1
"""A reader takes this one only."""


def check_format(
    version: object, where: str, expected: int = FORMAT, what: str = "the plan"
) -> None:
    """Refuse a file of another format.

    Raises:
        IrcError: ``plan-version``; ``plan-corrupt`` where there is none.
    """
    if type(version) is not int:
        raise corrupt("the format version is missing", where)
    if version != expected:
        raise IrcError(
            "plan-version",
            f"{what} has format {version}; this irc reads format {expected}",
            where=where,
            help="compile the model again with this irc",
        )
