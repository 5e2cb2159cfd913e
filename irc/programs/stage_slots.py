"""How a schedule runs each stage."""

from __future__ import annotations

from collections.abc import Sequence

from irc.schedule.actions import Schedule
from irc.training.stage_runs import StageRuns


def runs_of_stages(schedule: Schedule, splits: Sequence[bool]) -> list[StageRuns]:
    """Return how often each stage's functions run on a rank of it."""
    found: list[StageRuns] = []
    for part, is_split in enumerate(splits):
        taken = [path[part] for path in schedule.paths]
        # Two copies of a model have some of the micro-batches each.
        most = max(map(taken.count, taken))
        found.append(StageRuns(most, merged=not is_split))
    return found
