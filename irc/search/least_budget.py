"""A budget that works where nothing fits: one that a step is planned within that holds little.

All is computed again, in the most micro-batches, and weights, sums and states lie in parts. Such a
step is planned whole as if memory were free, and then within half of what it holds; where it does
not fit, within all of it. That is a budget that works, and an upper bound of the smallest; a search
within it comes to the same step where nothing else fits. So the answer takes a few plans, however
many the search made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

from irc.errors import IrcError
from irc.search.bounds import least_bytes
from irc.search.configurations import FULL, IN_PARTS, Configuration, at_once, can_divide
from irc.search.judge import BOUNDLESS, OF_CONFIGURATION, OF_MEMORY, Verdict
from irc.search.objections import SAMPLES, absent_batch
from irc.search.seeds import smallest

if TYPE_CHECKING:
    from irc.search.trials import Trials

ASKED = 4
"""So many steps that hold little at most are asked for, until one can be planned."""

SHARES = (0.5, 1.0, 1.1, 1.3)
"""Of what it holds as if memory were free, within which one is planned until it fits: less than
half may take an integer program long, and more than all is needed where a search within a budget
counts a little more than a plan does."""


@dataclass(frozen=True)
class Working:
    """A budget, and the step that is planned within it."""

    num_bytes: int
    configuration: Configuration


def plan_least(trials: Trials, devices: int) -> None:
    """Plan what holds least on so many devices, within the budget of the user.

    Raises:
        TimeIsUp: the time limit is over.
        IrcError: what is wrong with the model.
    """
    for own in _thrifty(trials, devices):
        error = trials.planned(own).error
        if error is None or error.code in OF_MEMORY:
            return


def working_budget(trials: Trials, devices: int) -> Working | None:
    """Return a budget that something is planned whole within; None where nothing can be planned.

    Raises:
        TimeIsUp: the time limit is over.
        IrcError: what is wrong with the model.
    """
    for own in _thrifty(trials, devices):
        if (free := _whole(trials, own, BOUNDLESS)) is not None:
            return _fitted(trials, own, free.num_bytes)
    return None


def _fitted(trials: Trials, own: Configuration, held: int) -> Working | None:
    bound = least_bytes(trials.judge.outline(), own)
    too_little = max(trials.judge.budget_bytes(own) or 0, bound - 1)
    for budget in (ceil(share * held) for share in SHARES):
        if budget > too_little and _whole(trials, own, budget) is not None:
            return Working(budget, own)
    return None


def pins_in_conflict(trials: Trials, own: Configuration) -> list[str]:
    """Return the user's constraints without which a step would fit, by name; empty for none.

    Raises:
        TimeIsUp: the time limit is over.
        IrcError: what is wrong with the model.
    """
    judge, budget = trials.judge.unpinned(), trials.judge.budget_bytes(own)
    if judge is None or budget is None or least_bytes(trials.judge.outline(), own) > budget:
        return []
    if _asked(trials, own, lambda: judge.judge(own)) is None:
        return []
    try:
        trials.judge.judge(own, brief=False)
    except IrcError as error:
        named = [note.removeprefix("group ") for note in error.because if note[:6] == "group "]
        return [name for name in named if not name.startswith("memory:")]
    return []


def _thrifty(trials: Trials, devices: int) -> list[Configuration]:
    """Return steps that hold little, first what seems to hold least.

    Samples in the fewest at a time save least, and work in least; then matrices in the most parts.
    """
    outline = trials.judge.outline()
    every = [own for own in at_once(outline, devices) if trials.is_allowed(own)]
    if trials.is_training:
        staged = smallest(trials, outline, devices)
        every = [*staged, *(replace(own, recompute=FULL) for own in every)]

    def order(own: Configuration) -> tuple[bool, int, int, float, str]:
        sizes = dict(own.mesh.axes)
        at_a_time = outline.samples / (own.micro_batches * sizes.get(SAMPLES, 1))
        seconds = trials.estimate(outline, own)
        is_wrong = trials.objection(own) != ""
        return is_wrong, ceil(at_a_time), -sizes.get("tensor", 1), seconds, str(own)

    most = len(IN_PARTS) - 1
    ordered = sorted(every, key=order)
    return [replace(own, in_parts=most) if can_divide(own) else own for own in ordered][:ASKED]


def _whole(trials: Trials, own: Configuration, budget: int) -> Verdict | None:
    return _asked(trials, own, lambda: trials.judge.within(budget).judge(own))


def _asked(trials: Trials, own: Configuration, ask: Callable[[], Verdict | None]) -> Verdict | None:
    """Return what a judge says; None where it says that the step cannot be."""
    trials.check_time()
    trials.tell(f"looking for a budget that works: {own}")
    try:
        if trials.is_training:
            absent_batch(own, trials.judge.outline())
        return ask()
    except IrcError as error:
        if error.code not in OF_CONFIGURATION:
            raise
        return None
