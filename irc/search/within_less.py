"""The best plan once more, within less than it holds: no budget gives a faster plan than none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from irc.errors import IrcError
from irc.search.configurations import Configuration, can_divide, stored_split, tighter
from irc.search.judge import OF_CONFIGURATION, Judged
from irc.search.tried import Left
from irc.search.worth import PRICE_ERROR

if TYPE_CHECKING:
    from irc.search.trials import Trials


def plan_tighter(trials: Trials, best: Judged | None) -> None:
    """Plan the best within less than it holds.

    Where all parameters in parts are no faster, neither are some of them; but for a layout that
    divides matrices in another way as well, which may take longer for that alone.

    Args:
        trials: what was tried.
        best: of it; None for nothing.
    """
    if best is None or best.verdict is None:
        return
    own = best.configuration
    split = stored_split(own) if trials.is_training else None
    if split is not None:
        parts = _whole(trials, split)
        copies = split.layout.replace("fsdp", "ddp")
        is_alike = own.mesh.names == ("data",) or own.layout == copies
        if is_alike and parts.verdict is not None and trials.cost(parts) > trials.cost(best):
            return
    if trials.is_training and trials.judge.in_pieces():
        # As a search within a budget has it, without the long search that a budget is.
        within = replace(own, in_parts=1) if can_divide(own) else None
    else:
        within = tighter(own, best.verdict.num_bytes)
    if within is not None and not _is_behind(trials, within, best.verdict.step_s):
        _whole(trials, within)


def _is_behind(trials: Trials, own: Configuration, best_s: float) -> bool:
    """Whether pieces say that it is slower; of one stage they take as long as a whole plan."""
    if own.pipe == 1 or not trials.judge.in_pieces():
        return False
    if trials.limits.objective not in ("throughput", "latency"):
        return False
    try:
        priced = trials.judge.price(own)
        least_s = 0.0 if priced is None else priced.step_s
    except IrcError as error:
        if error.code not in OF_CONFIGURATION:
            raise
        # Within the memory it takes as long at least as where it may hold anything.
        least_s = trials.judge.least_s(own, is_fitted=False)
    if least_s * (1 - PRICE_ERROR) <= best_s:
        return False
    trials.left[own] = Left(least_s, is_bound=True)
    return True


def _whole(trials: Trials, configuration: Configuration) -> Judged:
    known = trials.judged.get(configuration)
    return trials.plan(configuration) if known is None or known.is_priced else known
