"""A cluster as a full graph: wires between devices and switches, each with its own figures.

Devices are the integers from 0; any other name is a switch. Ranks send along the path with the
least latency. A wire that several ranks use at a time is divided among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

from irc.cluster.links import AxisLink, Collective, Hop
from irc.dialects.placement import Mesh

Node: TypeAlias = int | str
Wire: TypeAlias = tuple[Node, Node]
"""A direction of an edge."""


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
        if not _networkx().is_connected(self._network):
            raise ValueError("the wires leave some devices without a path to the others")

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return 1 + max(end for edge in self.edges for end in edge.ends if isinstance(end, int))

    @cached_property
    def _network(self) -> Any:
        made: Any = _networkx().Graph()
        for edge in self.edges:
            made.add_edge(*edge.ends, latency=edge.latency_s, speed=edge.bytes_per_s)
        return made

    @cached_property
    def _paths(self) -> dict[Wire, tuple[Wire, ...]]:
        return {}

    def path(self, source: int, target: int) -> tuple[Wire, ...]:
        """Return the wires from one device to another.

        >>> star = Graph(tuple(Edge((i, "switch"), 1e-6, 1e9) for i in range(3)))
        >>> star.path(0, 2)
        ((0, 'switch'), ('switch', 2))
        """
        if (source, target) not in self._paths:
            nodes: list[Node] = _networkx().shortest_path(
                self._network, source, target, weight="latency"
            )
            self._paths[source, target] = tuple(pairwise(nodes))
        return self._paths[source, target]

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
        ring = [(group[i - 1], rank) for group in groups for i, rank in enumerate(group)]
        spread = [(a, b) for group in groups for a in group for b in group if a != b]
        speed = max(self._speed(ring), self._speed(spread, 1 / (ranks - 1)))
        latency = max(self._latency(pair) for pair in ring)
        hop = Hop(ranks, speed, latency, self.launch_s)
        return AxisLink(ranks, latency, speed, self.launch_s, self.emulated, (hop,))

    def _speed(self, pairs: Sequence[tuple[int, int]], weight: float = 1.0) -> float:
        """Return what a rank sends in all while all pairs send ``weight`` of it at a time."""
        load = Counter(wire for pair in pairs for wire in self.path(*pair))
        return min(self._of(wire, "speed") / (uses * weight) for wire, uses in load.items())

    def _latency(self, pair: tuple[int, int]) -> float:
        return sum(self._of(wire, "latency") for wire in self.path(*pair))

    def _of(self, wire: Wire, key: str) -> float:
        return self._network.edges[wire][key]


def _networkx() -> Any:
    # Imported late: a graph is rare, and the import takes a quarter of a second.
    import networkx

    return networkx
