"""``search`` in the place of a schedule's name: the order that a plan's own times ask for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import irc
from irc.calls.pipelined import stages_recipe
from irc.calls.step_plan import captured_step
from irc.cluster.load import find_cluster
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.interpret.parts_folder import check_parts_folder
from irc.pipeline import Options
from irc.plan.parts import PartsPlan
from irc.plan.parts_files import load_parts
from irc.programs.in_order import plan_alike, plan_in_order, with_order
from irc.programs.make import make_parts_plan
from irc.programs.schedules import schedule_for
from irc.report.parts import explain_parts
from irc.schedule.actions import Schedule
from irc.schedule.check import check
from irc.schedule.shortlist import is_like
from irc.simulate.parts import held_at, predict_step
from irc.training.recipe import recipe_of
from tests.programs.models import model_and_batch

SLOW = """
name = "slow"

[device]
name = "core"
peak_tflops = { f32 = 0.001 }
memory_gb = 8
memory_gb_per_s = 8.0

[[link]]
devices = 4
gb_per_s = 0.002
latency_us = 20
"""


def exported(folder: Path, schedule: str, name: str = "gpt", **options: Any) -> PartsPlan:
    """Write a plan of eight micro-batches for two cores on a slow link, and read it."""
    cluster = folder / "slow.toml"
    cluster.write_text(SLOW)
    model, batch = model_and_batch(name)
    out = folder / schedule.replace(":", "-")
    irc.export_plan(
        model, batch, mesh="pipe=2", micro_batches=8, schedule=schedule, optimizer="adamw",
        cluster=str(cluster), out=out, **options,
    )  # fmt: skip
    return load_parts(out)


def seconds(plan: PartsPlan, folder: Path) -> float:
    cluster = find_cluster(str(folder / "slow.toml")).fit(plan.mesh)
    return predict_step(plan, cluster).seconds


def most(plan: PartsPlan) -> int:
    return max(held_at(plan, place).num_bytes() for place in range(len(plan.ranks)))


def test_faster_than_those_with_a_name_and_says_so(tmp_path: Path) -> None:
    named = {name: exported(tmp_path, name) for name in ("1f1b", "zb-h1", "zb-h2")}
    plan = exported(tmp_path, "search")
    check(plan.schedule)
    assert plan.schedule.name == "search"
    own = seconds(plan, tmp_path)
    for name, other in named.items():
        assert own <= seconds(other, tmp_path) * (1 + 1e-9), name
    assert own < 0.95 * seconds(named["1f1b"], tmp_path)
    text = explain_parts(plan)
    assert "the best of" in text
    order = json.loads(explain_parts(plan, as_json=True))["order"]
    assert order["seconds"] == pytest.approx(own)
    for name, other in named.items():
        assert order["named"][name] == pytest.approx(seconds(other, tmp_path)), name
        assert name in text


@pytest.mark.slow
def test_the_same_twice(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    first, second = (exported(tmp_path / f, "search") for f in ("first", "second"))
    assert first.schedule == second.schedule
    assert first.facts.ahead == second.facts.ahead


def test_within_the_memory_that_a_user_gives(tmp_path: Path) -> None:
    free = exported(tmp_path, "search")
    least = most(exported(tmp_path, "1f1b"))
    assert most(free) > least
    bound = (most(free) + least) // 2
    folder = tmp_path / "bound"
    folder.mkdir()
    plan = exported(folder, "search", memory_bytes=bound)
    assert most(plan) <= bound
    assert seconds(plan, folder) >= seconds(free, tmp_path) * (1 - 1e-9)


def test_memory_that_holds_not_one_micro_batch(tmp_path: Path) -> None:
    with pytest.raises(IrcError) as error:
        exported(tmp_path, "search", memory_bytes=20_000)
    assert error.value.code == "pipeline-memory"


@pytest.mark.parametrize("schedule", ["search", pytest.param("search:2", marks=pytest.mark.slow)])
def test_is_the_step_of_eager_training(tmp_path: Path, schedule: str) -> None:
    plan = exported(tmp_path, schedule, "tied")
    assert len(plan.parts) == (4 if schedule == "search:2" else 2)
    assert plan.folder is not None
    assert check_parts_folder(str(plan.folder)).values > 0


@pytest.mark.parametrize("text", ["search:0", "search:", "search:x", "search:65"])
def test_a_number_of_stages_that_is_none(text: str, tmp_path: Path) -> None:
    with pytest.raises(IrcError, match="is not a number of stages a rank") as error:
        exported(tmp_path, text)
    assert error.value.code == "schedule-unknown"


def test_one_rank_has_no_order() -> None:
    model, batch = model_and_batch("gpt")
    with pytest.raises(IrcError, match="there is one rank") as error:
        irc.compile_step(model, optimizer="adamw", micro_batches=4, schedule="search")(*batch)
    assert error.value.code == "schedule-size"
    with pytest.raises(IrcError) as error:
        irc.compile_step(model, optimizer="adamw", schedule="search")(*batch)
    assert error.value.code == "option-value"


def test_no_schedule_by_itself() -> None:
    from irc.schedule.named import generate

    with pytest.raises(IrcError, match="no order of its own") as error:
        generate("search", ranks=2, micro_batches=4)
    assert error.value.code == "schedule-unknown"


def planner(options: Options) -> Callable[[Schedule], PartsPlan]:
    """Return what plans a GPT's step of eight micro-batches in an order."""
    model, batch = model_and_batch("gpt")
    recipe = recipe_of({"kind": "sgd", "lr": 0.1}, micro_batches=8)
    with torch.no_grad():
        captured, split = captured_step(model, None, recipe, batch, {})
    recipe = stages_recipe(model, captured, replace(recipe, split=split))
    return lambda order: make_parts_plan(captured.program.copy(), recipe, options, order)


TWO = Options(mesh=Mesh.parse("pipe=2"))


def test_further_batches_have_slots_ahead_as_many_as_fit() -> None:
    plan = planner(TWO)(schedule_for("zb-h2", 2, 8))
    first = with_order(plan, plan.written, 4)
    bound = most(with_order(plan, plan.written, 2))
    assert bound < most(first)
    options = replace(TWO, memory_bytes=bound)
    further = plan_alike("search", first, planner(options), options)
    assert 2 <= further.facts.ahead < 4
    assert further.written == first.written
    assert most(further) <= bound
    assert plan_alike("search", first, planner(TWO), TWO).facts.ahead == 4


def test_further_batches_for_which_the_first_order_holds_too_much() -> None:
    first = planner(TWO)(schedule_for("zb-h2", 2, 8))
    bound = most(first) - 1
    options = replace(TWO, memory_bytes=bound)
    further = plan_alike("search", first, planner(options), options)
    assert most(further) <= bound
    assert is_like(further.written, first.written)


def test_a_form_that_moves_nothing_leaves_the_other() -> None:
    make = planner(TWO)

    def of_one_form(order: Schedule) -> PartsPlan:
        if order.splits_backward:
            raise IrcError("offload-unsupported", "nothing would be moved")
        return make(order)

    plan = plan_in_order("search", 2, 8, of_one_form, TWO)
    assert not plan.schedule.splits_backward
