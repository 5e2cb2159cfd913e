"""How far a search goes, and what it looks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Objective: TypeAlias = Literal["throughput", "latency", "memory", "cost"]
OBJECTIVES: tuple[Objective, ...] = ("throughput", "latency", "memory", "cost")

MOST_JUDGED = 20
"""So many plans are made of steps on one number of devices."""


@dataclass(frozen=True)
class Limits:
    """How far a search goes.

    Attributes:
        objective: ``throughput`` is the shortest step on all devices, ``latency`` that on any
            number of them, ``memory`` the fewest bytes on a device, ``cost`` the least money for a
            step, on any number of them: without prices, the fewest seconds of devices.
        time_limit_s: no plan is begun after so long; None: as long as it takes.
        most_judged: plans on one number of devices.
        keeps_interrupted: an interrupt ends the search with the best plan so far, where there is
            one; otherwise it is raised.
        price_per_hour: of a device, in the place of what the cluster states.
        micro_batches: of a step, where the user fixes them.
    """

    objective: Objective = "throughput"
    time_limit_s: float | None = None
    most_judged: int = MOST_JUDGED
    keeps_interrupted: bool = False
    price_per_hour: float | None = None
    micro_batches: int | None = None
