"""The schedules that have a name: one file each, with the paper and its closed forms.

``interleaved:2`` is the schedule ``interleaved`` with two stages a rank. ``vocab-1:`` or
``vocab-2:`` before a name weaves in a vocabulary that all ranks share, by the algorithm of that
number (:mod:`irc.schedule.vocabulary`). Another package registers one of its own, a function of
``(ranks, micro_batches, chunks)`` that returns a :class:`~irc.schedule.actions.Schedule`, under the
entry point ``irc.schedules``::

    [project.entry-points."irc.schedules"]
    mine = "my_package.mine:mine"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import TypeAlias, cast

from irc.entry_points import SCHEDULES, Registered, broken, load, provider, registered
from irc.errors import IrcError, did_you_mean
from irc.installed import warn_of_disabled
from irc.schedule.actions import Schedule
from irc.schedule.vocabulary import with_vocabulary

Generator: TypeAlias = Callable[[int, int, int], Schedule]

SEARCH = "search"
"""In the place of a name: the order that takes the least time, by the plan itself."""

VOCABULARY = re.compile(r"vocab-([0-9]):(.+)")
"""The name of a schedule with a vocabulary on all ranks: the algorithm, and the other's name."""

BUILTIN: Mapping[str, str] = {
    "gpipe": "irc.schedule.named.gpipe:gpipe",
    "1f1b": "irc.schedule.named.one_f_one_b:one_f_one_b",
    "interleaved": "irc.schedule.named.interleaved:interleaved",
    "gis": "irc.schedule.named.interleaved:generalised",
    "breadth-first": "irc.schedule.named.breadth_first:breadth_first",
    "zb-h1": "irc.schedule.named.zero_bubble:zb_h1",
    "zb-h2": "irc.schedule.named.zero_bubble:zb_h2",
    "zb-v": "irc.schedule.named.zero_bubble_v:zb_v",
    "v-half": "irc.schedule.named.v_shape:v_half",
    "v-min": "irc.schedule.named.v_shape:v_min",
    "dualpipe": "irc.schedule.named.dualpipe:dualpipe",
    "dualpipe-v": "irc.schedule.named.dualpipe:dualpipe_v",
    "skip": "irc.schedule.named.skip:skip",
}


def schedule_names() -> list[str]:
    """Return the names of all schedules, those of other packages too."""
    return sorted({*BUILTIN, *(each.name for each in registered(SCHEDULES))})


def generator(name: str) -> Generator:
    """Import the generator of a schedule.

    Raises:
        IrcError: ``schedule-unknown``; ``plugin-clash``, ``plugin-broken``.
    """
    warn_of_disabled()
    if name in BUILTIN:
        return builtin_generator(name)
    if plugin := provider(SCHEDULES, name):
        return plugin_generator(plugin)
    if name == SEARCH:
        raise IrcError(
            "schedule-unknown",
            f"'{SEARCH}' has no order of its own: it is looked for by what a plan's stages take",
            help="irc compile --schedule search does so for a plan, irc schedule search by times "
            "that are stated",
        )
    raise IrcError(
        "schedule-unknown",
        f"no schedule '{name}'",
        help=did_you_mean(name, [*schedule_names(), SEARCH, "vocab-1:NAME", "vocab-2:NAME"]),
    )


def builtin_generator(name: str) -> Generator:
    """Import the generator of a schedule of irc itself."""
    return EntryPoint(name, BUILTIN[name], SCHEDULES).load()


def plugin_generator(plugin: Registered) -> Generator:
    """Import the generator that another package registers, and hold it to what one returns.

    Raises:
        IrcError: ``plugin-broken``, also by the generator where it returns no schedule.
    """
    make = load(SCHEDULES, plugin)
    if not callable(make):
        raise broken(SCHEDULES, plugin, f"{make!r} is no function of ranks, micro-batches, chunks")

    def checked(ranks: int, micro_batches: int, chunks: int) -> Schedule:
        try:
            schedule: object = make(ranks, micro_batches, chunks)
        except IrcError:
            raise
        except Exception as error:  # the plug-in's own code
            raise broken(SCHEDULES, plugin, f"{type(error).__name__}: {error}") from error
        if not isinstance(schedule, Schedule):
            raise broken(SCHEDULES, plugin, f"it returns {schedule!r}, which is no Schedule")
        return schedule

    checked.__doc__ = make.__doc__
    return cast("Generator", checked)


def generate(text: str, *, ranks: int, micro_batches: int) -> Schedule:
    """Return a schedule by its name.

    Args:
        text: the name, and after a colon how many stages a rank has: ``interleaved:4``; before
            it ``vocab-1:`` or ``vocab-2:`` for a vocabulary on all ranks.
        ranks: of the pipeline.
        micro_batches: of a step.

    Raises:
        IrcError: ``schedule-unknown``; ``schedule-size`` where it cannot have such sizes.

    >>> print(generate("1f1b", ranks=2, micro_batches=2).ranks[0][2])
    0B0
    """
    if match := VOCABULARY.fullmatch(text):
        base = generate(match[2], ranks=ranks, micro_batches=micro_batches)
        return replace(with_vocabulary(base, int(match[1])), name=text)
    name, colon, number = text.partition(":")
    is_number = number.isascii() and number.isdigit() and len(number) < 7 and int(number) > 0
    if colon and not is_number:
        raise IrcError(
            "schedule-unknown", f"'{number}' after '{name}:' is not a number of stages a rank",
            help=f"write it as {name}:2",
        )  # fmt: skip
    make = generator(name)
    return replace(make(ranks, micro_batches, int(number or 0)), name=text)
