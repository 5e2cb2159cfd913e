"""Rings, trees and hierarchies: by hand, and by the properties that a planner relies on."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irc.cluster.load import find_cluster
from irc.cluster.presets import KINDS
from irc.cluster.topology import COLLECTIVES, AxisLink, Cluster, Collective, Device, Fit, Hop, Link
from irc.cost.collectives import Line, chosen, collective_s, lines, seconds_of
from irc.dialects.placement import Mesh

COPY = 1e12
US, GB = 1e-6, 1e9
DEVICE = Device("d", {"f32": 1e12}, 1e12, 2**34, 0.0)
KIND = pytest.mark.parametrize("kind", COLLECTIVES)

INSIDE = Hop(4, 10 * GB, 1 * US, 0.0)
ACROSS = Hop(2, 1 * GB, 5 * US, 0.0, tree=True)
TWO_LEVELS = AxisLink(8, 5 * US, 4 * GB, 0.0, hops=(INSIDE, ACROSS))


def named(kind: Collective, link: AxisLink) -> dict[str, Line]:
    return {line.name: line for line in lines(kind, link, COPY)}


def test_a_ring_through_nodes_pays_the_slow_latency_once_per_node() -> None:
    # 7 steps, 1 of them between the two nodes; 4 ports of 1 GB/s leave each node.
    inside = Hop(4, 5 * GB, US, 0.0)
    link = AxisLink(8, 5 * US, 4 * GB, 0.0, hops=(inside, ACROSS))
    ring = named("all_gather", link)["ring"]
    assert ring.fixed_s == pytest.approx(6 * US + 5 * US)
    assert ring.s_per_byte == pytest.approx(7 / 8 / (4 * GB))


def test_a_hierarchical_all_reduce_is_the_sum_of_its_three_parts() -> None:
    n = 8 * 2**20
    inside, across = AxisLink(4, US, 10 * GB, 0.0), AxisLink(2, 5 * US, GB, 0.0)
    parts = (
        collective_s("reduce_scatter", inside, n, COPY)
        + collective_s("all_reduce", across, n / 4, COPY)
        + collective_s("all_gather", inside, n, COPY)
    )
    flat = AxisLink(8, 5 * US, 4 * GB, 0.0, hops=(INSIDE, Hop(2, GB, 5 * US, 0.0)))
    by_name = {line.name: line.seconds(n) for line in lines("all_reduce", flat, COPY)}
    assert by_name["hierarchical(ring)"] == pytest.approx(parts)


def test_trees_win_for_small_buffers_over_many_nodes_and_rings_for_large_ones() -> None:
    link = find_cluster("64x8xH100").axis_link(Mesh.parse("data=64,tensor=8"), "data")
    choices = lines("all_reduce", link, COPY)
    assert chosen(choices, 1024).name == "tree/LL"
    assert chosen(choices, 2**36).name.startswith("ring")
    assert chosen(choices, 1024).seconds(1024) < 64 * 2 * 2.7 * US / 4


def test_the_tree_is_not_taken_where_the_library_has_none() -> None:
    hop = Hop(8, GB, 5 * US, 0.0)
    assert set(named("all_reduce", AxisLink(8, 5 * US, GB, 0.0, hops=(hop,)))) == {"ring"}


def test_an_all_to_all_is_limited_by_each_ranks_own_port() -> None:
    # Half of each buffer leaves the node, over one port of 1 GB/s a rank: a ring has four.
    n = 2**30
    assert collective_s("all_to_all", TWO_LEVELS, n, COPY) == pytest.approx(n / 2 / GB, rel=1e-3)


def test_protocols_are_those_that_all_levels_speak() -> None:
    link = find_cluster("2x8xH100").axis_link(Mesh.parse("d=16"), "d")
    small, large = (chosen(lines("all_gather", link, COPY), n).name for n in (1024, 2**30))
    assert small.endswith("LL")
    assert "Simple" in large or "hierarchical" in large


@KIND
def test_measured_figures_stand_for_those_of_the_level(kind: Collective) -> None:
    fits = {kind: Fit(1e-3, 1e-4, 1e6)}
    cluster = Cluster("c", DEVICE, (Link(4, US, GB, fits=fits),))
    link = cluster.axis_link(Mesh.parse("d=4"), "d")
    steps = 6 if kind == "all_reduce" else 3
    assert collective_s(kind, link, 4000, COPY) == pytest.approx(1e-3 + steps * (1e-4 + 1e-3))
    # Only of a group that stays inside the level that was measured.
    two = Cluster("c", DEVICE, (Link(4, US, GB, fits=fits), Link(8, US, GB)))
    assert collective_s(kind, two.axis_link(Mesh.parse("d=8"), "d"), 4000, COPY) < 1e-4


sizes = st.integers(0, 2**34)
speeds = st.floats(1e6, 1e12)
latencies = st.floats(0, 1e-3)
link_levels = st.builds(
    Link,
    devices=st.just(0),
    latency_s=latencies,
    bytes_per_s=speeds,
    launch_s=latencies,
    tree=st.booleans(),
    shared_bytes_per_s=st.one_of(st.just(0.0), speeds),
)


@st.composite
def clusters(draw: st.DrawFn, fans: int = 3) -> Cluster:
    size, levels = 1, []
    for _ in range(draw(st.integers(1, fans))):
        size *= draw(st.sampled_from([2, 3, 4, 8]))
        levels.append(replace(draw(link_levels), devices=size))
    return Cluster("c", DEVICE, tuple(levels))


@given(clusters(), st.sampled_from(COLLECTIVES), sizes, sizes)
@settings(max_examples=300, deadline=None)
def test_no_cluster_makes_a_larger_collective_cheaper(
    cluster: Cluster, kind: Collective, n: int, m: int
) -> None:
    link = cluster.axis_link(Mesh.of({"all": cluster.num_devices}), "all")
    small, large = (collective_s(kind, link, size, COPY) for size in sorted((n, m)))
    assert 0 <= small <= large * (1 + 1e-12)


@given(link_levels, st.sampled_from(COLLECTIVES), sizes)
@settings(max_examples=100, deadline=None)
def test_more_ranks_on_a_level_never_cost_less(link: Link, kind: Collective, n: int) -> None:
    cluster = Cluster("c", DEVICE, (replace(link, devices=64, shared_bytes_per_s=0.0),))
    times = [
        collective_s(kind, cluster.axis_link(Mesh.of({"d": p}), "d"), n, COPY)
        for p in (1, 2, 3, 5, 8, 16, 64)
    ]
    assert all(a <= b * (1 + 1e-9) for a, b in pairwise(times)), times


@given(clusters(2), st.sampled_from(COLLECTIVES), sizes)
@settings(max_examples=100, deadline=None)
def test_more_nodes_never_cost_less(cluster: Cluster, kind: Collective, n: int) -> None:
    node, outer = cluster.num_devices, Link(0, 1e-6, 1e9, tree=True)
    times: list[float] = []
    for nodes in (2, 3, 4, 7, 16):
        links = (*cluster.links, replace(outer, devices=node * nodes))
        whole = Cluster("c", DEVICE, links)
        link = whole.axis_link(Mesh.of({"all": node * nodes}), "all")
        times.append(collective_s(kind, link, n, COPY))
    assert all(a <= b * (1 + 1e-9) for a, b in pairwise(times)), times


@given(st.sampled_from([*KINDS]), st.sampled_from([2, 3, 16, 100]), sizes)
@settings(max_examples=60, deadline=None)
def test_on_every_preset_the_parts_of_an_all_reduce_cost_no_less_than_it(
    kind: str, nodes: int, n: int
) -> None:
    mesh = Mesh.of({"data": nodes, "tensor": 8})
    cluster = find_cluster(f"{nodes}x8x{kind}")
    for axis in mesh.names:
        link = cluster.axis_link(mesh, axis)
        whole = collective_s("all_reduce", link, n, COPY)
        parts = sum(collective_s(part, link, n, COPY) for part in ("reduce_scatter", "all_gather"))
        assert whole <= parts * (1 + 1e-9)


def test_no_ranks_take_no_time() -> None:
    assert seconds_of((), 10**9) == 0.0
