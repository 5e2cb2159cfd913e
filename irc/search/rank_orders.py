"""Which devices the ranks of a configuration are on, where the wires of a cluster differ.

What a step sends over each axis is known about from its outline, as
:func:`irc.search.configurations.estimated_s` has it; which order of the devices serves that best is
for :mod:`irc.cluster.rank_order` to say. Everything else prices a mesh on the devices in order, so
that a configuration is planned and simulated on the cluster in the order that is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping

from irc.cluster.rank_order import OrderCost, best_order
from irc.cluster.topology import Cluster
from irc.dialects.placement import Mesh
from irc.search.configurations import PIPE, Configuration, Outline

MOST_PRICED = 4000
"""Orders that are priced for a mesh: a search asks for many meshes."""


def order_of(cluster: Cluster, outline: Outline, configuration: Configuration) -> tuple[int, ...]:
    """Return by rank the device that it is best on; empty where the order of devices does.

    Args:
        cluster: the machines; other than one of a graph whose wires differ has no order.
        outline: of the forward pass of the whole batch.
        configuration: of a step.
    """
    graph, mesh = cluster.graph, configuration.mesh
    if graph is None or not 1 < mesh.num_ranks <= graph.num_devices:
        return ()
    if len({(edge.latency_s, edge.bytes_per_s) for edge in graph.edges}) == 1:
        return ()
    cost = OrderCost(graph, mesh, sent_bytes(outline, mesh))
    plain = tuple(range(mesh.num_ranks))
    order = best_order(cost, MOST_PRICED)
    return order if cost.of(order) < cost.of(plain) else ()


def sent_bytes(outline: Outline, mesh: Mesh) -> Mapping[str, float]:
    """Return about what a rank sends to its neighbour on each axis in a step.

    Over ``data`` gradients are summed, over ``tensor`` and other axes inside of a layer the four
    results of a layer that are sums, and over ``pipe`` go what stages hand on.

    >>> small = Outline(1.0, "f32", 8.0, 16.0, layers=2, samples=4, launches=1)
    >>> dict(sent_bytes(small, Mesh.parse("pipe=2,data=2,tensor=2")))
    {'pipe': 8.0, 'data': 2.0, 'tensor': 32.0}
    """
    sizes = dict(mesh.axes)
    pipe, data = sizes.get(PIPE, 1), sizes.get("data", 1)
    matrices = mesh.num_ranks // (pipe * data)
    sent: dict[str, float] = {}
    for axis, size in mesh.axes:
        around = 2 * (size - 1) / size
        if axis == PIPE:
            sent[axis] = outline.boundary_bytes / data
        elif axis == "data":
            sent[axis] = around * outline.parameter_bytes / (pipe * matrices)
        else:
            sent[axis] = 4 * outline.layers / pipe * around * outline.boundary_bytes / data
    return sent
