"""Ranks on devices whose wires differ: the search asks for the order, and says it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch import nn

from irc.calls.plan_judge import PlanJudge
from irc.cluster.load import find_cluster, in_order_of
from irc.cluster.rank_order import OrderCost
from irc.cluster.topology import Cluster
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.pipeline import Options
from irc.search.configurations import Configuration, Outline
from irc.search.judge import Verdict
from irc.search.rank_orders import order_of, sent_bytes
from irc.searched import choice_of_ranks, chosen_for

OUTLINE = Outline(1e12, "f32", 4e9, 1e9, layers=8, samples=8, launches=10)
OWN = Configuration(Mesh.parse("pipe=2,tensor=2"), 4)
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
class Judge(PlanJudge):
    """Says by the cluster what a step takes."""

    refusal: str = ""

    def whole_outline(self) -> Outline:
        return OUTLINE

    def prepare(self, configuration: Configuration) -> None:
        if self.refusal:
            raise IrcError(self.refusal, "it is not to be")

    def begin_price(self, configuration: Configuration) -> None:
        """Compute nothing ahead."""

    def plan(self, configuration: Configuration, *, brief: bool = True) -> Verdict:
        if self.refusal and "@" in self.options.cluster:
            raise IrcError(self.refusal, "not in this order")
        link = self.cluster.axis_link(configuration.mesh, "tensor")
        return Verdict(1e9 / link.bytes_per_s, 1)


def test_the_better_order_is_the_verdict(lab: str) -> None:
    verdict = asked(Judge(options=Options(cluster=lab)))
    assert verdict.order == order_of(find_cluster(lab), OUTLINE, OWN)
    assert verdict.step_s == pytest.approx(1e9 / 100e9)
    assert asked(Judge(options=Options(cluster="8xH100"))).order == ()


def asked(judge: Judge) -> Verdict:
    return judge.in_better_order(OWN, lambda each: each.plan(OWN))


def test_ranks_that_are_launched_already_stay_in_order(lab: str) -> None:
    judge = Judge(options=Options(cluster=lab), in_order=True)
    verdict = asked(judge)
    assert verdict.order == ()
    assert verdict.step_s == pytest.approx(1e9 / 1e9)
    assert judge.by_order == {}


def test_an_order_that_cannot_be_planned_leaves_the_plain_one(lab: str) -> None:
    verdict = asked(Judge(options=Options(cluster=lab), refusal="sharding-infeasible"))
    assert verdict.order == ()
    assert verdict.step_s == pytest.approx(1e9 / 1e9)
    with pytest.raises(IrcError, match="not in this order"):
        asked(Judge(options=Options(cluster=lab), refusal="option-value"))


@pytest.mark.parametrize("is_launched", [True, False])
def test_only_what_is_written_has_an_order(
    lab: str, monkeypatch: pytest.MonkeyPatch, is_launched: bool
) -> None:
    """A call of four ranks is planned where they are; a plan that is exported says its devices."""
    orders = list[Mesh]()

    def spied(cluster: Cluster, outline: Outline, own: Configuration) -> tuple[int, ...]:
        orders.append(own.mesh)
        return order_of(cluster, outline, own)

    def first_rank(mesh: Mesh) -> int:
        del mesh
        return 0

    def own_bytes(make: Callable[[], bytes], rank: int, marks: object) -> bytes:
        del rank, marks
        return make()

    monkeypatch.setattr("irc.calls.plan_judge.order_of", spied)
    monkeypatch.setattr("irc.runtime.join.num_processes", lambda: 4)
    monkeypatch.setattr("irc.runtime.join.join_processes", first_rank)
    monkeypatch.setattr("irc.runtime.join.shared_bytes", own_bytes)
    module, x = nn.Linear(64, 64), torch.zeros(16, 64)
    if is_launched:
        assert choice_of_ranks(module, (x,), cluster=lab).mesh.num_ranks == 4
        assert orders == []
    else:
        chosen_for(module, (x,), None, 4, cluster=lab)
        assert orders


def test_what_cannot_be_is_refused_where_it_is_asked_for_alone(lab: str) -> None:
    """Not where it is computed ahead: with one process a search never sees it there."""
    judge = Judge(options=Options(cluster=lab), refusal="schedule-size")
    judge.begin([OWN], is_whole=False)
    judge.begin([OWN], is_whole=True)
    judge.end()
