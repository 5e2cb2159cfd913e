"""A page for each error code: irc explain error CODE prints it.

Each family of codes has a file with its pages, in the order of the codes. To add an error, add a
page to one of them. :mod:`irc.errors` gives the meaning of the exit codes.
"""

from collections.abc import Mapping

from irc.error_pages import (
    commands,
    levels,
    machines,
    models,
    placements,
    plans,
    runs,
    schedules,
    training,
)
from irc.error_pages.page import ErrorPage

FAMILIES: tuple[tuple[ErrorPage, ...], ...] = (
    commands.PAGES,
    levels.PAGES,
    machines.PAGES,
    models.PAGES,
    placements.PAGES,
    plans.PAGES,
    runs.PAGES,
    schedules.PAGES,
    training.PAGES,
)
PAGES = tuple(sorted(page for family in FAMILIES for page in family))
REGISTRY: Mapping[str, ErrorPage] = {page.code: page for page in PAGES}
