"""The best plan once more, within less than it holds: no budget gives a faster plan than none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from irc.search.configurations import Configuration, can_divide, stored_split, tighter
from irc.search.judge import Judged

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
    if within is not None:
        _whole(trials, within)


def _whole(trials: Trials, configuration: Configuration) -> Judged:
    known = trials.judged.get(configuration)
    return trials.plan(configuration) if known is None or known.is_priced else known
