"""A stage fits into the memory of its ranks: slots x bytes, weights, and the largest arena."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr

import irc
from irc.calls.step_plan import captured_step
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.passes.auto_shard import AutoShardPass
from irc.pipeline import Options
from irc.plan.parts import PartsPlan
from irc.programs.make import make_parts_plan
from irc.programs.schedules import schedule_for
from irc.programs.stage_memory import shares_of, too_small
from irc.simulate.parts import held_at
from irc.training.recipe import recipe_of
from irc.training.stage_runs import StageRuns
from tests.programs.models import MICRO_BATCHES, OPTIMIZER, model_and_batch


def planned(name: str, schedule: str, mesh: str, **options: Any) -> PartsPlan:
    """Plan a step of a case."""
    model, batch = model_and_batch(name)
    recipe = recipe_of(dict(OPTIMIZER), micro_batches=MICRO_BATCHES)
    with torch.no_grad():
        captured, split = captured_step(model, None, recipe, batch, {})
    whole = Mesh.parse(mesh)
    return make_parts_plan(
        captured.program,
        replace(recipe, split=split),
        Options(mesh=whole, **options),
        schedule_for(schedule, whole.size("pipe"), MICRO_BATCHES),
    )


def most(plan: PartsPlan) -> int:
    """Return what the fullest rank holds."""
    return max(held_at(plan, place).num_bytes() for place in range(len(plan.ranks)))


@pytest.mark.parametrize(
    ("name", "schedule", "mesh", "pins"),
    [
        ("gpt", "gpipe", "pipe=2,data=2", "cut* = [data = S(0)]"),
        ("skips", "1f1b", "pipe=4,data=2", ""),
        ("gpt", "zb-h1", "pipe=2,tensor=2", '"blocks.*.up.weight" = [tensor = S(0)]'),
    ],
)
def test_the_search_counts_every_slot(
    monkeypatch: pytest.MonkeyPatch, name: str, schedule: str, mesh: str, pins: str
) -> None:
    """What it says that a stage holds is what its rank sets aside, and what libraries allocate."""
    reports: list[dict[str, Any]] = []
    apply = AutoShardPass.apply

    def noted(self: AutoShardPass, ctx: Context, op: ModuleOp) -> None:
        apply(self, ctx, op)
        report = op.attributes["irc.plan_cost"]
        assert isinstance(report, StringAttr)
        reports.append(json.loads(report.data))

    monkeypatch.setattr(AutoShardPass, "apply", noted)
    monkeypatch.setenv("IRC_PROCESSES", "1")  # reports are of this process, in the order of stages
    plan = planned(name, schedule, mesh, pins=pins)
    for place, report in enumerate(reports):
        held = held_at(plan, place).num_bytes()
        beside = report["peak_bytes"].get("library", 0) + report["peak_bytes"].get("inputs", 0)
        # Buffers begin at multiples of 64 bytes, which is much of what a small model has.
        assert 0.99 * held <= report["bytes_held"] <= held + beside + 0.02 * held


def refused(name: str, schedule: str, mesh: str, budget: int) -> IrcError:
    with pytest.raises(IrcError) as caught:
        planned(name, schedule, mesh, memory_bytes=budget)
    assert caught.value.code == "pipeline-memory"
    return caught.value


def test_the_smallest_budget_is_named_and_how_many_fit() -> None:
    """A rank alone: the plan with that budget is made, with a byte less it is not."""
    plan = planned("dropped", "gpipe", "pipe=2")
    assert {count for count, _ in held_at(plan, 0).registers.values()} >= {MICRO_BATCHES}
    budget = max(held_at(plan, place).num_bytes(2) for place in range(2))
    error = refused("dropped", "gpipe", "pipe=2", budget)
    assert "keeps at most 2 micro-batches" in error.help
    least = smallest(error)
    assert least == most(plan)
    assert most(planned("dropped", "gpipe", "pipe=2", memory_bytes=least)) == least
    refused("dropped", "gpipe", "pipe=2", least - 1)
    assert "a single slot" in refused("dropped", "gpipe", "pipe=2", 1000).help


@pytest.mark.parametrize(
    ("mesh", "code"), [("pipe=2", "pipeline-memory"), ("pipe=2,data=2", "sharding-infeasible")]
)
def test_what_is_held_all_the_time_has_a_budget(mesh: str, code: str) -> None:
    """With what the plan needs it is made again; far less is refused, on a mesh by the search."""
    plan = planned("dropped", "1f1b", mesh)
    least = int(max(held_at(plan, place).weights for place in range(2)))
    again = planned("dropped", "1f1b", mesh, stored_bytes=least)
    assert max(held_at(again, place).weights for place in range(2)) <= least
    with pytest.raises(IrcError, match=r"all the time|no sharding holds") as caught:
        planned("dropped", "1f1b", mesh, stored_bytes=100)
    assert caught.value.code == code
    assert "smallest budget that works is stored_bytes=" in caught.value.help


def test_one_device_without_stages_has_a_budget() -> None:
    """Its plan is all there is to choose: it fits, or the smallest budget is named."""
    x = torch.randn(4, 8)

    def step(**budget: int) -> None:
        model = nn.Linear(8, 1)
        irc.compile_step(model, loss=lambda y: y.square().mean(), optimizer="sgd", **budget)(x)

    for option in ("memory_bytes", "stored_bytes"):
        with pytest.raises(IrcError) as caught:
            step(**{option: 10})
        assert caught.value.code == "sharding-infeasible"
        match = re.search(rf"{option}=(\d+)", caught.value.help)
        assert match
        step(**{option: int(match[1])})
        with pytest.raises(IrcError):
            step(**{option: int(match[1]) - 1})


def smallest(error: IrcError) -> int:
    """Return the budget that an error says works."""
    match = re.search(r"memory_bytes=(\d+)", error.help)
    assert match
    return int(match[1])


def test_a_search_that_fits_nothing_says_how_many_micro_batches_do() -> None:
    """The error of a stage says what the search does, and how many slots would do."""
    error = IrcError("sharding-infeasible", "no sharding", help="the smallest is memory_bytes=9")
    schedule = schedule_for("gpipe", 2, MICRO_BATCHES)
    runs = StageRuns(MICRO_BATCHES, slots={"F-B": 4})
    tried: list[int] = []

    def fits(slots: int) -> bool:
        tried.append(slots)
        return slots <= 3

    refusal = too_small(error, 1, schedule, runs, fits)
    assert (refusal.code, max(tried)) == ("pipeline-memory", 3)
    assert "stage 1" in refusal.message
    assert "keeps up to 4 micro-batches" in "".join(refusal.because)
    assert "memory_bytes=9" in refusal.help
    assert "at most 3 micro-batches" in refusal.help


def test_stages_of_one_rank_share_its_memory() -> None:
    """Each may have its part of what all of them hold, and all work in one arena."""
    plan = planned("dropped", "interleaved:2", "pipe=2,data=2")
    budget = int(0.8 * most(plan))
    searches: list[dict[str, Any]] = [{} for _ in plan.parts]
    shares = shares_of(plan, [budget, budget], searches)
    assert shares is not None
    for place in range(2):
        held = held_at(plan, place)
        own = [(shares[part] or budget) - held.arena for part in plan.parts_at(place).values()]
        assert sum(own) + held.arena <= budget or held.num_bytes() <= budget
    assert shares_of(plan, [most(plan)] * 2, searches) is None


def test_what_a_search_did_not_see_is_taken_off_what_a_part_may_hold() -> None:
    """A budget less what it was over by was no less than the search had said already."""
    plan = planned("dropped", "1f1b", "pipe=2,data=2")
    first, second = (held_at(plan, place).num_bytes() for place in range(2))
    budget = min(first, second) - 1000
    same = {"bytes_held": first - 5000}
    # The second part is made from the first: what is not seen of it is what is not seen of that.
    assert shares_of(plan, [budget, budget], [same, same]) == [budget - 5000] * 2
    assert shares_of(plan, [budget, second], [same, same]) == [budget - 5000, None]
    assert shares_of(plan, [budget, second], [{}, {}]) == [2 * budget - first, None]
