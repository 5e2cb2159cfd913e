"""One gradient that overflows on one rank, or in one stage, stops the step on all of them."""

# pyright: basic
from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from irc.calls.step_plan import captured_step
from irc.dialects.builder import entry, results
from irc.dialects.placement import Mesh
from irc.interpret.parts import run_here
from irc.interpret.spmd import run_spmd
from irc.pipeline import Options, run_passes
from irc.plugin import builtin_pass
from irc.programs.make import make_parts_plan
from irc.programs.schedules import schedule_for
from irc.train import training_program
from irc.training.loss_scale import INVERSE, OVERFLOWS, SCALE
from irc.training.precision import Precision
from irc.training.recipe import recipe_of
from tests.programs.models import MICRO_BATCHES, OPTIMIZER, model_and_batch
from tests.training.models import program_of

LR = torch.tensor(1e-2, dtype=torch.float64)


class Columns(nn.Module):
    """The gradient of a column of the weight is what is fed to it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x)).sum()


@pytest.mark.parametrize("weight", ["S(0)", "S(1)", "B"])
def test_one_rank_that_overflows_stops_all(weight: str) -> None:
    """Of a mesh of two ranks one has the column that overflows; the other's are finite."""
    x = torch.full((2, 8), 1e-3)
    x[:, 7] = 1e3
    program = training_program(
        program_of(Columns(), x), optimizer={"kind": "adamw", "scaled": True}
    )
    program.tensors["down.weight"] = torch.full((8, 8), 1e-2)
    program.tensors["up.weight"][:, 7] = 0
    scales = {SCALE: torch.tensor(1e37), INVERSE: torch.tensor(1e-37)}
    named = dict(zip(program.input_names, [x] * len(program.input_names), strict=True))
    inputs = program.bind({**named, **scales, "lr": LR})
    pins = f'"*.weight" = [tensor = {weight}]'
    options = {"mesh": "tensor=2", "cluster": "demo-gpus", "report": False, "pins": pins}
    passes = [builtin_pass(n)() for n in ("canonicalize", "lower-boxing")]
    passes.insert(1, builtin_pass("auto-shard")(**options))
    run_passes(program.module, passes)
    outputs = run_spmd(program.module, inputs, Mesh.parse("tensor=2"))
    named = {n: v for (_, n), v in zip(results(entry(program.module)), outputs, strict=True)}
    assert float(named[OVERFLOWS]) == 8
    for name, before in program.tensors.items():
        assert torch.equal(named[name], before), name


@pytest.mark.parametrize("clip", [0.0, 1e3])
def test_a_stage_that_overflows_stops_all(clip: float) -> None:
    model, batch = model_and_batch("gpt", torch.float32)
    recipe = recipe_of({**OPTIMIZER, "clip_norm": clip}, micro_batches=MICRO_BATCHES)
    recipe = replace(recipe, precision=Precision(scaler={"init_scale": 1.0}))
    with torch.no_grad():
        captured, split = captured_step(model, None, recipe, batch, {})
    plan = make_parts_plan(
        captured.program,
        replace(recipe, split=split),
        Options(mesh=Mesh.parse("pipe=2")),
        schedule_for("1f1b", 2, MICRO_BATCHES),
    )
    weights = dict(captured.program.tensors)

    def trained(scale: float, factor: float = 1.0) -> dict[str, torch.Tensor]:
        up, down = "blocks.0.up.weight", "blocks.0.down.weight"
        own = {**weights, up: weights[up] * factor, down: weights[down] / factor}
        run = run_here(plan, own, [batch] * 2, lr=0.05, scale=scale)
        return {name: run.whole(name) - own[name] for name in plan.trained}

    usual, scaled = trained(1.0), trained(2.0**10)
    for name, moved in usual.items():
        assert moved.abs().max() > 0
        torch.testing.assert_close(scaled[name], moved, rtol=1e-4, atol=1e-6)
    # What the first layer's last product multiplies is large, and so its gradient alone.
    assert trained(2.0**118)["head.weight"].abs().max() > 0
    for name, moved in trained(2.0**118, 2.0**24).items():
        assert moved.abs().max() == 0, name


def test_a_stage_whose_gradients_others_count_says_nothing_of_them() -> None:
    """Such as one that has the tied weight alone."""

    def roles(uncounted: str) -> list[str]:
        optimizer = {"scaled": True, "clip_norm": 1.0, "norm_apart": True, "uncounted": uncounted}
        program = training_program(program_of(Columns(), torch.ones(2, 8)), optimizer=optimizer)
        return [role for role, _ in results(entry(program.module))]

    assert "norm" in roles("up.weight")
    assert "norm" not in roles("up.weight,down.weight")
