"""Programs that are too large for one search: axis by axis, near the plan of the whole."""

# pyright: basic
from __future__ import annotations

import pytest
import torch

from irc.cluster.load import find_cluster
from irc.constraints.pins import parse_constraints
from irc.constraints.resolve import resolve
from irc.cost.model import ClusterCost
from irc.dialects.flow import FlowOp, id_of
from irc.dialects.placement import Mesh, Partial, Placement
from irc.dialects.text import context
from irc.errors import IrcError
from irc.frontends.torch.capture import capture
from irc.passes.canonicalize import CanonicalizePass
from irc.search import on_mesh
from irc.search.graph import Wishes
from irc.search.on_mesh import num_placements, search
from irc.search.solved import Plan
from irc.train import training_program
from tests.models.hugging_face import t5
from tests.training.models import TARGETS, TOKENS, program_of, small_gpt

FAR = 1.25


def planned(pins: str = "") -> Plan:
    program = training_program(program_of(small_gpt(), TOKENS, TARGETS))
    CanonicalizePass().apply(context(), program.module)
    cost = ClusterCost(find_cluster("demo-gpus"), Mesh.parse("data=2,tensor=2"))
    wishes = Wishes()
    if pins:
        constraints = resolve(program.module, cost.mesh, parse_constraints(pins, "pins"))
        wishes = Wishes(constraints=constraints)
    return search(program.module, cost, wishes)


def placed(plan: Plan, name: str) -> str:
    ops = [op for op in plan.graph.ops if isinstance(op, FlowOp) and id_of(op) == name]
    node, signatures = plan.graph.ops[ops[0]]
    return str(signatures[plan.solution.choice[node]].results[0])


def test_axis_by_axis_comes_near_the_plan_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The gap that it says is no smaller than the true one; whoever waits reads why."""
    whole = planned()
    assert not capsys.readouterr().err
    monkeypatch.setattr(on_mesh, "MOST_COLUMNS", 1000)
    by_axes = planned()
    assert "axis by axis" in capsys.readouterr().err
    assert by_axes.solution.num_columns < whole.solution.num_columns / 2
    assert whole.solution.bound_s <= by_axes.solution.seconds <= FAR * whole.solution.seconds
    assert by_axes.solution.bound_s <= whole.solution.seconds


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_t5_in_training_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    """Two layers each way, none like another: 400,000 columns on two axes."""
    model = t5().train()
    tokens = torch.randint(0, 100, (4, 16))
    program = training_program(capture(model, (), {"input_ids": tokens, "labels": tokens}).program,
                               loss="loss")  # fmt: skip
    CanonicalizePass().apply(context(), program.module)
    cost = ClusterCost(find_cluster("demo-gpus"), Mesh.parse("data=2,tensor=2"))
    plan = search(program.module, cost, Wishes())
    assert "axis by axis" in capsys.readouterr().err
    assert plan.solution.num_columns < on_mesh.MOST_COLUMNS
    assert 0 < plan.solution.bound_s <= plan.solution.seconds


def test_a_mesh_of_too_many_axes_is_refused() -> None:
    """Of a matrix on six axes 26,608 placements would be compared, for hours."""
    program = program_of(small_gpt(), TOKENS, TARGETS)
    mesh = Mesh.parse(",".join(f"{name}=2" for name in "abcdef"))
    with pytest.raises(IrcError, match="a mesh of 6 axes") as refused:
        search(program.module, ClusterCost(find_cluster("demo-gpus"), mesh), Wishes())
    assert refused.value.code == "mesh-axes"


@pytest.mark.parametrize("axes", ["a=2", "a=2,b=2,c=2", "a=2,b=1,c=3", "a=2,b=2,c=2,d=2"])
def test_placements_are_counted_as_boxing_enumerates_them(axes: str) -> None:
    mesh, shape = Mesh.parse(axes), (48, 48)
    whole = Placement(tuple((name, Partial("sum")) for name in mesh.names))
    boxing = ClusterCost(find_cluster("demo-gpus"), mesh).boxing
    reached, pending = {whole}, [whole]
    while pending:
        results = {step.result for step, _ in boxing.steps(shape, "f32", pending.pop())} - reached
        reached |= results
        pending += results
    assert len(reached) == num_placements(shape, mesh)


def test_what_the_user_says_of_an_op_holds_axis_by_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_mesh, "MOST_COLUMNS", 1000)
    names = [id_of(op) for op in planned().graph.ops if op.name == "flow.contract"]
    pins = f"op {names[0]} = [data = S(2), tensor = S(0)]"
    assert placed(planned(pins=pins), names[0]) == "[data = S(2), tensor = S(0)]"
