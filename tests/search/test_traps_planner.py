"""Traps of planners (T-17, T-20, T-32, T-33) that no other test stands in."""

from __future__ import annotations

from dataclasses import replace

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block

from irc.cluster.presets import PRESETS
from irc.cost.model import ClusterCost
from irc.dialects.builder import FlowBuilder, argument_attrs, finish_function
from irc.dialects.flow import ContractOp
from irc.dialects.placement import Mesh
from irc.dialects.text import context
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.passes.auto_shard import AutoShardPass
from irc.search.graph import Graph, Wishes
from irc.search.on_mesh import search

MESH = Mesh.parse("tensor=8")


def product(rows: int, size: int) -> ModuleOp:
    kinds = [TensorType.of((rows, size), "bf16"), TensorType.of((size, size), "bf16")]
    block = Block(arg_types=kinds)
    y = FlowBuilder(block).op(ContractOp, list(block.args), spec="mk,kn->mn")
    arg_attrs = [argument_attrs("input", "x"), argument_attrs("parameter", "w")]
    return ModuleOp([finish_function("forward", block, [y], arg_attrs=arg_attrs)])


def test_tiny_collectives_cost_their_latency() -> None:
    """T-17: bytes over bandwidth alone would call eight bytes free, and split a tiny product."""
    cost = ClusterCost(PRESETS["8xH100"], MESH)
    assert cost.collective_seconds("all_reduce", 8.0, "tensor") > 5e-6
    plan = search(product(8, 64), cost, Wishes())
    ((node, signatures),) = plan.graph.ops.values()
    assert set(signatures[plan.solution.choice[node]].splits) == {""}


def test_work_and_traffic_are_seconds_of_one_rank() -> None:
    """T-20: a large product is split, and what it costs is an eighth of the work and a gather."""
    cost = ClusterCost(PRESETS["8xH100"], MESH)
    plan = search(product(8192, 8192), cost, Wishes())
    whole = 2 * 8192**3 / cost.cluster.device.peak_flops["bf16"]
    gather = cost.collective_seconds("all_gather", 8192 * 8192 * 2, "tensor")
    assert plan.solution.seconds == pytest.approx(whole / 8 + gather, rel=0.2)


def test_memory_of_less_than_a_unit_still_counts() -> None:
    """T-32: bytes are bytes, however small beside the budget: nothing rounds to none."""
    cost = ClusterCost(PRESETS["8xH100"], MESH)
    plan = search(product(8, 64), cost, Wishes())
    held = plan.solution.num_bytes
    tight = replace(Wishes(), memory_bytes=held - 1)
    assert search(product(8, 64), cost, tight).solution.num_bytes < held


def test_a_budget_that_pins_forbid_names_both() -> None:
    """T-33: the conflict is told by name, with the smallest budget, and that budget works."""
    pins, budget = "w = [tensor = B]; forbid x = [tensor = S(0)]", 4096 * 4096
    with pytest.raises(IrcError) as caught:
        AutoShardPass(mesh="tensor=8", cluster="8xH100", pins=pins, memory_bytes=budget).apply(
            context(), product(8, 4096)
        )
    text = str(caught.value)
    assert caught.value.code == "sharding-infeasible"
    assert "pin w = [tensor = B]" in text
    assert "forbid x" not in text
    least = int(text.rpartition("memory_bytes=")[2].split()[0])
    AutoShardPass(mesh="tensor=8", cluster="8xH100", pins=pins, memory_bytes=least).apply(
        context(), product(8, 4096)
    )


def test_the_slowest_device_decides() -> None:
    """Unequal devices: an even split over a half-speed device takes its time."""
    cluster = PRESETS["8xH100"]
    slow = replace(
        cluster.device, peak_flops={k: v / 2 for k, v in cluster.device.peak_flops.items()}
    )
    mixed = replace(cluster, unequal=((cluster.device, 7), (slow, 1)))
    costs = [ClusterCost(c, MESH) for c in (cluster, mixed, replace(cluster, device=slow))]
    fast, both, all_slow = (
        search(product(16384, 16384), cost, Wishes()).solution.seconds for cost in costs
    )
    assert both == pytest.approx(all_slow)
    assert both > 1.3 * fast


def test_graphs_of_one_module_are_alike() -> None:
    """A search leaves the module as it was: a second one sees the same problem."""
    module, cost = product(96, 96), ClusterCost(PRESETS["8xH100"], MESH)
    first = search(module, cost, Wishes()).solution
    assert search(module, cost, Wishes()).solution == first
    assert len(Graph(module, cost, Wishes()).problem.nodes) == len(
        Graph(module, cost, Wishes()).problem.nodes
    )
