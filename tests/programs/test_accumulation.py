"""Micro-batches without a pipeline: one part, which does not grow with their number."""

# pyright: basic
from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import irc
from irc.dialects.placement import Mesh
from irc.interpret.parts import run_here
from irc.pipeline import Options
from irc.plan.load import LoadedPlan
from irc.plan.parts import PartsPlan
from irc.plan.parts_packing import pack_parts
from irc.plan.schema import Start
from irc.programs.make import make_parts_plan
from irc.programs.schedules import schedule_for
from irc.training.recipe import recipe_of
from tests.benchmarks.pipeline_models import Chain, Embedding, Head, Layer
from tests.programs.models import (
    CASES,
    MICRO_BATCHES,
    OPTIMIZER,
    model_and_batch,
    trained_eagerly,
)
from tests.training.models import program_of

SAMPLES = 4096
STEPS = 2
SLOW = pytest.mark.slow
OTHERS = [name for name, case in CASES.items() if not case.draws and name != "gpt"]


class Wide(nn.Module):
    """A bias so large that its gradient is worth reducing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.up, self.down = nn.Linear(24, 64), nn.Linear(64, 12)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        return F.cross_entropy(self.down(F.relu(self.up(x))), y)


def plan_of(count: int, mesh: str, pins: str = "") -> PartsPlan:
    draw = torch.Generator().manual_seed(3)
    size = SAMPLES // count
    x, y = torch.randn(size, 24, generator=draw), torch.randint(0, 12, (size,), generator=draw)
    program = program_of(Wide(), x, y)
    recipe = replace(recipe_of("momentum", micro_batches=count), split=("x", "y"))
    options = Options(mesh=Mesh.parse(mesh), cluster="this-host", pins=pins)
    return make_parts_plan(program, recipe, options, schedule_for("1f1b", 1, count))


def reduced(loaded: LoadedPlan) -> int:
    """Return how many numbers a function's collectives take."""
    plan = loaded.plan
    sources = [a.inputs[0] for a in plan.actions if isinstance(a, Start)]
    return sum(prod(plan.buffers[index].shape) for index in sources)


def test_sharded_gradients_are_reduced_once_a_step() -> None:
    """Where weights are whole and samples are split, sums of partial sums stay partial."""
    part = plan_of(4, "data=4", "* = [data = B]; x = [data = S(0)]; y = [data = S(0)]").parts[0]
    weights = 24 * 64 + 64 * 12
    assert reduced(part["B"]) == 0
    # Of a micro-batch its losses, or their sum.
    assert reduced(part["F"]) <= SAMPLES // 16
    assert weights <= reduced(part["step"]) <= 2 * weights


@cache
def step_of(count: int) -> Mapping[str, int]:
    model, batch = model_and_batch("gpt")
    batch = tuple(torch.cat([x] * 2) for x in batch)
    step = irc.compile_step(model, micro_batches=count)
    step(*batch)
    held = step.memory_bytes()
    plan: Any = step.plan
    counts = [len(each.plan.actions) for part in plan.parts for each in part.values()]
    slots, size = max(plan.tapes[0].slots.values()), len(pack_parts(plan))
    return {**held, "actions": sum(counts), "bytes": size, "slots": slots}


def test_neither_plan_nor_memory_grows_with_micro_batches() -> None:
    """F and B take turns, so that one slot of each register is enough."""
    few, many = step_of(2), step_of(16)
    assert few["slots"] == many["slots"] == 1
    assert many["actions"] <= few["actions"]
    assert many["bytes"] <= 1.02 * few["bytes"]
    assert many["registers"] < few["registers"]
    for what in ("parameters", "states", "accumulators"):
        assert many[what] == few[what]


@pytest.mark.parametrize("mesh", ["data=2", pytest.param("data=2,tensor=2", marks=SLOW)])
@pytest.mark.parametrize("name", ["gpt", *(pytest.param(n, marks=SLOW) for n in OTHERS)])
def test_ranks_of_a_mesh_train_as_eager(name: str, mesh: str) -> None:
    """All ranks in this process; in float64, also where ranks count different tokens."""
    model, batch = model_and_batch(name)
    program = program_of(model, *(x[: len(x) // MICRO_BATCHES] for x in batch))
    names = tuple(program.input_names)
    frozen = ",".join(n for n, p in model.named_parameters() if not p.requires_grad)
    recipe = recipe_of(OPTIMIZER, frozen=frozen, micro_batches=MICRO_BATCHES)
    pins = "; ".join(f"{n} = [data = S(0)]" for n in names)
    options = Options(mesh=Mesh.parse(mesh), pins=pins)
    schedule = schedule_for("1f1b", 1, MICRO_BATCHES)
    plan = make_parts_plan(program, replace(recipe, split=names), options, schedule)
    assert len(plan.parts) == 1
    run = run_here(plan, program.tensors, [batch] * STEPS, lr=OPTIMIZER["lr"])
    expected, _ = trained_eagerly(name, STEPS)
    assert [loss.item() for loss in run.losses] == pytest.approx(expected, abs=1e-11)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_forty_layers_on_256_ranks_are_planned(tmp_path: Path) -> None:
    """Four micro-batches of them once took the search more than ten minutes."""
    layers = [Embedding(256), *(Layer(256) for _ in range(40)), Head(256)]
    tokens = torch.randint(512, (512, 64))
    start = time.process_time()
    irc.export_plan(
        Chain(layers),
        (tokens, tokens.roll(1, 1)),
        out=str(tmp_path / "plan"),
        loss=lambda logits, targets: F.cross_entropy(logits, targets.flatten()),
        optimizer="adamw",
        mesh="data=32,tensor=8",
        cluster="32x8xH100",
        accumulate=4,
    )
    assert time.process_time() - start < 60


class Halved(nn.Module):
    """A loss with the number by which two micro-batches begin their gradients."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss."""
        return F.huber_loss(self.layer(x), x)


def test_a_literal_of_the_loss_may_be_the_seed_of_gradients() -> None:
    mine, theirs, x = Halved(), Halved(), torch.randn(8, 6)
    loss = theirs(x)
    loss.backward()
    step = irc.compile_step(mine, optimizer="sgd", accumulate=2)
    torch.testing.assert_close(step(x, lr=1.0), loss.detach())
    torch.optim.SGD(theirs.parameters(), 1.0).step()
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)
