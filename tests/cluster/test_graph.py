"""Routes through graphs, and what their wires carry: against paths listed pair by pair."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irc.cluster.graph import Edge, Graph
from irc.dialects.placement import Mesh


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Devices on switches, some by several wires, some joined directly; switches as they come."""
    switches = draw(st.integers(0, 4))
    devices = draw(st.sampled_from([2, 4, 6, 8]))
    ends: set[tuple[int | str, int | str]] = set()
    for i in range(1, switches):
        ends.add((f"s{draw(st.integers(0, i - 1))}", f"s{i}"))
    for device in range(devices):
        if switches and draw(st.booleans()) | (device == 0):
            ends.add((device, f"s{draw(st.integers(0, switches - 1))}"))
        elif device:
            ends.add((draw(st.integers(0, device - 1)), device))
    nodes = [*range(devices), *(f"s{i}" for i in range(switches))]
    for _ in range(draw(st.integers(0, 4))):
        one, other = draw(st.sampled_from(nodes)), draw(st.sampled_from(nodes))
        if one != other and (other, one) not in ends:
            ends.add((one, other))
    figures = st.sampled_from([1.0, 2.0, 3.5])
    return Graph(tuple(Edge(pair, draw(figures), draw(figures)) for pair in sorted(ends, key=str)))


def listed(graph: Graph, mesh: Mesh, axis: str) -> tuple[float, float]:
    """The speed and the latency of an axis, from the path of each pair."""
    groups = [list(group) for group in mesh.groups(axis)]
    speeds = {edge.ends: edge.bytes_per_s for edge in graph.edges}
    speeds |= {ends[::-1]: speed for ends, speed in speeds.items()}
    latency = {edge.ends: edge.latency_s for edge in graph.edges}
    latency |= {ends[::-1]: each for ends, each in latency.items()}
    ring = [(group[i - 1], rank) for group in groups for i, rank in enumerate(group)]
    spread = [(a, b) for group in groups for a in group for b in group if a != b]

    def speed(pairs: list[tuple[int, int]], weight: float) -> float:
        uses = Counter(wire for pair in pairs for wire in graph.path(*pair))
        return min(speeds[wire] / (count * weight) for wire, count in uses.items())

    latencies = [sum(latency[wire] for wire in graph.path(*pair)) for pair in ring]
    best = max(speed(ring, 1.0), speed(spread, 1 / (mesh.size(axis) - 1)))
    return best, max(latencies)


@given(graphs(), st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_an_axis_is_priced_as_its_pairs_are(graph: Graph, choice: int) -> None:
    devices = graph.num_devices
    meshes = [f"a={devices}", f"a=2,b={devices // 2}", f"a={devices // 2},b=2", "a=2"]
    mesh = Mesh.parse(meshes[choice])
    for axis in mesh.names:
        if mesh.size(axis) > 1:
            link = graph.axis_link(mesh, axis)
            speed, latency = listed(graph, mesh, axis)
            assert link.bytes_per_s == speed
            assert link.latency_s == pytest.approx(latency)


@given(graphs())
@settings(max_examples=200, deadline=None)
def test_paths_are_shortest_paths(graph: Graph) -> None:
    network = networkx.Graph()
    for edge in graph.edges:
        network.add_edge(*edge.ends, latency=edge.latency_s)
    for source in range(graph.num_devices):
        lengths = networkx.single_source_dijkstra_path_length(network, source, weight="latency")
        for target in range(graph.num_devices):
            path = graph.path(source, target)
            assert sum(network.edges[wire]["latency"] for wire in path) == lengths[target]
            nodes = [source, *(end for _, end in path)]
            assert nodes[-1] == target
            assert list(pairwise(nodes)) == list(path)


def test_a_large_fat_tree_is_priced_by_its_switches() -> None:
    """4,096 devices on 512 nodes: the data axis has 2,093,056 pairs, the switches 262,144."""
    edges = [Edge((8 * node + i, f"n{node}"), 1e-6, 4e11) for node in range(512) for i in range(8)]
    edges += [Edge((f"n{node}", "spine"), 2e-6, 2e11) for node in range(512)]
    link = Graph(tuple(edges)).axis_link(Mesh.parse("data=512,tensor=8"), "data")
    assert link.bytes_per_s == 2e11 / 8
    assert link.latency_s == pytest.approx(6e-6)
