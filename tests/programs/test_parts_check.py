"""Plans of several programs in one process: as eager trains, and planted faults are named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from irc.calls.step_plan import captured_step
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.interpret.parts import run_here
from irc.interpret.parts_check import check_parts
from irc.interpret.parts_peers import Sight, ThreadPeers
from irc.pipeline import Options
from irc.plan.parts import PartsPlan
from irc.plan.parts_verify import verify_parts
from irc.programs.make import make_parts_plan
from irc.programs.schedules import schedule_for
from irc.schedule.tapes import Event, Place
from irc.training.recipe import recipe_of
from tests.programs.models import (
    MICRO_BATCHES,
    OPTIMIZER,
    model_and_batch,
    trained_eagerly,
)
from tests.programs.planted_faults import with_tape

Planned = tuple[PartsPlan, dict[str, torch.Tensor], list[torch.Tensor]]


def planned(
    name: str, schedule: str, mesh: str, pins: str = "", dtype: torch.dtype = torch.float64
) -> Planned:
    """Plan a step of a case; return the plan, its weights and a batch."""
    model, batch = model_and_batch(name, dtype)
    recipe = recipe_of(dict(OPTIMIZER), micro_batches=MICRO_BATCHES)
    with torch.no_grad():
        captured, split = captured_step(model, None, recipe, batch, {})
    whole = Mesh.parse(mesh)
    plan = make_parts_plan(
        captured.program,
        replace(recipe, split=split),
        Options(mesh=whole, pins=pins),
        schedule_for(schedule, whole.size("pipe"), MICRO_BATCHES),
    )
    return plan, dict(captured.program.tensors), list(batch)


@pytest.fixture(scope="module")
def gpt() -> Planned:
    """A GPT in two stages; nothing in it is changed by a test."""
    return planned("gpt", "1f1b", "pipe=2")


def check(case: Planned, **options: Any) -> str:
    plan, weights, batch = case
    return str(check_parts(plan, weights, batch, **options))


@pytest.mark.parametrize(
    ("name", "schedule", "mesh", "pins"),
    [
        ("tied", "zb-v", "pipe=2", ""),
        ("skips", "interleaved:2", "pipe=2,data=1", ""),
        ("conv", "1f1b", "pipe=4", ""),
        pytest.param("tied", "dualpipe", "pipe=2", "", marks=pytest.mark.slow),
        pytest.param("experts", "zb-h2", "pipe=2", "", marks=pytest.mark.slow),
        pytest.param(
            "gpt", "1f1b", "pipe=2,data=2", "cut* = [data = S(0)]", marks=pytest.mark.slow
        ),
    ],
)
def test_all_ranks_in_one_process(name: str, schedule: str, mesh: str, pins: str) -> None:
    """Losses and parameters are eager's, and so is each value on its way."""
    case = planned(name, schedule, mesh, pins)
    assert "are as eager has them" in check(case)
    plan, weights, batch = case
    verify_parts(plan)
    run = run_here(plan, weights, [batch] * 2, lr=OPTIMIZER["lr"])
    losses, state = trained_eagerly(name, 2)
    assert [float(loss) for loss in run.losses] == pytest.approx(losses, abs=1e-12)
    for parameter in plan.trained:
        assert (run.whole(parameter) - state[parameter]).abs().max() < 1e-12


def test_gradients_that_are_rounding_alone_are_no_faults() -> None:
    """Those of the biases before batch norms are zero: in float32 no digit of them is told."""
    case = planned("conv", "1f1b", "pipe=2", dtype=torch.float32)
    plan, weights, batch = case
    biased = {n: t + torch.randn(t.shape) for n, t in weights.items() if n.endswith("0.bias")}
    assert biased
    assert "are as eager has them" in check((plan, {**weights, **biased}, batch))


