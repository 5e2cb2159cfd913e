"""Ranks on devices whose wires differ: the search asks for the order, and says it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import pytest

from irc.calls.plan_judge import StepJudge, best_order
from irc.cluster.load import find_cluster, in_order_of
from irc.cluster.rank_order import OrderCost
from irc.cluster.topology import Cluster
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.pipeline import Options
from irc.search.configurations import Configuration, Outline
from irc.search.judge import Verdict
from irc.search.rank_orders import order_of, sent_bytes

OUTLINE = Outline(1e12, "f32", 4e9, 1e9, layers=8, samples=8, launches=10)
ISLANDS = ({0, 3}, {1, 2})


@pytest.fixture
def lab(tmp_path: Path) -> str:
    """Two islands of two devices, numbered crosswise."""
    lines = ['name = "lab"', "[device]", 'name = "A"', "peak_tflops = { f32 = 10 }",
             "memory_gb = 48", "memory_gb_per_s = 600", "[graph]"]  # fmt: skip
    for pair in combinations(range(4), 2):
        speed = 100 if set(pair) in ISLANDS else 1
        lines += ["[[edge]]", f"between = [{pair[0]}, {pair[1]}]", f"gb_per_s = {speed}",
                  "latency_us = 1"]  # fmt: skip
    path = tmp_path / "lab.toml"
    path.write_text("\n".join(lines))
    return str(path)


def test_the_pipeline_is_cut_where_wires_are_slow(lab: str) -> None:
    own = Configuration(Mesh.parse("pipe=2,tensor=2"), 4)
    order = order_of(find_cluster(lab), OUTLINE, own)
    assert [set(order[:2]), set(order[2:])] in (list(ISLANDS), list(ISLANDS[::-1]))
    graph = find_cluster(lab).graph
    assert graph is not None
    cost = OrderCost(graph, own.mesh, sent_bytes(OUTLINE, own.mesh))
    assert cost.of(order) < cost.of(range(4))
    seen = find_cluster(in_order_of(lab, order))
    speed = seen.axis_link(own.mesh, "tensor").bytes_per_s
    assert speed > 10 * find_cluster(lab).axis_link(own.mesh, "tensor").bytes_per_s


@pytest.mark.parametrize("mesh", ["pipe=2,tensor=8", "data=8"])
def test_devices_that_are_alike_have_no_order(mesh: str) -> None:
    own = Configuration(Mesh.parse(mesh), 4)
    assert order_of(find_cluster("2x8xH100"), OUTLINE, own) == ()


@pytest.mark.parametrize(
    ("name", "code"),
    [("{lab}@[0,0,1]", "cluster-unknown"), ("{lab}@[0,4]", "cluster-unknown"),
     ("8xH100@[1,0]", "option-value"), ("{lab}@[1,x]", "cluster-unknown")],
)  # fmt: skip
def test_orders_that_cannot_be(lab: str, name: str, code: str) -> None:
    with pytest.raises(IrcError) as raised:
        find_cluster(name.format(lab=lab))
    assert raised.value.code == code


@dataclass
class Judge:
    """Says by the cluster what a step takes."""

    options: Options
    by_order: dict[tuple[int, ...], Judge] = field(default_factory=dict[tuple[int, ...], "Judge"])

    @property
    def cluster(self) -> Cluster:
        return find_cluster(self.options.cluster)

    def outline(self) -> Outline:
        return OUTLINE

    def plan(self, configuration: Configuration) -> Verdict:
        link = self.cluster.axis_link(configuration.mesh, "tensor")
        return Verdict(1e9 / link.bytes_per_s, 1)


def test_the_better_order_is_the_verdict(lab: str) -> None:
    own = Configuration(Mesh.parse("pipe=2,tensor=2"), 4)
    judge: StepJudge = Judge(Options(cluster=lab))  # type: ignore[assignment]  # it has what is asked
    verdict = best_order(judge, own, lambda each: each.plan(own))  # type: ignore[call-arg]  # as above
    assert verdict.order == order_of(find_cluster(lab), OUTLINE, own)
    assert verdict.step_s == pytest.approx(1e9 / 100e9)
    alike = replace(judge, options=Options(cluster="8xH100"))
    assert best_order(alike, own, lambda each: each.plan(own)).order == ()  # type: ignore[call-arg]  # as above
