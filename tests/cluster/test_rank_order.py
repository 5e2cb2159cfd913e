"""The order of ranks on devices: never worse than the best of 10,000 random ones."""

import random
from itertools import combinations
from pathlib import Path

import pytest

from irc.cli import main
from irc.cluster.device import Device
from irc.cluster.graph import Edge, Graph
from irc.cluster.load import find_cluster
from irc.cluster.rank_order import OrderCost, best_order, in_order
from irc.cluster.topology import Cluster
from irc.dialects.placement import Mesh

MESHES = ("pipe=2,tensor=4", "pipe=4,tensor=2", "ring=8", "data=2,pipe=2,tensor=2", "pipe=8")


def wired(seed: int) -> Graph:
    """Eight devices: islands with slow wires between, or wires of all speeds."""
    draw = random.Random(seed)
    island = draw.sample([0, 0, 0, 0, 1, 1, 1, 1], 8)
    edges: list[Edge] = []
    for one, other in combinations(range(8), 2):
        near = island[one] == island[other]
        speed = draw.uniform(1, 100) if seed % 2 else (100 if near else draw.choice([2, 5]))
        edges.append(Edge((one, other), 1e-6, speed * 1e9))
    return Graph(tuple(edges))


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("seed", [0, 1])
def test_no_random_order_is_better(mesh: str, seed: int) -> None:
    sent = {"pipe": 5e7, "tensor": 2e9, "data": 4e8, "ring": 1e9}
    cost = OrderCost(wired(seed), Mesh.parse(mesh), sent)
    chosen, draw = cost.of(best_order(cost)), random.Random(seed + 100)
    least = min(cost.of(draw.sample(range(8), 8)) for _ in range(10_000))
    assert chosen[0] <= least[0] * (1 + 1e-12)


def test_the_pipeline_is_cut_at_the_slow_wires() -> None:
    graph = wired(0)
    cost = OrderCost(graph, Mesh.parse("pipe=2,tensor=4"), {"pipe": 1e6, "tensor": 1e9})
    order = best_order(cost)
    fast = {frozenset(e.ends) for e in graph.edges if e.bytes_per_s == 100e9}
    for stage in (order[:4], order[4:]):
        assert all(frozenset(pair) in fast for pair in combinations(stage, 2))


def test_kinds_of_devices_go_along() -> None:
    one, other = (Device(name, {"f32": 1e12}, 1e12, 80, 0.0) for name in ("one", "other"))
    graph = Graph((Edge((0, 1), 1e-6, 1e9), Edge((1, 2), 1e-6, 2e9)))
    cluster = Cluster("lab", one, unequal=((one, 2), (other, 1)), graph=graph)
    moved = in_order(cluster, (2, 0))
    assert [(d.name, n) for d, n in moved.unequal] == [("other", 1), ("one", 2)]
    assert moved.graph
    assert [edge.ends for edge in moved.graph.edges] == [(1, 2), (2, 0)]


LAB = """
name = "lab"
[device]
name = "A6000"
peak_tflops = { f32 = 38.0 }
memory_gb = 48
memory_gb_per_s = 600
[graph]
launch_us = 7
"""


def test_the_command_writes_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edges = [
        f"[[edge]]\nbetween = [{one}, {other}]\ngb_per_s = {speed}\nlatency_us = 1\n"
        for one, other, speed in ((0, 2, 100), (1, 3, 100), (0, 1, 1), (2, 3, 1))
    ]
    (tmp_path / "lab.toml").write_text(LAB + "".join(edges))
    words = ["cluster", "order", str(tmp_path / "lab.toml"), "--mesh", "pipe=2,tensor=2"]
    out = tmp_path / "ordered.toml"
    assert main([*words, "--traffic", "pipe=1MB,tensor=1GB", "-o", str(out)]) == 0
    assert "3, 1, 2, 0" in capsys.readouterr().out
    graph = find_cluster(str(out)).graph
    assert graph
    assert graph.edges[0].ends == (3, 2)
    for wrong in (["--traffic", "data=1GB"], ["--traffic", "pipe=fast"]):
        assert main([*words, *wrong]) == 2
    assert main(["cluster", "order", "8xH100", "--mesh", "tensor=8"]) == 2
    assert main(["cluster", "order", str(tmp_path / "lab.toml")]) == 2
    assert capsys.readouterr().err.count("error[option-value]") == 4
