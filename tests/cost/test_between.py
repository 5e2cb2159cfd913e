"""What channels take: against permutes along an axis, graphs that are levels, and by hand."""

from __future__ import annotations

import pytest

from irc.cluster.device import Device
from irc.cluster.graph import Edge, Graph
from irc.cluster.links import Link
from irc.cluster.presets import PRESETS
from irc.cluster.topology import Cluster
from irc.cost.between import crossing
from irc.cost.permute import permute_s
from irc.dialects.placement import AxisPlacement, B, Mesh, Placement, Split
from irc.errors import IrcError
from irc.sharding.between import Channel, Side

FAST = Device("fast", {"f32": 1e12}, 1e12, 1 << 36, 1e-6)


def channel(
    mesh: str, first: int, before: AxisPlacement, after: AxisPlacement, num_bytes: int = 1 << 20
) -> Channel:
    """A value on ranks from 0 with one placement on all axes, and from ``first`` with another."""
    grid = Mesh.parse(mesh)
    sides = [
        Side(
            Placement.in_mesh_order(tuple((name, placed) for name in grid.names)),
            grid,
            range(start, start + grid.num_ranks),
        )
        for start, placed in ((0, before), (first, after))
    ]
    return Channel((num_bytes,), "i8", *sides)


@pytest.mark.parametrize("name", ["2x8xH100", "2x8xA100", "2x8xMI300X", "2x8xB200"])
@pytest.mark.parametrize("num_bytes", [1 << 10, 1 << 20, 1 << 28])
def test_stages_on_neighbouring_nodes_are_a_permute_along_an_axis(
    name: str, num_bytes: int
) -> None:
    """Each of the 8 ranks of a node sends to its place on the next one."""
    cluster = PRESETS[name]
    cost = crossing(channel("tensor=8", 8, B, B, num_bytes), cluster)
    link = cluster.axis_link(Mesh.parse("pipe=2,tensor=8"), "pipe")
    assert sum(cost) == pytest.approx(permute_s([1, -1], link, num_bytes, 1e12))


def test_a_part_takes_its_part_of_the_time() -> None:
    cluster = PRESETS["2x8xH100"]
    whole = crossing(channel("tensor=8", 8, B, B, 1 << 30), cluster)
    parts = crossing(channel("tensor=8", 8, Split(0), Split(0), 1 << 30), cluster)
    assert parts.seconds == pytest.approx(whole.seconds / 8)
    assert parts.latency_s == whole.latency_s


def test_devices_that_share_a_port_have_it_together() -> None:
    """Four devices of a node send 1 MB each over one port of 1 GB/s, or over one of their own."""
    for shared, seconds in ((1e9, 4e-3), (0.0, 1e-3)):
        links = (Link(4, 1e-6, 100e9), Link(8, 2e-6, 1e9, 3e-6, shared_bytes_per_s=shared))
        cost = crossing(channel("t=4", 4, B, B, 10**6), Cluster("c", FAST, links))
        assert cost.seconds == pytest.approx(seconds)
        assert cost.latency_s == pytest.approx(5e-6)


def test_what_stays_takes_nothing() -> None:
    assert sum(crossing(channel("t=8", 0, B, B), PRESETS["8xH100"])) == 0.0
    assert sum(crossing(channel("t=8", 0, B, Split(0)), PRESETS["8xH100"])) == 0.0


def test_the_level_that_takes_longest_decides() -> None:
    """Ranks 0 to 3 have all, 2 to 5 need it: 4 and 5 are on another node than some holders."""
    links = (Link(4, 1e-6, 100e9), Link(8, 2e-6, 1e9))
    cost = crossing(channel("t=4", 2, B, B, 10**6), Cluster("c", FAST, links))
    assert cost.seconds == pytest.approx(1e-3)
    assert cost.latency_s == 2e-6
    inside = crossing(channel("t=2", 2, B, B, 10**6), Cluster("c", FAST, links))
    assert inside.seconds == pytest.approx(1e-5)


def test_a_graph_of_a_star_is_a_level() -> None:
    graph = Cluster("g", FAST, graph=Graph(tuple(Edge((i, "s"), 5e-7, 10e9) for i in range(8))))
    level = Cluster("l", FAST, (Link(8, 1e-6, 10e9),))
    for before, after in ((B, B), (Split(0), B), (B, Split(0)), (Split(0), Split(0))):
        costs = [crossing(channel("t=4", 4, before, after), each) for each in (graph, level)]
        assert sum(costs[0]) == pytest.approx(sum(costs[1]))


def test_a_wire_that_all_cross_is_shared() -> None:
    """Two nodes of two devices; one wire of 4 GB/s joins their switches."""
    edges = [Edge((i, f"s{i // 2}"), 1e-6, 10e9) for i in range(4)]
    graph = Graph((*edges, Edge(("s0", "s1"), 5e-6, 4e9)), launch_s=1e-6)
    cost = crossing(channel("t=2", 2, B, B, 10**6), Cluster("g", FAST, graph=graph))
    assert cost.seconds == pytest.approx(2e6 / 4e9)
    assert cost.latency_s == pytest.approx(8e-6)


def test_a_rank_without_a_device_is_refused() -> None:
    with pytest.raises(IrcError, match=r"there is a rank 8; cluster '8xH100' has 8 devices"):
        crossing(channel("t=1", 8, B, B), PRESETS["8xH100"])
