"""The pipeline whose order is worth a search: the fastest one, behind all other choices.

A search of an order takes as long as some prices or plans, and gains what ranks of a schedule with
a name idle: it is made once, of the pipeline that was the fastest without it.
"""

from __future__ import annotations

from dataclasses import replace

from irc.search.configurations import ORDERED, Configuration, can_search
from irc.search.trials import Trials

FAR = 1.5
"""A step so many times as long as the best one is not made the best by its order."""


def in_best_order(trials: Trials, devices: int) -> Configuration | None:
    """Return the fastest pipeline on so many devices with its order searched.

    None where there is no pipeline, where it is far behind, and where a search would take long.

    Args:
        trials: what was tried.
        devices: of the pipeline.
    """
    known = [own for own in trials.judged.values() if own.verdict and not own.objection]
    on_them = [own for own in known if own.configuration.mesh.num_ranks == devices]
    pipes = [
        own
        for own in on_them
        if own.configuration.pipe > 1
        and can_search(own.configuration)
        and not own.configuration.in_parts
        and not own.is_pinned
    ]
    if not pipes:
        return None
    best, first = min(pipes, key=trials.cost), min(on_them, key=trials.cost)
    if trials.cost(best)[1] > FAR * trials.cost(first)[1]:
        return None
    return replace(best.configuration, schedule=ORDERED)
