"""A stage is placed by how often its functions run: micro-batches each time, the update once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import pytest
import torch
from torch import nn
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp

from irc.calls.step_plan import captured_step
from irc.cluster.load import find_cluster
from irc.cost.model import ClusterCost
from irc.dialects.builder import arguments, entry, functions, results
from irc.dialects.flow import FlowOp, id_of, tensor
from irc.dialects.placement import Mesh
from irc.dialects.sbp import BoxingOp
from irc.passes.auto_shard import AutoShardPass
from irc.pipeline import Options, run_passes
from irc.plugin import builtin_pass
from irc.programs.make import make_parts_plan
from irc.programs.schedules import schedule_for
from irc.programs.stage_step import stage_step
from irc.search.facts import call_counts
from irc.search.graph import Graph, Wishes
from irc.search.program import solve
from irc.sharding.trees import Trees
from irc.training.call_parts import split_calls
from irc.training.functions import Functions, split_functions
from irc.training.recipe import recipe_of
from irc.training.stage_runs import StageRuns
from irc.training.stages import stages_of
from tests.programs.models import GPT

CLUSTER = "8xH100"


class Layers(nn.Module):
    """Wide layers: their weights are large, or what a micro-batch gives them."""

    def __init__(self, width: int, inner: int, count: int) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(width, inner, bias=False) for _ in range(count))
        self.down = nn.ModuleList(nn.Linear(inner, width, bias=False) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(torch.relu(up(x)))
        return x.square().mean()


class Scaled(nn.Module):
    """One product: a program so small that all its plans can be looked at."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight).sum()


def stage(
    model: nn.Module, batch: tuple[torch.Tensor, ...], micro_batches: int, kind: Any = "adamw"
) -> ModuleOp:
    """Return a whole model as the only stage's program of a step."""
    recipe = recipe_of(kind, micro_batches=micro_batches)
    with torch.no_grad():
        captured, split = captured_step(model, None, recipe, batch, {})
    module = captured.program.module
    one: dict[str, object] = {"count": 1}
    run_passes(module, [builtin_pass("canonicalize")(), builtin_pass("cut-stages")(**one)])
    trained = {n for n, _ in model.named_parameters()}
    own = replace(recipe, split=split)
    scale = 1 / micro_batches
    only = stages_of(module).modules[0]
    return stage_step(only, (), (), own, trained, scale=scale, loss="output").module


def placed(module: ModuleOp, runs: StageRuns, mesh: str, **options: Any) -> dict[str, Any]:
    """Place a stage in place, and return what the search says of it."""
    if not runs.merged:
        split_calls(module)
    runs.write(module)
    run_passes(module, [AutoShardPass(mesh=mesh, cluster=CLUSTER, **options)])
    report = module.attributes["irc.plan_cost"]
    assert isinstance(report, StringAttr)
    return json.loads(report.data)


def moved(functions_: Functions, kind: str) -> int:
    """Return the bytes of what a run of a function boxes, whole."""
    module, total = functions_.modules[kind], 0
    counts = call_counts(functions(module))
    for name, func in functions(module).items():
        for op in func.body.block.ops:
            if isinstance(op, BoxingOp):
                total += counts[name] * prod(tensor(op.inputs[0]).static_shape())
    return total


def layer(micro_batches: int, count: int = 1) -> ModuleOp:
    """Return the step of wide layers, for so many micro-batches of one size."""
    with torch.device("meta"):
        model, batch = Layers(2048, 8192, count), torch.empty(4096 * micro_batches, 2048)
    return stage(model, (batch,), micro_batches)


def layers(micro_batches: int) -> Functions:
    """Return the functions of two wide layers, placed."""
    module = layer(micro_batches, 2)
    placed(module, StageRuns(micro_batches), "data=2")
    return split_functions(module, splits_backward=False)


def test_what_is_kept_of_micro_batches_in_flight_is_counted() -> None:
    """A layer that fits with one micro-batch in flight has its weights split with four."""

    def planned(slots: int, **options: Any) -> dict[str, Any]:
        return placed(layer(64), StageRuns(64, slots={"F-B": slots}), "data=2", **options)

    one, four = planned(1), planned(4)
    kept = ("activations", "boxed")
    assert [four["peak_bytes"][k] for k in kept] == [4 * one["peak_bytes"][k] for k in kept]
    assert {k: v for k, v in four["peak_bytes"].items() if k not in kept} == {
        k: v for k, v in one["peak_bytes"].items() if k not in kept
    }
    budget = (one["bytes_held"] + four["bytes_held"]) // 2
    assert planned(1, memory_bytes=budget)["objective_s"] == one["objective_s"]
    split = planned(4, memory_bytes=budget)
    assert split["bytes_held"] <= budget
    assert split["objective_s"] > four["objective_s"]


def sums(stage_functions: Functions) -> set[str]:
    """Return how the sums of gradients lie between functions."""
    named = arguments(entry(stage_functions.modules["step"]))
    return {str(tensor(value).placement) for role, _, value in named if role == "accumulator"}


def test_many_micro_batches_reduce_gradients_once() -> None:
    """One micro-batch splits weights and adds up activations; many add up gradients at the end."""
    once, often = layers(1), layers(64)
    assert sums(once) == {"[data = S(0)]", "[data = S(1)]"}
    assert sums(often) == {"[data = P(sum)]"}
    assert moved(once, "B") > moved(often, "B") == 0
    assert moved(often, "step") > moved(once, "step") == 0


