"""How much of its communication a training step waits for."""

from __future__ import annotations

import pytest
import torch

from irc.frontends.torch.capture import capture
from irc.pipeline.make import lower, planned
from irc.pipeline.options import Options
from irc.plan.schema import Plan
from irc.report.launches import launches, num_layers
from irc.report.timing import split
from irc.sharding.mesh import parse_mesh
from irc.train import add_training
from tests.models.gpt import GPT, GPTConfig
from tests.search.plans import Model


def exposed(layout: str, passes: tuple[str, ...] = ()) -> float:
    """Return the part of a GPT's communication on eight A100 that compute waits for."""
    with torch.device("meta"):
        model = GPT(GPTConfig(layers=8, hidden=1024, heads=16, vocab=4096, block=512))
        tokens = torch.zeros(32, 512, dtype=torch.int64)
    program = capture(model, (tokens, tokens)).program
    add_training(program, optimizer="adamw")
    mesh = parse_mesh("data=8")
    options = Options(mesh=mesh, cluster="8xA100", layout=layout, passes=passes, brief=True)
    lower(program, options)
    plan, _ = planned(program.module, options, {})
    times = split(plan)
    return times.exposed_s / times.communication_s


@pytest.mark.parametrize(
    ("layout", "most", "without"), [("ddp", 0.1, "hoist-collectives"), ("fsdp", 0.15, "order")]
)
def test_compute_hides_what_a_data_parallel_step_sends(
    layout: str, most: float, without: str
) -> None:
    assert exposed(layout) < most
    assert exposed(layout, (f"no-{without}",)) > 2 * most


def llama_step(layout: str, mesh: str, cluster: str) -> Plan:
    """Plan a step of a Llama of eight layers."""
    with torch.device("meta"):
        tokens = torch.zeros(8, 64, dtype=torch.int64)
        model = Model(8, 256, 4, 512)
    program = capture(model, (tokens, tokens)).program
    add_training(program, optimizer="adamw")
    options = Options(mesh=parse_mesh(mesh), cluster=cluster, layout=layout, brief=True)
    lower(program, options)
    return planned(program.module, options, {})[0]


@pytest.mark.parametrize(
    ("layout", "mesh", "cluster"),
    [
        ("fsdp", "data=8", "8xA100"),
        ("ddp", "data=8", "8xA100"),
        ("fsdp", "data=2,context=2", "this-host"),
    ],
)
def test_a_layer_has_two_collectives_a_direction_at_most(
    layout: str, mesh: str, cluster: str
) -> None:
    plan = llama_step(layout, mesh, cluster)
    assert num_layers(plan) == 8
    most: dict[tuple[str, str], int] = {}
    for row in launches(plan):
        key = "sums" if row.op in ("all_reduce", "reduce_scatter") else row.direction, row.axis
        most[key] = most.get(key, 0) + row.num_launches
    assert most
    assert all(count <= 2 * 8 for count in most.values()), most
