"""Steps of several micro-batches on one device: functions that hand values on in registers."""

from __future__ import annotations

import pytest
import torch

import irc
from irc.errors import IrcError
from tests.programs.models import (
    CASES,
    MICRO_BATCHES,
    OPTIMIZER,
    furthest,
    model_and_batch,
    trained_eagerly,
)

STEPS = 3


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if not case.draws])
@pytest.mark.parametrize("schedule", [pytest.param("gpipe", marks=pytest.mark.slow), "zb-h1"])
def test_steps_equal_eager_training(name: str, schedule: str) -> None:
    """In float64, to the last digits: ignored targets, batch norm, tied and frozen weights."""
    model, batch = model_and_batch(name)
    step = irc.compile_step(
        model, optimizer=OPTIMIZER, mesh="pipe=1", micro_batches=MICRO_BATCHES, schedule=schedule
    )
    losses = [step(*batch).item() for _ in range(STEPS)]
    expected, state = trained_eagerly(name, STEPS)
    assert losses == pytest.approx(expected, abs=1e-12)
    assert furthest(step.state_dict()["model"], state) < 1e-12


def test_each_micro_batch_draws_numbers_of_its_own() -> None:
    """Those of a step of one program whose seed no other micro-batch of any step has."""
    model, (x,) = model_and_batch("dropped")
    step = irc.compile_step(model, optimizer=OPTIMIZER, micro_batches=MICRO_BATCHES)
    losses = [step(x, lr=0.0).item() for _ in range(STEPS)]
    for number, loss in enumerate(losses):
        alone = [
            irc.compile_step(model, optimizer=OPTIMIZER, seed=number * MICRO_BATCHES + k)
            for k in range(MICRO_BATCHES)
        ]
        each = [one(own, lr=0.0) for one, own in zip(alone, x.chunk(MICRO_BATCHES), strict=True)]
        assert loss == pytest.approx(torch.stack(each).mean().item(), abs=1e-12)
    assert len(set(losses)) == STEPS


def test_state_goes_on_in_another_step() -> None:
    """Moments, the count of steps and the seed are put together and taken up again."""
    model, batch = model_and_batch("tied")
    options = {"optimizer": "adamw", "micro_batches": MICRO_BATCHES}
    step = irc.compile_step(model, **options)
    step(*batch)
    state = step.state_dict()
    assert state["seed"] == 1
    assert set(state["optimizer"]["state"]) == {n for n, _ in model.named_parameters()}
    expected = [step(*batch).item() for _ in range(2)]
    other, _ = model_and_batch("tied")
    again = irc.compile_step(other, **options)
    again.load_state_dict(state)
    assert [again(*batch).item() for _ in range(2)] == pytest.approx(expected, abs=1e-12)


def test_memory_is_what_a_rank_holds() -> None:
    """Registers and accumulators count; the modules' own parameters move."""
    model, batch = model_and_batch("gpt")
    before = model.head.weight.detach().clone()
    step = irc.compile_step(model, micro_batches=MICRO_BATCHES)
    step(*batch)
    held = step.memory_bytes()
    whole = sum(p.numel() * p.element_size() for p in model.parameters())
    assert held["parameters"] == held["accumulators"] == whole
    assert held["registers"] > 0
    assert not torch.equal(model.head.weight, before)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"mesh": "pipe=2", "schedule": "1f2b"}, "schedule-unknown"),
        ({"mesh": "pipe=2", "schedule": "none.csv"}, "file-missing"),
        ({"mesh": "pipe=3", "micro_batches": 8, "schedule": "skip"}, "pipeline-unsupported"),
        ({"mesh": "pipe=1", "schedule": "vocab-1:1f1b"}, "pipeline-unsupported"),
        ({"mesh": "pipe=2", "micro_batches": 0}, "option-value"),
        ({"micro_batches": 2, "accumulate": 2}, "option-value"),
        ({"stages": "tok; head"}, "option-value"),
        ({"schedule": "zb-v"}, "option-value"),
        ({"mesh": "pipe=3", "micro_batches": 4, "schedule": "interleaved:2"}, "schedule-size"),
    ],
)
def test_what_cannot_be_is_refused_at_once(options: dict[str, object], code: str) -> None:
    model, _ = model_and_batch("gpt")
    with pytest.raises(IrcError) as caught:
        irc.compile_step(model, **options)
    assert caught.value.code == code
