"""Stages that are equal but for names are planned once, as each would be alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch

from irc.calls.step_plan import captured_step
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.interpret.parts_check import check_parts
from irc.pipeline import Options
from irc.plan.parts import PartsPlan
from irc.programs import placing, stage_plans
from irc.programs.equal_stages import Names
from irc.programs.make import make_parts_plan
from irc.programs.schedules import schedule_for
from irc.report.parts import explain_parts
from irc.training.recipe import recipe_of
from irc.training.stage_runs import StageRuns
from tests.programs.models import MICRO_BATCHES, OPTIMIZER, model_and_batch

STAGES = "tok, pos, blocks.0; blocks.1; blocks.2; blocks.3, norm, head"
Planned = tuple[PartsPlan, dict[str, torch.Tensor], list[torch.Tensor]]


def planned(schedule: str, mesh: str, **options: Any) -> Planned:
    """Plan a GPT with a layer a stage."""
    model, batch = model_and_batch("gpt")
    recipe = recipe_of(dict(OPTIMIZER), micro_batches=MICRO_BATCHES)
    with torch.no_grad():
        captured, split = captured_step(model, None, recipe, batch, {})
    whole = Mesh.parse(mesh)
    plan = make_parts_plan(
        captured.program,
        replace(recipe, split=split),
        Options(mesh=whole, **options),
        schedule_for(schedule, whole.size("pipe"), MICRO_BATCHES),
        STAGES,
    )
    return plan, dict(captured.program.tensors), list(batch)


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The stages that a search was made for."""
    numbers: list[int] = []
    place = stage_plans._place  # pyright: ignore[reportPrivateUsage]

    def noted(*arguments: Any) -> Any:
        numbers.append(arguments[0].number)
        return place(*arguments)

    monkeypatch.setattr(stage_plans, "_place", noted)
    monkeypatch.setenv("IRC_PROCESSES", "1")  # so that this one is asked
    return numbers


def parts_table(text: str) -> list[str]:
    """Return the lines of an explanation about what searches of stages say."""
    _, _, rest = text.partition("as searched, by function\n")
    return rest.partition("\n\n")[0].splitlines()[1:]


@pytest.mark.parametrize(
    ("schedule", "mesh", "pins"),
    [
        ("1f1b", "pipe=4", ""),
        pytest.param(
            "zb-h1",
            "pipe=4,data=2",
            '"blocks.*.up.weight" = [data = S(0)]',
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_plan_is_that_of_each_alone(
    monkeypatch: pytest.MonkeyPatch, placed: list[int], schedule: str, mesh: str, pins: str
) -> None:
    once, _, _ = planned(schedule, mesh, pins=pins, keep_ir=not pins)
    assert placed == [0, 1, 3]
    placed.clear()
    numbers = count()

    def other(*arguments: object) -> str:
        return f"{next(numbers)} of {len(arguments)}"

    monkeypatch.setattr(placing, "key_of", other)
    alone, _, _ = planned(schedule, mesh, pins=pins, keep_ir=not pins)
    assert placed == [0, 1, 2, 3]
    assert once.text == alone.text
    said = parts_table(explain_parts(once))
    assert len(said) == (0 if not pins else 4 * 5)


@pytest.mark.parametrize(
    ("search", "serves"),
    [
        ({"bytes_limit": None}, True),
        ({"bytes_limit": 100, "limit_costs": 0.5 * stage_plans.LIMIT_COSTS}, True),
        ({"bytes_limit": 100, "limit_costs": 2 * stage_plans.LIMIT_COSTS}, False),
        ({"bytes_limit": 100}, False),
    ],
)
def test_a_stage_that_keeps_less_is_planned_anew_where_the_memory_made_the_other_dearer(
    search: dict[str, object], serves: bool
) -> None:
    """Of 64 stages those behind the middle keep one micro-batch less each."""
    names = Names((), ())
    more, fewer = (StageRuns(8, slots={"x": count}) for count in (4, 3))
    plan = stage_plans.StagePlan({}, {}, frozenset(), {"bytes_held": 90, **search})
    known = stage_plans.Known(names, more, plan)
    assert known.serves(names, more, 100)
    assert known.serves(names, fewer, 100) == serves


def test_other_pins_make_another_plan(placed: list[int]) -> None:
    """What is said of one layer of two is not said of the other."""
    pins = '"blocks.2.up.weight" = [data = S(0)]; "blocks.1.up.weight" = [data = S(1)]'
    plan, _, _ = planned("1f1b", "pipe=4,data=2", pins=pins)
    assert placed == [0, 1, 2, 3]
    cuts = [
        buffer.placement[0].dim
        for part in (1, 2)
        for buffer in plan.parts[part]["F"].plan.buffers
        if buffer.name.endswith("up.weight")
    ]
    assert cuts == [1, 0]


def test_weights_of_an_equal_stage_are_named() -> None:
    """Each stage has its own: with those of the one that it was planned as, the check says so."""
    plan, weights, batch = planned("1f1b", "pipe=4")
    assert "are as eager has them" in str(check_parts(plan, weights, batch))
    first, second = (plan.parts[part]["F"] for part in (1, 2))
    assert first.kernel_sources() == second.kernel_sources()
    names = {
        a.name: b.name
        for a, b in zip(second.plan.buffers, first.plan.buffers, strict=True)
        if a.role == "parameter"
    }
    assert all(own.startswith("blocks.2.") for own in names)
    buffers = tuple(
        replace(b, name=names[b.name]) if b.name.endswith("up.weight") else b
        for b in second.plan.buffers
    )
    swapped = replace(second, plan=replace(second.plan, buffers=buffers))
    wrong = replace(plan, parts=(*plan.parts[:2], {**plan.parts[2], "F": swapped}, plan.parts[3]))
    with pytest.raises(IrcError) as caught:
        check_parts(wrong, weights, batch)
    assert "computed by F of stage 2" in caught.value.message
