"""SkipPipe: each micro-batch leaves out some stages (Blagoev et al., arXiv:2502.19913).

The first and the last stage are never left out. Which ones a micro-batch skips goes round, so that
each inner stage is left out equally often and micro-batches do not meet where they need not.
"""

from __future__ import annotations

from irc.errors import IrcError
from irc.schedule.actions import Schedule, require_sizes
from irc.schedule.greedy import Rules, list_schedule
from irc.schedule.timeline import Times


def skip(ranks: int, micro_batches: int, chunks: int = 0) -> Schedule:
    """Let each micro-batch skip some inner stages, one by default: ``skip:2`` skips two.

    Training so is lossy: it computes another function than the model. ``chunks`` is the number of
    stages that are skipped.

    Raises:
        IrcError: ``schedule-size``; ``schedule-search`` where the order does not come to an end.
    """
    require_sizes("skip", ranks, micro_batches)
    skipped = chunks or 1
    if skipped > ranks - 2:
        raise IrcError(
            "schedule-size",
            f"schedule 'skip' cannot leave out {skipped} of {ranks} stages",
            because="every micro-batch goes through the first and the last stage",
            help=f"leave out at most {ranks - 2}" if ranks > 2 else "give it 3 ranks or more",
        )
    paths = tuple(_path(m, ranks, skipped) for m in range(micro_batches))
    limits = [float(ranks - rank) for rank in range(ranks)]
    schedule = list_schedule(
        [[rank] for rank in range(ranks)], micro_batches, Times(), limits, Rules(fill=1),
        split=False, paths=paths,
    )  # fmt: skip
    if schedule is None:
        raise IrcError("schedule-search", f"no order of 'skip' on {ranks} ranks comes to an end")
    return schedule


def _path(micro_batch: int, ranks: int, skipped: int) -> tuple[int, ...]:
    inner = ranks - 2
    left_out = {1 + (micro_batch * skipped + i) % inner for i in range(skipped)}
    return tuple(stage for stage in range(ranks) if stage not in left_out)
