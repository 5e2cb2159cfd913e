"""Plans of several programs: what is predicted is what their ranks set aside, in their order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import irc
from irc.calls.step_plan import captured_step
from irc.cluster.presets import PRESETS
from irc.pipeline import Options
from irc.plan.parts import MICRO_BATCH_KINDS, PartsPlan
from irc.programs.make import make_parts_plan
from irc.programs.schedules import schedule_for
from irc.schedule.timeline import play
from irc.sharding.mesh import parse_mesh
from irc.simulate.parts import predict_step, slot_bytes
from irc.simulate.plan import predict
from irc.training.recipe import Recipe
from tests.programs.models import MICRO_BATCHES, OPTIMIZER, model_and_batch


def planned(name: str, mesh: str, schedule: str) -> tuple[PartsPlan, dict[str, torch.Tensor]]:
    """Plan a step for a mesh, without its processes; its weights too."""
    model, batch = model_and_batch(name)
    recipe = Recipe(micro_batches=MICRO_BATCHES)
    captured, split = captured_step(model, None, recipe, batch, {})
    options = Options(mesh=parse_mesh(mesh))
    order = schedule_for(schedule, options.mesh.size("pipe"), MICRO_BATCHES)
    plan = make_parts_plan(captured.program, replace(recipe, split=split), options, order)
    return plan, captured.program.tensors


def test_registers_are_those_of_the_executor() -> None:
    model, batch = model_and_batch("gpt")
    step: Any = irc.compile_step(model, optimizer=OPTIMIZER, micro_batches=MICRO_BATCHES)
    step(*batch)
    held = step.memory_bytes()
    plan = step._parts_versions[0].plan
    prediction = predict_step(plan, PRESETS["8xH100"])
    registers = sum(each.num_bytes * (each.slots or 0) for each in prediction.registers.values())
    assert registers == held["registers"]
    weights = sum(held[kind] for kind in ("parameters", "states", "accumulators"))
    others = sum(
        {b.name: b.size_bytes for part in plan.parts for f in part.values()
         for b in (f.plan.buffers[i] for i in f.plan.weights)
         if b.role not in ("parameter", "state", "accumulator")}.values()
    )  # fmt: skip
    arenas = [f.plan.arena_bytes for part in plan.parts for f in part.values()]
    assert prediction.reserved_bytes(0) == registers + weights + others + max(arenas)
    assert prediction.peak_bytes(0) == prediction.reserved_bytes(0)


@pytest.mark.parametrize(
    ("mesh", "schedule"),
    [("pipe=2", "1f1b"), ("pipe=2,tensor=2", "zb-h1"), ("pipe=2,data=2", "interleaved:2")],
)
def test_a_step_is_its_functions_in_the_order_of_the_schedule(mesh: str, schedule: str) -> None:
    plan, _ = planned("gpt", mesh, schedule)
    prediction = predict_step(plan, PRESETS["8xH100"])
    path = plan.schedule.paths[0]
    for part, stage in enumerate(path):
        for kind, function in plan.parts[part].items():
            if kind in MICRO_BATCH_KINDS:
                seconds = predict(function.plan).seconds
                assert prediction.costs.stage(stage).of(kind) == seconds > 0
    # Not faster than the schedule with free messages, and slower by no more than all of them.
    functions = prediction.costs.times(plan.schedule.num_stages)
    least = play(plan.schedule, functions).makespan
    ends = prediction.played().makespan
    sent = sum(action.seconds for action in prediction.actions if action.stream.startswith("link"))
    lags = sum(action.lag for action in prediction.actions)
    assert least <= ends * (1 + 1e-9)
    assert ends <= least + sent + lags + 1e-12
    assert prediction.seconds > ends
    assert all(size > 0 for size in slot_bytes(plan).values())
    for rank, tape in enumerate(plan.tapes):
        registers = sum(slot_bytes(plan)[key] * count for key, count in tape.slots.items())
        assert prediction.reserved_bytes(rank) > registers > 0
