"""Steps whose queries, keys and values have slices of one weight: as eager, by the whole's name."""

# pyright: basic
from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp

from irc.dialects.builder import entry
from irc.dialects.placement import Mesh
from irc.interpret.parts import run_here
from irc.interpret.parts_check import check_parts
from irc.pipeline import Options, run_passes
from irc.pipeline.training import Training
from irc.plan.parts import PartsPlan
from irc.plan.parts_files import load_parts, save_parts
from irc.program import Program
from irc.programs.make import make_parts_plan, split_option
from irc.programs.schedules import schedule_for
from irc.programs.stage_pins import pins_of_stages
from irc.runtime.weights import whole_weights
from irc.training.projections import in_slices, slices_in
from irc.training.recipe import Recipe, recipe_of
from tests.programs.models import (
    MICRO_BATCHES,
    OPTIMIZER,
    model_and_batch,
    trained_eagerly,
)
from tests.training.models import program_of

STEPS = 2


@cache
def planned(mesh: str) -> tuple[PartsPlan, Program]:
    model, batch = model_and_batch("gpt")
    program = program_of(model, *(x[: len(x) // MICRO_BATCHES] for x in batch))
    recipe = recipe_of(OPTIMIZER, micro_batches=MICRO_BATCHES)
    names = tuple(program.input_names)
    whole = Mesh.parse(mesh)
    pipe = dict(whole.axes).get("pipe", 1)
    schedule = schedule_for("1f1b", pipe, MICRO_BATCHES)
    options = Options(mesh=whole, cluster="8xH100")
    return make_parts_plan(program, replace(recipe, split=names), options, schedule), program


@pytest.mark.parametrize(
    "mesh", ["tensor=2", pytest.param("pipe=2,tensor=2", marks=pytest.mark.slow)]
)
def test_ranks_train_as_eager(mesh: str) -> None:
    plan, program = planned(mesh)
    assert {f"blocks.{n}.qkv.{kind}" for n in range(4) for kind in ("weight", "bias")} <= set(
        plan.sliced
    )
    _, batch = model_and_batch("gpt")
    run = run_here(plan, program.tensors, [batch] * STEPS, lr=OPTIMIZER["lr"])
    expected, state = trained_eagerly("gpt", STEPS)
    assert [loss.item() for loss in run.losses] == pytest.approx(expected, abs=1e-11)
    for name in ("blocks.0.qkv.weight", "blocks.3.qkv.bias", "blocks.1.out.weight"):
        assert name in plan.trained
        assert float((run.whole(name) - state[name]).abs().max()) < 1e-11


@pytest.mark.slow
def test_a_plan_is_checked_saved_and_read_by_whole_weights(tmp_path: Path) -> None:
    plan, program = planned("tensor=2")
    _, batch = model_and_batch("gpt")
    assert "are as eager has them" in str(check_parts(plan, program.tensors, list(batch)))
    save_parts(tmp_path / "plan", plan, program.tensors)
    read = whole_weights(load_parts(tmp_path / "plan"))
    name = "blocks.2.qkv.weight"
    assert torch.equal(read[name], program.tensors[name])
    assert not [each for each in read if ":" in each]


def split(options: Options, recipe: Recipe) -> ModuleOp:
    """Return the model as it is before it is cut."""
    model, batch = model_and_batch("gpt")
    program = program_of(model, *(x[: len(x) // MICRO_BATCHES] for x in batch))
    run_passes(program.module, Training(split=split_option(options, recipe)).of_model)
    return program.module


def test_what_is_said_of_a_weight_holds_for_its_slices() -> None:
    mesh = Mesh.parse("data=2,tensor=2")
    module = split(Options(mesh=mesh), recipe_of("sgd"))
    slices = {name: own.names for name, own in slices_in(entry(module)).items()}
    (text,) = pins_of_stages("*.weight = [tensor = B]", mesh, [module], slices)
    assert '"*.weight" = ' in text
    assert text.count(".qkv.weight:") == 12
    recipe = in_slices(recipe_of({"kind": "sgd", "no_decay": "*.bias"}), slices_in(entry(module)))
    assert recipe.no_decay == "*.bias, *.bias:*"


@pytest.mark.parametrize(
    ("mesh", "pins", "kind"),
    [
        ("data=2", "", "momentum"),
        ("tensor=2", "use blocks.*.up = column-parallel", "momentum"),
        ("tensor=2", "", "adafactor"),
    ],
)
def test_projections_stay_where_it_does_not_pay_or_names_would_change(
    mesh: str, pins: str, kind: str
) -> None:
    optimizer = {"kind": kind, **({"momentum": 0.9} if kind == "momentum" else {})}
    module = split(Options(mesh=Mesh.parse(mesh), pins=pins), recipe_of(optimizer))
    assert not slices_in(entry(module))
