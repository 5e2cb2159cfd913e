"""A cluster as a full graph: wires between devices and switches, each with its own figures.

Devices are the integers from 0; any other name is a switch. Ranks send along the path with the
least latency. A wire that several ranks use at a time is divided among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations

from irc.cluster.links import AxisLink, Collective, Hop
from irc.cluster.routes import Node, Routes, Wire
from irc.dialects.placement import Mesh


@dataclass(frozen=True)
class Edge:
    """A wire, the same in both directions.

    Attributes:
        ends: devices (integers) or switches (names).
        latency_s: that it adds to a step.
        bytes_per_s: each way.
    """

    ends: tuple[Node, Node]
    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Graph:
    """Wires between devices.

    Invariants (checked): devices are numbered from 0 without gaps, and a path joins any two.

    Attributes:
        edges: the wires.
        launch_s: time that a collective takes whatever its size and its group.
        emulated: as of :class:`irc.cluster.links.Link`.
    """

    edges: tuple[Edge, ...]
    launch_s: float = 0.0
    emulated: frozenset[Collective] = frozenset()

    def __post_init__(self) -> None:
        devices = {end for edge in self.edges for end in edge.ends if isinstance(end, int)}
        if devices != set(range(len(devices))) or not devices:
            raise ValueError("the devices of the wires must be numbered 0, 1, 2, ... without gaps")
        if not self._routes.is_connected:
            raise ValueError("the wires leave some devices without a path to the others")

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return 1 + max(end for edge in self.edges for end in edge.ends if isinstance(end, int))

    @cached_property
    def _routes(self) -> Routes:
        return Routes(self.edges)

    def path(self, source: int, target: int) -> tuple[Wire, ...]:
        """Return the wires from one device to another.

        >>> star = Graph(tuple(Edge((i, "switch"), 1e-6, 1e9) for i in range(3)))
        >>> star.path(0, 2)
        ((0, 'switch'), ('switch', 2))
        """
        return self._routes.path(source, target)

    def axis_link(self, mesh: Mesh, axis: str) -> AxisLink:
        """Return what the collectives of an axis see while all its groups run them.

        The faster of two patterns: one ring through each group, or each rank sending to all others
        of its group at once (many rings: on a full mesh of wires it uses all of them).

        >>> pairs = [(i, j) for i in range(4) for j in range(i)]
        >>> full = Graph(tuple(Edge(pair, 1e-6, 1e9) for pair in pairs))
        >>> f"{full.axis_link(Mesh.parse('t=4'), 't').bytes_per_s / 1e9:.0f} GB/s"
        '3 GB/s'
        """
        ranks, groups = mesh.size(axis), mesh.groups(axis)
        if ranks == 1:
            return AxisLink(1, 0.0, max(e.bytes_per_s for e in self.edges), self.launch_s)
        speed = max(self._ring_speed(groups), self._spread_speed(groups))
        latency = max(self._ring_latencies(groups))
        hop = Hop(ranks, speed, latency, self.launch_s)
        return AxisLink(ranks, latency, speed, self.launch_s, self.emulated, (hop,))

    def _ring_speed(self, groups: Sequence[range]) -> float:
        """Return what a rank sends while each sends to the next one of its group."""
        flows = Counter(
            (self._routes.gate(group[i - 1]), self._routes.gate(rank))
            for group in groups
            for i, rank in enumerate(group)
        )
        return self._speed(groups, flows, 1, 1.0)

    def _spread_speed(self, groups: Sequence[range]) -> float:
        """Return what a rank sends in all while each sends to all others of its group."""
        others = len(groups[0]) - 1
        alike = Counter(
            frozenset(Counter(self._routes.gate(rank) for rank in group).items())
            for group in groups
        )
        flows: Counter[tuple[Node, Node]] = Counter()
        for gates, count in alike.items():
            for (source, senders), (target, receivers) in permutations(gates, 2):
                flows[source, target] += count * senders * receivers
        return self._speed(groups, flows, others, 1 / others)

    def _speed(
        self,
        groups: Sequence[range],
        flows: Counter[tuple[Node, Node]],
        each: int,
        weight: float,
    ) -> float:
        """Return what a rank sends in all.

        Args:
            groups: of ranks.
            flows: messages by pair of gates.
            each: messages that a rank sends, and as many that it receives.
            weight: of what a rank sends, the part that a message is.
        """
        loads = self._routes.inner_loads(flows)
        for rank in (rank for group in groups for rank in group):
            if (gate := self._routes.gate(rank)) != rank:
                loads[rank, gate] = loads[gate, rank] = each
        wires = self._routes.wires
        speeds = ((wires[one][other].bytes_per_s, n) for (one, other), n in loads.items())
        return min(speed / (uses * weight) for speed, uses in speeds)

    def _ring_latencies(self, groups: Sequence[range]) -> set[float]:
        """Return the latencies between neighbours of the rings."""
        pairs = ((group[i - 1], rank) for group in groups for i, rank in enumerate(group))
        return {self._routes.latency(self.path(*pair)) for pair in pairs}
