"""Ways around stages that micro-batches skip (SkipPipe, arXiv:2502.19913).

A stage can be left out where it turns one value into another of the same kind: what the stage
before it sends then goes to the stage behind it, and the gradient of what that one takes comes back
as that of what was sent, as if the stage between them were the identity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from irc.errors import IrcError
from irc.schedule.actions import Schedule
from irc.schedule.skips import runs_of_skips
from irc.training.stages import GRADIENT, Crossing

Kinds: TypeAlias = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and dtype of what crosses, by its name."""


@dataclass(frozen=True)
class Way:
    """How a value goes from a stage to another, around those between them.

    Attributes:
        name: by which it is read.
        producer, consumer: the two stages.
        sent: by which name the producer gives it.
        over: the stages that are left out.
    """

    name: str
    producer: int
    consumer: int
    sent: str
    over: tuple[int, ...] = ()


def ways_around(schedule: Schedule, crossings: Sequence[Crossing], kinds: Kinds) -> list[Way]:
    """Return the ways that micro-batches take which skip stages, forth and back.

    Raises:
        IrcError: ``pipeline-unsupported`` for a stage that cannot be left out.
    """
    ways: list[Way] = []
    for over in runs_of_skips(schedule):
        for stage in over:
            _check(schedule, stage, crossings, kinds)
        before, after = over[0] - 1, over[-1] + 1
        (taken,) = _smooth(crossings, before, over[0])
        (sent,) = _smooth(crossings, over[-1], after)
        back = f"{GRADIENT}{taken.name}", f"{GRADIENT}{sent.name}"
        ways.append(Way(sent.name, before, after, taken.name, over))
        ways.append(Way(back[0], after, before, back[1], over))
    return ways


def _smooth(crossings: Sequence[Crossing], producer: int, consumer: int) -> list[Crossing]:
    ends = producer, consumer
    return [c for c in crossings if c.is_smooth and (c.producer, c.consumer) == ends]


def _check(schedule: Schedule, stage: int, crossings: Sequence[Crossing], kinds: Kinds) -> None:
    """Refuse to leave out a stage that is not one value after another of its kind."""
    taken = [c for c in crossings if c.consumer == stage]
    sent = [c for c in crossings if c.producer == stage]
    same = len(taken) == len(sent) == 1 and kinds[taken[0].name] == kinds[sent[0].name]
    if same and all(_smooth(crossings, at, at + 1) for at in (stage - 1, stage)):
        return
    said = "; ".join(
        f"'{c.name}' from stage {c.producer} to stage {c.consumer}, "
        f"{kinds[c.name][1]}{list(kinds[c.name][0])}"
        for c in (*taken, *sent)
    )
    raise IrcError(
        "pipeline-unsupported",
        f"schedule '{schedule.name}' leaves out stage {stage}, which is not the same value in and "
        "out",
        because=f"around it go {said}",
        help="cut between layers that add to one stream (stages=...), or choose another schedule",
    )
