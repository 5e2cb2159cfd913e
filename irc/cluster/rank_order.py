"""Which rank runs on which device of a cluster whose wires differ: an order of the devices.

Ranks of a mesh are laid out row-major on devices. Where wires are of several speeds, another order
of the devices may be faster: neighbours on the axis that sends most get the fast wires, and the
pipeline is cut where a wire is slow. What an order costs is the sum over axes of what its most
loaded wire takes while all groups of the axis send around their rings, or along their pipelines.

The search climbs: of all swaps of two devices, or of two blocks of ranks, the best one is done
until none helps; it begins at several orders, the same ones each time. (Mapping a traffic matrix
onto a matrix of speeds is the quadratic assignment problem, which nothing fast solves exactly.)
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise

from irc.cluster.device import Device
from irc.cluster.graph import Edge, Graph
from irc.cluster.topology import Cluster
from irc.dialects.placement import Mesh
from irc.errors import IrcError

PIPE = "pipe"
"""The axis whose ranks send along a line, and not around a ring."""
STARTS = 24
"""Orders that the search begins at."""
MOST_PRICED = 60_000
"""Orders that are priced at most; whoever begins last may be cut short."""


@dataclass(frozen=True)
class OrderCost:
    """What orders of a graph's devices cost for the traffic of a mesh.

    Attributes:
        graph: the wires.
        mesh: whose ranks are ordered.
        sent_bytes: by axis, what a rank sends to its neighbour in a step.
    """

    graph: Graph
    mesh: Mesh
    sent_bytes: Mapping[str, float]

    @cached_property
    def _flows(self) -> list[tuple[float, list[tuple[int, int]]]]:
        """By axis, the bytes and the pairs of ranks that send."""
        flows: list[tuple[float, list[tuple[int, int]]]] = []
        for axis, size in self.mesh.axes:
            pairs = [pair for group in self.mesh.groups(axis) for pair in pairwise(group)]
            if axis != PIPE and size > 2:
                pairs += [(group[-1], group[0]) for group in self.mesh.groups(axis)]
            # Around a ring of two each sends to the other, as both ways of a pipeline do.
            if size == 2 or axis == PIPE:
                pairs += [(other, one) for one, other in pairs]
            if size > 1 and (count := self.sent_bytes.get(axis, 0.0)):
                flows.append((count, pairs))
        return flows

    @cached_property
    def _paths(self) -> dict[tuple[int, int], tuple[tuple[int, float], ...]]:
        """By pair of devices, the wires between them with the seconds of a byte on each."""
        speeds: dict[object, tuple[int, float]] = {}
        for edge in self.graph.edges:
            for ends in (edge.ends, edge.ends[::-1]):
                speeds[ends] = len(speeds), 1 / edge.bytes_per_s
        devices = range(self.graph.num_devices)
        return {
            (one, other): tuple(speeds[wire] for wire in self.graph.path(one, other))
            for one in devices
            for other in devices
            if one != other
        }

    def of(self, order: Sequence[int]) -> tuple[float, float]:
        """Return the seconds of a step's traffic, and those of all wires together.

        The second tells orders apart whose worst wires are equal.

        Args:
            order: by rank, its device.
        """
        paths, seconds, total = self._paths, 0.0, 0.0
        for count, pairs in self._flows:
            loads: dict[int, float] = {}
            for one, other in pairs:
                for wire, byte_s in paths[order[one], order[other]]:
                    loads[wire] = loads.get(wire, 0.0) + byte_s
            seconds += count * max(loads.values())
            total += count * sum(loads.values())
        return seconds, total


def best_order(cost: OrderCost, most: int = MOST_PRICED) -> tuple[int, ...]:
    """Return by rank the device that it runs on, so that traffic takes the least time found.

    Args:
        cost: of orders.
        most: orders that are priced.

    >>> wires = [((0, 2), 100e9), ((1, 3), 100e9), ((0, 1), 1e9), ((2, 3), 1e9)]
    >>> graph = Graph(tuple(Edge(ends, 1e-6, speed) for ends, speed in wires))
    >>> best_order(OrderCost(graph, Mesh.parse("pipe=2,tensor=2"), {"pipe": 1e6, "tensor": 1e9}))
    (3, 1, 2, 0)
    """
    first = tuple(range(cost.mesh.num_ranks))
    # A mesh of fewer ranks leaves devices over, which stand behind.
    rest = tuple(range(len(first), cost.graph.num_devices))
    best, least, priced = (*first, *rest), cost.of(first), 1
    for start in _starts(cost.graph.num_devices):
        order, value, more = _climbed(cost, start, most - priced)
        priced += more
        if _is_less(value, least):
            best, least = tuple(order), value
        if priced >= most:
            break
    return best[: len(first)]


def _starts(devices: int) -> Iterator[list[int]]:
    """Yield the order of the devices as it is, then some that are the same each time."""
    yield [*range(devices)]
    drawn = random.Random(0)
    for _ in range(STARTS - 1):
        yield drawn.sample(range(devices), devices)


def _climbed(
    cost: OrderCost, start: Sequence[int], most: int
) -> tuple[list[int], tuple[float, float], int]:
    """Return what swaps make of an order, what it costs, and how many orders were priced."""
    order, ranks = [*start], cost.mesh.num_ranks
    value, priced, blocks = cost.of(order), 1, _blocks(cost.mesh)
    while True:
        best, least = order, value
        for size in blocks:
            last = len(order) if size == 1 else ranks
            for i in range(0, ranks, size):
                for j in range(i + size, last - size + 1, size):
                    other = [*order]
                    other[i : i + size], other[j : j + size] = (
                        order[j : j + size],
                        order[i : i + size],
                    )
                    priced += 1
                    if _is_less(own := cost.of(other), least):
                        best, least = other, own
        if best is order or priced >= most:
            return order, value, priced
        order, value = best, least


def _is_less(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Return whether an order costs less; sums of the same numbers differ in last digits."""
    if not math.isclose(one[0], other[0], rel_tol=1e-9):
        return one[0] < other[0]
    return one[1] < other[1] * (1 - 1e-9)