@pytest.mark.parametrize("merged", [True, False])
def test_the_price_is_what_each_function_takes_as_often_as_it_runs(merged: bool) -> None:
    """Ops and boxings are looked up in the functions that they landed in, and priced anew."""
    batch = (torch.randint(64, (8, 12)), torch.randint(64, (8, 12)))
    module = stage(GPT(layers=2), batch, 4, {"kind": "adamw", "clip_norm": 1.0})
    pins = '"blocks.*.weight" = [data = S(0)]'
    report = placed(module, StageRuns(4, merged=merged), "data=2", pins=pins)
    stage_functions = split_functions(module, splits_backward=not merged)
    cost = ClusterCost(find_cluster(CLUSTER), Mesh.parse("data=2"))
    total = 0.0
    taken: set[str] = set()
    for kind, own in stage_functions.modules.items():
        seconds = sum(_prices(own, report, cost, taken))
        stated = report["functions"][kind]
        assert stated["runs"] == (4 if kind in "FBIW" else 1)
        assert stated["seconds"] == pytest.approx(seconds, rel=1e-3)
        total += stated["runs"] * seconds
    assert sum(f["runs"] * f["seconds"] for f in report["functions"].values()) == pytest.approx(
        report["objective_s"], rel=1e-6
    )
    assert total == pytest.approx(report["objective_s"], rel=1e-3)


def _prices(
    module: ModuleOp, report: dict[str, Any], cost: ClusterCost, taken: set[str]
) -> Iterator[float]:
    rows = {row["node"]: row["seconds"] for row in report["ops"]}
    counts = call_counts(functions(module))
    for name, func in functions(module).items():
        for op in func.body.block.ops:
            if isinstance(op, BoxingOp):
                before, after = tensor(op.inputs[0]), tensor(op.outputs[0])
                assert before.placement is not None
                assert after.placement is not None
                shape = before.static_shape(), before.dtype
                yield counts[name] * cost.boxing.seconds(*shape, before.placement, after.placement)
            elif isinstance(op, FlowOp) and not isinstance(op, CallOp):
                node = f"{name}/{id_of(op)}"
                if node not in rows or node in taken:
                    continue  # a literal or view that a later function makes again
                if name == "forward":
                    taken.add(node)
                yield counts[name] * rows[node]


def test_norm_and_update_read_accumulators() -> None:
    """What both gather of a sum of gradients, each gathers: no value goes from one to the other."""
    batch = (torch.randint(64, (8, 12)), torch.randint(64, (8, 12)))
    module = stage(GPT(layers=2), batch, 4, {"kind": "adamw", "clip_norm": 1.0})
    pins = '"accumulated.*" = [data = S(0)]; "blocks.*.weight" = [data = B]'
    placed(module, StageRuns(4), "data=2", pins=pins)
    stage_functions = split_functions(module, splits_backward=False)
    for kind in ("norm", "step"):
        func = entry(stage_functions.modules[kind])
        assert not [name for role, name, _ in arguments(func) if role == "saved"]
        assert not [name for role, name in results(func) if role == "saved"]


def test_the_choice_is_the_best_of_all() -> None:
    module = stage(Scaled(64), (torch.randn(16 * 8, 64),), 8, "sgd")
    StageRuns(8).write(module)
    cost = ClusterCost(find_cluster(CLUSTER), Mesh.parse("data=2"))
    graph = Graph(module, cost, Wishes())
    trees = Trees(cost.boxing)
    solution = solve(graph.problem, cost.boxing, trees=trees)
    every = product(*(range(len(node.seconds)) for node in graph.problem.nodes))
    prices = (graph.problem.seconds(choice, trees) for choice in every)
    assert solution.seconds == pytest.approx(min(s for s in prices if s is not None))


def test_a_stage_receives_its_part_where_the_link_between_stages_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What all ranks of a stage read whole came whole to each of them over the network."""
    reports: list[dict[str, Any]] = []
    apply = AutoShardPass.apply

    def noted(self: AutoShardPass, ctx: Context, op: ModuleOp) -> None:
        apply(self, ctx, op)
        report = op.attributes["irc.plan_cost"]
        assert isinstance(report, StringAttr)
        reports.append(json.loads(report.data))

    monkeypatch.setattr(AutoShardPass, "apply", noted)
    monkeypatch.setenv("IRC_PROCESSES", "1")  # reports are of this process
    with torch.device("meta"):
        model, batch = Layers(4096, 16384, 2), torch.empty(8192 * 4, 4096)
    recipe = recipe_of("adamw", micro_batches=4)
    with torch.no_grad():
        captured, split = captured_step(model, None, recipe, (batch,), {})
    plan = make_parts_plan(
        captured.program,
        replace(recipe, split=split),
        Options(mesh=Mesh.parse("pipe=2,tensor=8"), cluster="2x8xH100"),
        schedule_for("1f1b", 2, 4),
    )
    assert {cut.kind for each in plan.facts.channels for cut in each.after} == {"S"}
    for report in reports:
        functions_ = report["functions"].values()
        taken = sum(own["runs"] * own["seconds"] for own in functions_)
        assert taken == pytest.approx(report["objective_s"], rel=1e-6)
