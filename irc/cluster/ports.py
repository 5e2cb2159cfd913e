"""What a device's ports carry at a time: transfers of one kind share a port.

A device has one port to the links of its node, one to the network and one to its host, whatever
number of mesh axes, channels of a pipeline and moves goes over it. Two transfers over one port have
half of it each (a port carries either direction at its full speed), and compute and the ports slow
each other down by the device's table (:mod:`irc.cluster.interference`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from irc.cluster.interference import NO_INTERFERENCE, Interference

COMPUTE = "compute"
OUT, IN = " out", " in"
"""Behind a kind: a transfer that only leaves the device, or only reaches it."""


def base_of(kind: str) -> str:
    """Return the port of a kind, whichever direction it has.

    >>> base_of("nic out"), base_of("link")
    ('nic', 'link')
    """
    return kind.removesuffix(OUT).removesuffix(IN)


@dataclass(frozen=True)
class Ports:
    """A device: compute, and ports that are shared.

    Attributes:
        interference: how much different kinds slow each other down.

    >>> rates = Ports().rates({"nic": 2, "link": 1, "compute": 1})
    >>> rates["nic"], rates["link"], rates["compute"]
    (0.5, 1.0, 1.0)
    >>> Ports().rates({"nic": 1, "nic out": 1, "nic in": 1})["nic in"]
    0.5
    """

    interference: Interference = NO_INTERFERENCE

    def rates(self, running: Mapping[str, float]) -> Mapping[str, float]:
        """Return how fast each of some kinds gets on, relative to alone.

        Args:
            running: how many of each kind run: ``compute``, a port (``link``, ``nic``, ``d2h``,
                ``h2d``) in both directions as a ring uses it, or in one.
        """
        beside = self.interference.rates(frozenset(map(base_of, running)))
        return {kind: beside[base_of(kind)] / _sharing(kind, running) for kind in running}


def _sharing(kind: str, running: Mapping[str, float]) -> float:
    """Return how many transfers there are in the fuller direction that a kind uses."""
    base = base_of(kind)
    if base == COMPUTE:
        return 1.0
    ways = (OUT, IN) if kind == base else (kind.removeprefix(base),)
    both = running.get(base, 0.0)
    return max(1.0, *(both + running.get(f"{base}{way}", 0.0) for way in ways))
