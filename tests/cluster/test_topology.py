"""Clusters: what a mesh axis runs over."""

import pytest

from irc.cluster.presets import PRESETS
from irc.cluster.topology import Cluster, Link
from irc.dialects.placement import Mesh
from irc.errors import IrcError

SWITCHED = [n for n, c in PRESETS.items() if not any(link.peer_bytes_per_s for link in c.links)]


@pytest.mark.parametrize("name", SWITCHED)
def test_inner_axes_run_over_links_that_are_no_slower(name: str) -> None:
    cluster = PRESETS[name]
    mesh = Mesh.of({"outer": max(1, cluster.num_devices // 2), "inner": 2})
    outer, inner = (cluster.axis_link(mesh, axis) for axis in mesh.names)
    assert inner.bytes_per_s >= outer.bytes_per_s
    assert inner.latency_s <= outer.latency_s


def test_an_axis_that_leaves_the_node_shares_its_ports_with_the_other_groups() -> None:
    two_nodes = PRESETS["2x8xH100"]
    port = two_nodes.links[1].bytes_per_s
    speeds = {
        text: two_nodes.axis_link(Mesh.parse(text), "d").bytes_per_s
        for text in ("d=2,t=8", "d=4,t=4", "d=8,t=2", "d=16")
    }
    assert speeds == {
        "d=2,t=8": port,
        "d=4,t=4": 2 * port,
        "d=8,t=2": 4 * port,
        "d=16": 8 * port,
    }


def test_a_ring_is_not_faster_than_the_links_inside_the_node() -> None:
    cluster = PRESETS["2x8xH100"]
    slow = Cluster("c", cluster.device, (Link(8, 1e-6, 1e9), Link(16, 1e-6, 50e9)))
    assert slow.axis_link(Mesh.parse("d=16"), "d").bytes_per_s == 1e9


def test_ranks_of_a_host_share_its_cores_and_memory() -> None:
    host = PRESETS["this-host"]
    four = host.fit(Mesh.parse("data=4")).device
    assert four.flops("f32") == pytest.approx(host.device.flops("f32") * host.device.cores / 4)
    assert host.alone(Mesh.parse("data=4")).device.flops("f32") == host.device.flops("f32")
    assert four.memory_bytes == host.device.memory_bytes // 4
    one = host.fit(Mesh.parse("data=1")).device
    # A process that has the host to itself computes with a thread on each core.
    assert one.flops("f32") == host.device.flops("f32") * host.device.cores


def test_a_mesh_larger_than_the_cluster_is_refused() -> None:
    with pytest.raises(IrcError, match=r"16 ranks.*8 devices"):
        PRESETS["8xH100"].fit(Mesh.parse("data=4,tensor=4"))


@pytest.mark.parametrize("levels", [(), (3, 8), (8, 4)])
def test_levels_hold_whole_groups(levels: tuple[int, ...]) -> None:
    links = tuple(Link(n, 1e-6, 1e9) for n in levels)
    with pytest.raises(ValueError, match="link level"):
        Cluster("c", PRESETS["8xH100"].device, links)
