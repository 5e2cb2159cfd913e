"""Schedules of a user's own, from a file: any legal order trains right, or is refused by name."""

# pyright: basic
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from irc.calls.pipelined import stages_recipe
from irc.calls.step_plan import captured_step
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.interpret.parts import Run, run_here
from irc.pipeline import Options
from irc.plan.parts import PartsPlan
from irc.plan.parts_facts import schedule_digest
from irc.plan.parts_verify import checked_parts
from irc.programs.make import make_parts_plan
from irc.programs.schedules import schedule_for
from irc.schedule.actions import Schedule
from irc.schedule.notation import print_schedule
from irc.training.recipe import recipe_of
from tests.programs.models import MICRO_BATCHES, OPTIMIZER, model_and_batch, trained_eagerly
from tests.schedule.random_schedules import random_schedule


def planned(name: str, text: str, file: Path) -> tuple[PartsPlan, Run]:
    """Plan a step of a case in a schedule of four micro-batches, and run two steps."""
    file.write_text(text)
    ranks = text.count("rank ")
    schedule: Schedule = schedule_for(str(file), ranks, MICRO_BATCHES)
    model, batch = model_and_batch(name)
    recipe = recipe_of(dict(OPTIMIZER), micro_batches=MICRO_BATCHES)
    with torch.no_grad():
        captured, split = captured_step(model, None, recipe, batch, {})
    options = Options(mesh=Mesh.parse(f"pipe={ranks}"))
    recipe = stages_recipe(model, captured, replace(recipe, split=split))
    plan = make_parts_plan(captured.program, recipe, options, schedule)
    weights = dict(captured.program.tensors)
    return plan, run_here(plan, weights, [batch] * 2, lr=OPTIMIZER["lr"])


IN_ORDER = "rank 0: 0F0 0F1 0F2 0F3 0B1 0B0 0B3 0B2\nrank 1: 1F0 1F1 1B1 1B0 1F2 1F3 1B3 1B2\n"
SWAPPED = IN_ORDER.replace("0F0 0F1", "0F1 0F0").replace("1F0 1F1 1B1 1B0", "1F1 1F0 1B1 1B0")
SHARING = (
    "path 0: 0 1\npath 1: 1 3\npath 2: 0 1\npath 3: 0 1\n"
    "rank 0: 0F0 0F2 0F3 0B0 0B2 0B3\nrank 1: 1F0 1B0 1F1 3F1 3B1 1B1 1F2 1B2 1F3 1B3\n"
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("conv", IN_ORDER),
        *(pytest.param(n, SWAPPED, marks=pytest.mark.slow) for n in ("gpt", "tied", "experts")),
    ],
)
def test_orders_of_a_users_own_train_right(name: str, text: str, tmp_path: Path) -> None:
    """Losses, parameters and moved buffers, whatever order backward or the batch is in."""
    plan, run = planned(name, text, tmp_path / "own.txt")
    losses, state = trained_eagerly(name, 2)
    assert [float(loss) for loss in run.losses] == pytest.approx(losses, abs=1e-11)
    for held in {*plan.holders} & {*state}:
        assert (run.whole(held) - state[held]).abs().max() < 1e-11, held


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tied", "skips", "frozen", "gpt"])
@pytest.mark.parametrize("seed", range(4))
def test_random_schedules_train_models_right(name: str, seed: int, tmp_path: Path) -> None:
    """Weights in two stages, on one rank or two; sums of the whole batch; frozen layers."""
    rng = Random(seed)
    splits = [rng.random() < 0.5 for _ in range(rng.randint(2, 4))]
    schedule = random_schedule(rng, len(splits), MICRO_BATCHES, splits)
    test_orders_of_a_users_own_train_right(name, print_schedule(schedule), tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("conv", SWAPPED, "runs micro-batch 1 before 0 in stage 0"),
        ("gpt", SHARING, "are not those of a plan"),
    ],
)
def test_what_would_be_wrong_is_refused(name: str, text: str, words: str, tmp_path: Path) -> None:
    """Batch norm's averages depend on the order of the batch; a stage is one part of a model."""
    with pytest.raises(IrcError, match=words) as caught:
        planned(name, text, tmp_path / "own.txt")
    assert caught.value.code == "pipeline-unsupported"


@pytest.mark.parametrize(
    ("text", "words"), [(SWAPPED, "out of order"), (SHARING, "paths that share stages")]
)
def test_a_plan_that_was_edited_so_is_refused(text: str, words: str, tmp_path: Path) -> None:
    plan, _ = planned("conv", IN_ORDER, tmp_path / "own.txt")
    facts = replace(plan.facts, schedule=schedule_digest(text))
    with pytest.raises(IrcError, match=words) as caught:
        checked_parts(facts, text, plan.parts)
    assert caught.value.code == "plan-corrupt"