def named(case: Planned, **options: Any) -> str:
    """Return what the check says of a plan with a fault."""
    with pytest.raises(IrcError) as caught:
        check(case, **options)
    assert caught.value.code == "check-failed"
    return caught.value.message


def test_a_wrong_boundary_is_named(gpt: Planned) -> None:
    """Stage 0 sends another of its values, of the same shape."""
    plan, weights, batch = gpt
    sent = plan.facts.channels[0]
    shape = plan.registers(0)[sent.register].shape
    other = next(
        name
        for name, buffer in plan.registers(0).items()
        if buffer.shape == shape and name != sent.register and name.startswith("saved")
    )
    channels = (replace(sent, register=other), *plan.facts.channels[1:])
    wrong = replace(plan, facts=replace(plan.facts, channels=channels))
    message = named((wrong, weights, batch))
    assert "micro-batch 0: 'cut0.1', computed by F of stage 0 on rank 0" in message


def test_a_slot_that_is_reused_too_early_is_named(gpt: Planned) -> None:
    """All micro-batches save into one slot, while several are in flight."""
    plan, weights, batch = gpt

    def first(places: Any) -> dict[str, Place]:
        return {
            name: place._replace(slot=0) if name.startswith("saved") else place
            for name, place in places.items()
        }

    def change(event: Event) -> Event:
        return event._replace(reads=first(event.reads), makes=first(event.makes))

    message = named((with_tape(plan, 0, change), weights, batch))
    assert message.startswith("micro-batch 0: 'saved")
    assert "read by B of stage 0 on rank 0, is not what was put there" in message


def test_a_swapped_micro_batch_is_named(gpt: Planned) -> None:
    """Stage 0 computes micro-batch 1 where 2 is due."""
    plan, weights, batch = gpt
    swap = {1: 2, 2: 1}

    def change(event: Event) -> Event:
        if event.what != "run" or event.action.kind != "F":
            return event
        number = event.action.micro_batch
        return event._replace(action=event.action._replace(micro_batch=swap.get(number, number)))

    message = named((with_tape(plan, 0, change), weights, batch))
    assert "micro-batch 1: 'cut0.1'" in message


def test_a_weight_of_another_layer_is_named(gpt: Planned) -> None:
    """The forward function of stage 1 reads a weight of the layer before."""
    plan, weights, batch = gpt
    names = [
        n
        for n, parts in plan.holders.items()
        if parts == (1,) and n.startswith("blocks.") and n.endswith("up.weight")
    ]
    own, other = sorted(names)[:2]
    forward = plan.parts[1]["F"]
    swap = {own: other, other: own}
    buffers = tuple(replace(b, name=swap.get(b.name, b.name)) for b in forward.plan.buffers)
    wrong_function = replace(forward, plan=replace(forward.plan, buffers=buffers))
    parts = (plan.parts[0], {**plan.parts[1], "F": wrong_function})
    message = named((replace(plan, parts=parts), weights, batch))
    assert "micro-batch 0: the loss, computed by F of stage 1 on rank 1" in message


def test_a_swapped_pair_of_messages_is_named(gpt: Planned) -> None:
    """Stage 1 takes the first value for the second, and the second for the first."""

    class Swapping(ThreadPeers):
        def transfer(self, event: Event, register: torch.Tensor) -> Any:
            number, is_end = event.action.micro_batch, event.what in ("post", "arrive")
            if event.route is None or event.route.name != "cut0.1" or not is_end or number > 1:
                return super().transfer(event, register)
            action = event.action._replace(micro_batch=1 - number)
            run = super().transfer(event._replace(action=action), register)

            def swapped() -> None:
                seen, self._seen = self._seen, {}
                run()
                self._seen = seen
                if event.what == "arrive":
                    seen[Sight("got", self._rank, 1, "cut0.1", number)] = register.clone()

            return swapped

    message = named(gpt, peers=Swapping)
    assert "micro-batch 0: 'cut0.1', received for F of stage 1 on rank 1" in message
