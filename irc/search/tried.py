"""What came of the configurations that a search tried, and which of them is the best."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from irc.cluster.topology import Cluster
from irc.cost.money import per_hour
from irc.search.configurations import Configuration
from irc.search.judge import OF_MEMORY, Judged
from irc.search.limits import Limits


@dataclass(frozen=True)
class Left:
    """Why a configuration was left alone.

    Attributes:
        seconds: of its step; 0 where it was for something else.
        is_bound: it takes so long at least, by the pieces that are known; else it seems to.
    """

    seconds: float
    is_bound: bool = False


class Tried:
    """What is known of each configuration.

    Attributes:
        cluster: the machines.
        limits: say what the best is.
        devices: the most that are used.
        judged: what came of each configuration.
    """

    cluster: Cluster
    limits: Limits
    devices: int
    judged: dict[Configuration, Judged]

    def is_short(self) -> bool:
        """Whether something did not fit into the memory."""
        return any(own.error and own.error.code in OF_MEMORY for own in self.judged.values())

    def is_unplanned(self, configuration: Configuration) -> bool:
        """Whether nothing is known of a configuration but a price."""
        known = self.judged.get(configuration)
        return known is None or known.is_priced

    def best(self) -> Judged | None:
        """Return the best of what was planned; while all are priced, of what was."""
        known = [each for each in self.judged.values() if each.verdict is not None]
        planned = [each for each in known if not each.is_priced]
        return min(planned or known, key=self.cost, default=None)

    def priced(self, devices: int) -> list[Judged]:
        """Return what was priced on so many devices, best first."""
        own = [each for each in self.judged.values() if each.is_priced and each.verdict]
        return sorted(
            (each for each in own if each.configuration.mesh.num_ranks == devices), key=self.cost
        )

    def fits(self, devices: int) -> bool:
        """Whether something on so many devices has a plan, or a price."""
        every = self.judged.values()
        return any(own.verdict and own.configuration.mesh.num_ranks == devices for own in every)

    def is_planned(self) -> bool:
        """Whether something has a whole plan."""
        return any(own.verdict and not own.is_priced for own in self.judged.values())

    def cost(self, judged: Judged) -> tuple[bool, float, int, int]:
        """Return what is least for the best."""
        own, wrong = judged.verdict, judged.objection != ""
        devices, count = judged.configuration.mesh.num_ranks, judged.configuration.micro_batches
        if own is None:
            return True, inf, 0, 0
        match self.limits.objective:
            case "memory":
                return wrong, float(own.num_bytes), devices, count
            case "cost":
                return wrong, own.step_s * self._hourly(devices), devices, count
            case _:
                return wrong, own.step_s, devices, count

    def _hourly(self, devices: int) -> float:
        """Return what devices cost: money where all that there are have a price, or themselves."""
        price = self.limits.price_per_hour
        if per_hour(self.cluster, self.devices, price) is None:
            return devices
        return per_hour(self.cluster, devices, price) or devices