def _blocks(mesh: Mesh) -> list[int]:
    """Return how many ranks are swapped at once: one, and those of the inner axes together."""
    sizes, inner = [1], 1
    for _, size in reversed(mesh.axes):
        inner *= size
        if sizes[-1] < inner < mesh.num_ranks:
            sizes.append(inner)
    return sizes


def in_order(cluster: Cluster, order: Sequence[int]) -> Cluster:
    """Return a cluster whose first device is the first one of an order, and so on.

    Args:
        cluster: of a graph.
        order: of some of its devices; the others come behind them.
    """
    graph = require_graph(cluster)
    every = [*order, *(d for d in range(graph.num_devices) if d not in set(order))]
    place = {device: i for i, device in enumerate(every)}
    edges = [
        Edge(
            tuple(place[end] if isinstance(end, int) else end for end in edge.ends),  # type: ignore[arg-type]  # as many
            edge.latency_s,
            edge.bytes_per_s,
        )
        for edge in graph.edges
    ]
    kinds = [device for device, count in cluster.unequal for _ in range(count)]
    runs: list[tuple[Device, int]] = []
    for _, same in groupby((kinds[device] for device in every if kinds), key=id):
        own = [*same]
        runs.append((own[0], len(own)))
    return replace(cluster, graph=replace(graph, edges=tuple(edges)), unequal=tuple(runs))


def require_graph(cluster: Cluster) -> Graph:
    """Return the graph of a cluster.

    Raises:
        IrcError: ``option-value`` for a cluster of levels.
    """
    if cluster.graph is None:
        raise IrcError(
            "option-value",
            f"cluster '{cluster.name}' is of levels, in which devices of a group are alike",
            because="the order of the mesh's axes says who is near whom: the last is the nearest",
            help="describe its wires one by one ([graph] and [[edge]]: irc cluster show --example)",
        )
    return cluster.graph
