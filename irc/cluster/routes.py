"""Paths through a graph of devices and switches, and how much runs over each wire.

Devices that hang on one switch by one wire share all paths from there: the switch is their *gate*
(that of any other device is itself). Paths are looked for once for each gate, and traffic is
counted by pairs of gates, so thousands of devices on some hundred switches are as many pairs as
the switches have.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from irc.cluster.graph import Edge

Node: TypeAlias = int | str
"""A device (integers) or a switch (names)."""

Wire: TypeAlias = tuple[Node, Node]
"""A direction of an edge."""


class Routes:
    """The paths of least latency; of several, the one that is seen first.

    Attributes:
        wires: by node, the edges to its neighbours.
    """

    def __init__(self, edges: Iterable[Edge]) -> None:
        self.wires: dict[Node, dict[Node, Edge]] = {}
        for edge in edges:
            one, other = edge.ends
            self.wires.setdefault(one, {})[other] = edge
            self.wires.setdefault(other, {})[one] = edge
        self._trees: dict[Node, dict[Node, tuple[Node, float]]] = {}

    @cached_property
    def is_connected(self) -> bool:
        """Whether a path joins any two nodes."""
        inner = sum(1 for node in self.wires if self.gate(node) == node)
        return len(self._tree(self.gate(next(iter(self.wires))))) == inner

    def gate(self, node: Node) -> Node:
        """Return the switch that a device hangs on by one wire, of any other node itself."""
        neighbours = self.wires[node]
        if isinstance(node, int) and len(neighbours) == 1:
            (neighbour,) = neighbours
            return neighbour if isinstance(neighbour, str) else node
        return node

    def path(self, source: Node, target: Node) -> tuple[Wire, ...]:
        """Return the wires from one node to another."""
        start, end = self.gate(source), self.gate(target)
        if source == target:
            return ()
        tree, node = self._tree(start), end
        wires: list[Wire] = [] if end == target else [(end, target)]
        while node != start:
            before, _ = tree[node]
            wires.append((before, node))
            node = before
        return (*([] if start == source else [(source, start)]), *reversed(wires))

    def latency(self, path: Iterable[Wire]) -> float:
        """Return the latency of a path."""
        return sum(self.wires[one][other].latency_s for one, other in path)

    def inner_loads(self, flows: Mapping[tuple[Node, Node], int]) -> Counter[Wire]:
        """Return how often each wire is used by flows between gates."""
        targets: dict[Node, dict[Node, int]] = {}
        for (source, target), count in flows.items():
            targets.setdefault(source, {})[target] = count
        loads: Counter[Wire] = Counter()
        for source, coming in targets.items():
            # From the far ends to the source: what arrives at a node came over the one before it.
            for node, (before, _) in reversed(self._tree(source).items()):
                if node != source and (count := coming.get(node)):
                    loads[before, node] += count
                    coming[before] = coming.get(before, 0) + count
        return loads

    def _tree(self, root: Node) -> dict[Node, tuple[Node, float]]:
        """Return by node the one before it on its path from a gate, and the path's latency.

        Nodes come in the order of their latency (Dijkstra's algorithm); devices with another gate
        than themselves are left out.
        """
        if root in self._trees:
            return self._trees[root]
        tree: dict[Node, tuple[Node, float]] = {}
        queue: list[tuple[float, int, Node, Node]] = [(0.0, 0, root, root)]
        seen = 0
        while queue:
            latency, _, node, before = heapq.heappop(queue)
            if node in tree:
                continue
            tree[node] = before, latency
            for other, edge in self.wires[node].items():
                if other not in tree and self.gate(other) == other:
                    seen += 1
                    heapq.heappush(queue, (latency + edge.latency_s, seen, other, node))
        self._trees[root] = tree
        return tree
