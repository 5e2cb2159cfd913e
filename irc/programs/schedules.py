"""The schedule of a step: by name or file, checked, in the form in which stages have functions."""

from __future__ import annotations

from dataclasses import replace

from irc.errors import IrcError
from irc.schedule.actions import Schedule, computed
from irc.schedule.check import check
from irc.schedule.copies import has_whole_copies
from irc.schedule.named import SEARCH, generate
from irc.schedule.notation import load_schedule
from irc.schedule.shortlist import apart
from irc.schedule.skips import with_skips
from irc.schedule.slices import ranks_of_slices


def searched_stages(text: str) -> int | None:
    """Return the stages of a rank where a user asks for a search; None for a schedule.

    Raises:
        IrcError: ``schedule-unknown``.

    >>> searched_stages("search"), searched_stages("search:2"), searched_stages("zb-h1")
    (1, 2, None)
    """
    name, colon, number = text.partition(":")
    if name != SEARCH:
        return None
    if not colon:
        return 1
    if not (number.isascii() and number.isdigit() and 0 < int(number[:7]) <= MOST_CHUNKS):
        raise IrcError(
            "schedule-unknown", f"'{number}' after '{SEARCH}:' is not a number of stages a rank",
            because=f"a rank has 1 to {MOST_CHUNKS} stages", help=f"write it as {SEARCH}:2",
        )  # fmt: skip
    return int(number)


MOST_CHUNKS = 64


def schedule_for(text: str, ranks: int, micro_batches: int) -> Schedule:
    """Return the schedule that a user names, checked.

    Args:
        text: a name, as in ``interleaved:2``, or a file (``.csv`` or irc's own notation).
        ranks: of the pipe axis.
        micro_batches: of a step.

    Raises:
        IrcError: ``schedule-unknown``, ``schedule-size``; what reading and checking a file raise.
    """
    is_file = "." in text or "/" in text
    schedule = (
        load_schedule(text) if is_file else generate(text, ranks=ranks, micro_batches=micro_batches)
    )
    check(schedule)
    for what, own, asked in (
        ("ranks", len(schedule.ranks), ranks),
        ("micro-batches", schedule.num_micro_batches, micro_batches),
    ):
        if own != asked:
            raise IrcError(
                "schedule-size",
                f"the schedule '{text}' has {own} {what}, and the step {asked}",
                help="generate one of the sizes of the mesh and the step",
            )
    return as_functions(schedule)


def as_functions(schedule: Schedule) -> Schedule:
    """Return a schedule that was checked in the form in which a plan has functions for it.

    Raises:
        IrcError: ``pipeline-unsupported`` for what no plan can do yet.
    """
    _require_plain(with_skips(schedule))
    return _one_way(schedule)


def _require_plain(schedule: Schedule) -> None:
    if not has_whole_copies(schedule):
        raise IrcError(
            "pipeline-unsupported",
            f"the paths of schedule '{schedule.name}' are not those of a plan",
            because="micro-batches go through all stages of a copy of the model, or from the first "
            "to the last in order, leaving some out",
            help="draw and simulate it with irc schedule; choose another to run",
        )

    if schedule.vocabulary and len(ranks_of_slices(schedule)) < 2:
        raise IrcError(
            "pipeline-unsupported",
            f"schedule '{schedule.name}' shares a vocabulary out, and has one rank for it",
            help="leave out 'vocab-', or give the axis 'pipe' two ranks or more",
        )


def splits_backward(schedule: Schedule, part: int) -> bool:
    """Return whether a part's backward is I and W for some micro-batch."""
    return schedule.splits_backward and any(
        a.kind == "I" and schedule.paths[a.micro_batch][part] == a.stage
        for actions in schedule.ranks
        for a in computed(actions)
    )


def _one_way(schedule: Schedule) -> Schedule:
    """Write B as I and W in the stages of a part that has both: its functions are either."""
    paths = with_skips(schedule).paths
    both = {
        path[part]
        for part in range(len(paths[0]))
        if splits_backward(replace(schedule, paths=paths), part)
        for path in paths
    }
    return apart(schedule, both)
