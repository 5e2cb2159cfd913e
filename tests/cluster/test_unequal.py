"""Unequal devices, full graphs, shared ports, and meshes that do not fill nodes evenly."""

import pytest

from irc.cluster.graph import Edge, Graph
from irc.cluster.load import find_cluster, parse_cluster
from irc.cluster.topology import Cluster, Device, Link
from irc.dialects.placement import Mesh

FAST = Device("fast", {"f32": 2e12, "bf16": 8e12}, 2e12, 80, 1e-6)
SMALL = Device("small", {"f32": 1e12, "bf16": 4e12}, 1e12, 40, 2e-6)
NODE = Link(4, 1e-6, 10e9)


def test_an_even_split_runs_at_the_slowest_device_that_it_uses() -> None:
    cluster = Cluster("mixed", SMALL, (NODE,), ((FAST, 2), (SMALL, 2)))
    assert cluster.fit(Mesh.parse("t=2")).device == FAST
    both = cluster.fit(Mesh.parse("t=4")).device
    assert (both.flops("bf16"), both.memory_bytes, both.launch_s) == (4e12, 40, 2e-6)


def test_devices_and_links_must_agree_in_number() -> None:
    with pytest.raises(ValueError, match="3 devices, and links for 4"):
        Cluster("mixed", SMALL, (NODE,), ((FAST, 2), (SMALL, 1)))


def test_groups_that_share_one_port_divide_it() -> None:
    """One 24 GB/s card a node of 8: eight groups of one rank a node get 3 GB/s each (T-19)."""
    shared = Link(16, 2e-6, 100e9, shared_bytes_per_s=24e9)
    cluster = Cluster("c", FAST, (Link(8, 1e-6, 300e9), shared))
    speeds = {
        text: cluster.axis_link(Mesh.parse(text), "d").bytes_per_s / 1e9
        for text in ("d=2,t=8", "d=4,t=4", "d=16")
    }
    assert speeds == pytest.approx({"d=2,t=8": 3, "d=4,t=4": 6, "d=16": 24})


def test_a_pair_does_not_reach_what_eight_reach_on_a_full_mesh_of_wires() -> None:
    cluster = find_cluster("8xMI300X")
    pair, four, eight = (
        cluster.axis_link(Mesh.of({"t": n}), "t").bytes_per_s / 1e9 for n in (2, 4, 8)
    )
    assert (pair, four, eight) == pytest.approx((47.7, 143.1, 313))


def test_an_axis_that_straddles_nodes_is_priced_by_its_worst_group() -> None:
    """Of t=3 on nodes of 8, ranks 6, 7 and 8 are on two nodes: with one port between them."""
    cluster = find_cluster("3x8xH100")
    straddles = cluster.axis_link(Mesh.parse("d=8,t=3"), "t")
    port = cluster.links[1].bytes_per_s
    assert straddles.bytes_per_s == port
    assert len(straddles.hops) == 1
    assert not straddles.hops[0].tree
    inside = cluster.axis_link(Mesh.parse("d=2,t=3"), "t")
    assert inside.bytes_per_s == cluster.links[0].bytes_per_s


def test_a_graph_prices_what_crosses_a_shared_wire() -> None:
    # Two nodes of two devices; one wire of 4 GB/s joins their switches.
    edges = [Edge((i, f"s{i // 2}"), 1e-6, 10e9) for i in range(4)]
    cluster = Cluster("g", FAST, graph=Graph((*edges, Edge(("s0", "s1"), 5e-6, 4e9))))
    mesh = Mesh.parse("d=2,t=2")
    across, inside = (cluster.axis_link(mesh, axis) for axis in ("d", "t"))
    assert inside.bytes_per_s == 10e9
    assert across.bytes_per_s == 2e9  # both groups cross at a time
    assert across.latency_s == pytest.approx(7e-6)
    assert cluster.num_devices == 4


def test_a_graph_of_a_star_is_a_level() -> None:
    star = Cluster("g", FAST, graph=Graph(tuple(Edge((i, "s"), 5e-7, 10e9) for i in range(4))))
    level = Cluster("l", FAST, (Link(4, 1e-6, 10e9),))
    for text in ("t=4", "d=2,t=2", "t=3"):
        mesh = Mesh.parse(text)
        for axis in mesh.names:
            a, b = (cluster.axis_link(mesh, axis) for cluster in (star, level))
            assert a.bytes_per_s == pytest.approx(b.bytes_per_s)
            assert a.latency_s == pytest.approx(b.latency_s)


@pytest.mark.parametrize(
    ("edges", "said"),
    [
        (((0, "s"), (2, "s")), "without gaps"),
        (((0, 1), (2, 3)), "without a path"),
        ((("a", "b"),), "without gaps"),
    ],
)
def test_a_broken_graph_is_refused(edges: tuple[tuple[int | str, int | str]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Graph(tuple(Edge(ends, 1e-6, 1e9) for ends in edges))


def test_unequal_devices_and_a_graph_come_from_a_file() -> None:
    text = """
    [[device]]
    name = "a"
    peak_tflops = { f32 = 2 }
    memory_gb = 80
    memory_gb_per_s = 1000
    count = 1
    [[device]]
    name = "b"
    peak_tflops = { f32 = 1 }
    memory_gb = 96
    memory_gb_per_s = 2000
    count = 1
    [graph]
    launch_us = 3
    [[edge]]
    between = [0, "switch 1"]
    gb_per_s = 10
    latency_us = 1
    [[edge]]
    between = [1, "switch 1"]
    gb_per_s = 5
    latency_us = 1
    """
    cluster = parse_cluster(text, "two.toml")
    device = cluster.fit(Mesh.parse("t=2")).device
    assert (device.name, device.flops("f32"), device.bytes_per_s) == ("a + b", 1e12, 1e12)
    link = cluster.axis_link(Mesh.parse("t=2"), "t")
    assert (link.bytes_per_s, link.launch_s) == (5e9, pytest.approx(3e-6))
