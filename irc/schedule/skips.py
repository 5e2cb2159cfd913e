"""A schedule whose micro-batches skip stages, in the form in which a plan has functions for it.

A text says of each micro-batch which stages it goes through (``path 3: 0 2 3``). A plan has a route
between any two stages that follow each other on some path, so here all micro-batches have the path
through all stages, and beside it the stages that they leave out.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from irc.schedule.actions import Schedule, straight


def with_skips(schedule: Schedule) -> Schedule:
    """Return a schedule of straight paths that says what each micro-batch leaves out.

    Another one comes back as it is: whose paths are of several copies of the model, or where the
    stages of a path are in another order.

    >>> from irc.schedule.named import generate
    >>> with_skips(generate("skip", ranks=4, micro_batches=2)).skips
    ((1,), (2,))
    """
    whole = straight(schedule.num_stages, schedule.num_micro_batches)
    ordered = all(a < b for path in schedule.paths for a, b in pairwise(path))
    ends = {(path[0], path[-1]) for path in schedule.paths if path}
    if schedule.paths == whole or not ordered or ends != {(0, schedule.num_stages - 1)}:
        return schedule
    visited = {stage for path in schedule.paths for stage in path}
    if len(visited) < schedule.num_stages:
        return schedule
    skips = tuple(
        tuple(stage for stage in every if stage not in path)
        for path, every in zip(schedule.paths, whole, strict=True)
    )
    return replace(schedule, paths=whole, skips=skips)


def runs_of_skips(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """Return the runs of stages that some micro-batch leaves out one after the other, each once."""
    runs: dict[tuple[int, ...], None] = {}
    for skipped in schedule.skips:
        run: list[int] = []
        for stage in (*skipped, -1):
            if run and stage != run[-1] + 1:
                runs[tuple(run)] = None
                run = []
            run.append(stage)
    return tuple(runs)
