"""The copies of a model that a schedule runs, and the order in which their stages see a batch."""

from __future__ import annotations

from itertools import pairwise

from irc.schedule.actions import Schedule, computed


def copies_of(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """Return the paths that micro-batches take, each once: the stages of a copy of the model.

    >>> from irc.schedule.named import generate
    >>> copies_of(generate("dualpipe", ranks=2, micro_batches=4))
    ((0, 1), (2, 3))
    """
    return tuple(dict.fromkeys(schedule.paths))


def has_whole_copies(schedule: Schedule) -> bool:
    """True where each micro-batch goes through all stages of a copy, and copies share none."""
    copies = copies_of(schedule)
    stages = [stage for path in copies for stage in path]
    return len(set(map(len, copies))) == 1 and sorted(stages) == list(range(schedule.num_stages))


def swapped_forwards(schedule: Schedule, part: int) -> tuple[int, int] | None:
    """Return two micro-batches that a stage sees the other way round, None where there are none.

    Args:
        schedule: of whole copies.
        part: the stage, counted along a path.
    """
    stages = {path[part] for path in schedule.paths}
    for actions in schedule.ranks:
        for stage in stages:
            own = (a.micro_batch for a in computed(actions) if (a.stage, a.kind) == (stage, "F"))
            for before, after in pairwise(own):
                if before > after:
                    return before, after
    return None
