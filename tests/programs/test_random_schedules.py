"""Random legal schedules compute what the plain program does, and faults in them are named."""

# pyright: basic
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from random import Random

import pytest
import torch
from torch import nn

from irc.calls.step_plan import captured_step
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.interpret.parts import run_here
from irc.interpret.parts_check import check_parts
from irc.pipeline import Options
from irc.plan.parts import PartsPlan, make_parts
from irc.plan.parts_facts import schedule_digest
from irc.programs.make import make_parts_plan
from irc.programs.offload import moving_all
from irc.programs.schedules import as_functions
from irc.schedule.actions import Schedule
from irc.schedule.notation import print_schedule
from irc.training.recipe import recipe_of
from tests.programs.models import OPTIMIZER
from tests.programs.planted_faults import PLANTERS
from tests.schedule.random_schedules import random_schedule

STEPS = 2
CLOSE = 1e-11


class Layers(nn.Module):
    """Layers of which the last reads the result of the first: it crosses every cut."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6))
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x = torch.tanh(self.layers[0](x))
        for layer in self.layers[1:]:
            x = x + torch.tanh(layer(x))
        return self.head(x * first).square().mean()


@dataclass(frozen=True)
class Shape:
    """What the functions of a plan depend on, of a schedule."""

    micro_batches: int
    splits: tuple[bool, ...]


SHAPES = (
    Shape(5, (True,) * 4),
    Shape(3, (True, False, True, False, False, True)),
    Shape(6, (False,) * 3),
)


@dataclass(frozen=True)
class Trained:
    """A plan, its weights and batch, and what the model is after some steps of torch's own."""

    plan: PartsPlan
    weights: dict[str, torch.Tensor]
    batch: list[torch.Tensor]
    losses: list[float]
    state: dict[str, torch.Tensor]


@cache
def trained(shape: Shape) -> Trained:
    """Plan a step in a schedule of a shape: its functions serve all others of it."""
    torch.manual_seed(0)
    model, count = Layers().double(), shape.micro_batches
    batch = torch.randn(2 * count, 4, dtype=torch.float64)
    recipe = recipe_of(dict(OPTIMIZER), micro_batches=count)
    with torch.no_grad():
        captured, split = captured_step(model, None, recipe, (batch,), {})
    weights = {name: tensor.clone() for name, tensor in captured.program.tensors.items()}
    schedule = random_schedule(Random(0), len(shape.splits), count, shape.splits)
    options = Options(mesh=Mesh.parse(f"pipe={len(schedule.ranks)}"))
    plan = make_parts_plan(
        captured.program, replace(recipe, split=split), options, as_functions(schedule)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses: list[float] = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return Trained(plan, weights, [batch], losses, dict(model.state_dict()))


def in_schedule(base: Trained, schedule: Schedule) -> PartsPlan:
    """Return a plan of the same functions in another schedule, which is printed and read."""
    text = print_schedule(as_functions(schedule))
    mesh = f"pipe={len(schedule.ranks)}"
    facts = replace(base.plan.facts, mesh=mesh, schedule=schedule_digest(text))
    plan = make_parts(facts, text, base.plan.parts)
    return replace(plan, texts=base.plan.texts)


def moving(plan: PartsPlan) -> PartsPlan:
    """Return the plan with all values out of their slots that have the time for it."""
    moved = tuple(tuple(sorted(own)) for own in moving_all(plan.wiring).moved)
    facts = replace(plan.facts, offload="disk", moved=moved)
    return replace(make_parts(facts, plan.schedule_text, plan.parts), texts=plan.texts)


def schedules(shape: Shape, count: int) -> Iterator[Schedule]:
    for seed in range(1, count + 1):
        rng = Random(seed)
        copies = rng.choice((1, 1, 2))
        yield random_schedule(
            rng, len(shape.splits), shape.micro_batches, shape.splits, copies=copies
        )


def furthest(base: Trained, plan: PartsPlan) -> float:
    """Return by how much losses and parameters of a plan differ from torch's."""
    run = run_here(plan, base.weights, [base.batch] * STEPS, lr=0.05)
    losses = [abs(float(own) - loss) for own, loss in zip(run.losses, base.losses, strict=True)]
    moved = [float((run.whole(n) - value).abs().max()) for n, value in base.state.items()]
    return max(*losses, *moved)


def check(base: Trained, plan: PartsPlan, **options: object) -> str:
    report = check_parts(
        plan,
        base.weights,
        base.batch,
        **options,  # type: ignore[arg-type]
    )
    return str(report)


@pytest.mark.parametrize("shape", SHAPES)
def test_random_schedules_are_the_plain_program(shape: Shape) -> None:
    """Losses, and parameters after clipping and momentum; every fourth value by value.

    In every third, values leave their slots.
    """
    base = trained(shape)
    for number, schedule in enumerate(schedules(shape, 12)):
        plan = in_schedule(base, schedule)
        plan = plan if number % 3 else moving(plan)
        assert furthest(base, plan) < CLOSE, print_schedule(schedule)
        if number % 4 == 0:
            assert "as eager has them" in check(base, plan)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_hundreds_of_random_schedules_are_the_plain_program(shape: Shape) -> None:
    base = trained(shape)
    for number, schedule in enumerate(schedules(shape, 200)):
        plan = in_schedule(base, schedule)
        plan = plan if number % 2 else moving(plan)
        assert furthest(base, plan) < CLOSE, print_schedule(schedule)


def name_faults(planter: str, shape: Shape, count: int) -> None:
    """Plant a fault at a random point of random schedules, and see that each is named."""
    base, planted = trained(shape), 0
    for seed, schedule in enumerate(schedules(shape, 10 * count)):
        plan = in_schedule(base, schedule)
        seen = run_here(plan, base.weights, [base.batch], lr=0.0).seen
        fault = PLANTERS[planter](plan, seen, Random(seed))
        if fault is None:
            continue
        with pytest.raises(IrcError) as caught:
            check(base, fault.plan, peers=fault.peers)
        said = caught.value.message
        assert re.search(fault.words, said), (said, fault.words, print_schedule(schedule))
        planted += 1
        if planted == count:
            return
    raise AssertionError(f"{planted} schedules had a place for {planter}")


@pytest.mark.parametrize("planter", PLANTERS)
def test_faults_in_random_schedules_are_named(planter: str) -> None:
    name_faults(planter, SHAPES[1], 4)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("planter", PLANTERS)
def test_many_faults_in_random_schedules_are_named(planter: str, shape: Shape) -> None:
    name_faults(planter, shape, 40)
