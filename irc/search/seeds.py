"""Where a search begins: steps with stages or micro-batches, put in order by the closed form."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from irc.dialects.placement import Mesh
from irc.search.configurations import FULL, Configuration, Outline

if TYPE_CHECKING:
    from irc.search.trials import Trials

SEEDS = 4
"""So many configurations with stages or micro-batches are tried in the order of the estimates."""

HOPELESS = 2.0
"""An estimate of so many times the best one is not followed."""


def seeds(trials: Trials, outline: Outline, devices: int) -> list[Configuration]:
    """Return the best of each mesh by the closed form, in order."""
    best: dict[Mesh, tuple[float, Configuration]] = {}
    for each in trials.configurations(outline, devices):
        trials.considered += 1
        if trials.objection(each):
            continue
        seconds = trials.estimate(outline, each)
        if each.mesh not in best or seconds < best[each.mesh][0]:
            best[each.mesh] = seconds, each
    order = sorted(best.values(), key=lambda own: (own[0], str(own[1])))
    return [each for seconds, each in order[:SEEDS] if seconds <= HOPELESS * order[0][0]]


def smallest(trials: Trials, outline: Outline, devices: int) -> list[Configuration]:
    """Return of each mesh what holds least: all recomputed, in the most micro-batches.

    Where it fits, its neighbours have fewer.
    """
    most: dict[Mesh, Configuration] = {}
    for each in trials.configurations(outline, devices):
        known = most.setdefault(each.mesh, each)
        if each.micro_batches > known.micro_batches:
            most[each.mesh] = each
    every = [replace(each, recompute=FULL) for each in most.values()]
    tried = [each.mesh for each, own in trials.judged.items() if own.error]
    # First those meshes which the closed form likes.
    return sorted(every, key=lambda own: (own.mesh not in tried, str(own)))
