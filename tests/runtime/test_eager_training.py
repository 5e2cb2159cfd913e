"""What trials of training are held against: steps that overflow, masters, tensors that lack."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import irc
from irc.plan.load import LoadedPlan, load_plan
from irc.runtime.compare_training import _nudged, compare_training
from irc.runtime.eager_training import Trained, train_eagerly, trained_names
from irc.runtime.weights import load_weights


class Shifted(nn.Module):
    """Has a number that changes no output: its gradient is nothing but rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 4)
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.log_softmax(self.first(x) + self.shift, -1))


RATE = torch.tensor(1e-2, dtype=torch.float64)
NAME = "0.weight"


def planned(folder: Path, model: nn.Module | None = None, **precision: Any) -> LoadedPlan:
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    batch = torch.randn(6, 8), torch.arange(6) % 4
    options = {"optimizer": "adamw", "precision": irc.Precision(**precision), "native": "none"}
    irc.export_plan(model, batch, out=folder / "plan", loss=F.cross_entropy, **options)
    return load_plan(folder / "plan")


def batches(loaded: LoadedPlan, count: int) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    x, y = (loaded.plan.buffers[i].name for i in loaded.plan.inputs[:2])
    return [{x: torch.randn(6, 8), y: torch.arange(6) % 4, "lr": RATE} for _ in range(count)]


@pytest.mark.parametrize("count", [3, 24])
def test_steps_that_overflow_are_skipped_in_float64(tmp_path: Path, count: int) -> None:
    """At first all of them overflow in float16; weights that are pushed the wrong way are seen."""
    loaded = planned(tmp_path, compute="float16", scaler={"init_scale": 2.0**30})
    weights, step_batches = load_weights(loaded, None), batches(loaded, count)
    right = train_eagerly(loaded, weights, step_batches)
    assert all(right.skips[:3])
    assert right.skips[-1] == (count == 3)
    whole = train_eagerly(loaded, weights, step_batches, torch.float64, right.skips)
    assert whole.skips == right.skips
    assert torch.equal(whole.tensors[NAME], weights[NAME].double()) == all(right.skips)
    assert compare_training(loaded, weights, step_batches, right).ok
    moved = train_eagerly(loaded, weights, step_batches, torch.float64, [False] * count).tensors[
        NAME
    ]
    wrong = {**right.tensors, NAME: (2 * weights[NAME] - moved).float()}
    said = compare_training(loaded, weights, step_batches, Trained(right.losses, wrong))
    assert not said.ok
    assert said.where == NAME


def test_a_plan_may_skip_other_steps_and_none_without_need(tmp_path: Path) -> None:
    """Where eager overflows at a scale that a plan does not, the plan moves; it may not stand."""
    loaded = planned(tmp_path, compute="float16", scaler={"init_scale": 2.0**24})
    weights, step_batches = load_weights(loaded, None), batches(loaded, 12)
    eager = train_eagerly(loaded, weights, step_batches)
    first = eager.skips.index(False)
    assert first >= 2
    fewer = [n < first - 2 for n in range(12)]
    with_fewer = train_eagerly(loaded, weights, step_batches, torch.float64, fewer)
    assert with_fewer.skips == tuple(fewer)
    assert compare_training(loaded, weights, step_batches, with_fewer).ok
    lazy = train_eagerly(loaded, weights, step_batches, torch.float64, [True] * 12)
    said = compare_training(loaded, weights, step_batches, lazy)
    assert not said.ok
    assert "which is skipped" in said.where


def test_what_masters_keep_is_judged(tmp_path: Path) -> None:
    loaded = planned(tmp_path, parameters="bfloat16", masters="float32")
    weights, step_batches = load_weights(loaded, None), batches(loaded, 3)
    right = train_eagerly(loaded, weights, step_batches)
    assert compare_training(loaded, weights, step_batches, right).ok
    kept = f"optimizer.remainder.{NAME}"
    wrong = {**right.tensors, kept: right.tensors[kept] + 0.1}
    said = compare_training(loaded, weights, step_batches, replace(right, tensors=wrong))
    assert (said.ok, said.where) == (False, kept)


def test_what_rounding_alone_does_is_no_fault(tmp_path: Path) -> None:
    """Adam makes full steps of a rounding's sign, which differ between any two eager runs."""
    loaded = planned(tmp_path, Shifted())
    weights, step_batches = load_weights(loaded, None), batches(loaded, 3)
    for seed in range(10, 16):
        moved = train_eagerly(loaded, _nudged(weights, trained_names(loaded), seed), step_batches)
        assert compare_training(loaded, weights, step_batches, moved).ok
    right = train_eagerly(loaded, weights, step_batches)
    wrong = {**right.tensors, "last.weight": right.tensors["last.weight"] * 1.001}
    said = compare_training(loaded, weights, step_batches, replace(right, tensors=wrong))
    assert (said.ok, said.where) == (False, "last.weight")


class Held(nn.Module):
    """Reads a table that no step moves, in a way of its own.

    Args:
        table: 8 numbers.
        read: what is added to the inputs of the last layer, of the table.
    """

    def __init__(self, table: torch.Tensor, read: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.read = nn.Linear(8, 8), nn.Linear(8, 4), read
        self.register_buffer("table", table)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.gelu(self.first(x)) + self.read(self.table))


TABLES: dict[str, tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]] = {
    "the end of a root": (torch.linspace(1.0, 0.1, 8), lambda t: (1 - t).sqrt()),
    "a mask of zeros": ((torch.arange(8) > 3).float(), lambda t: torch.where(t == 0, 0.0, 1.0)),
    "a mask of extremes": (
        torch.where(torch.arange(8) > 3, torch.finfo(torch.float32).min, 0.0), lambda t: t.exp(),
    ),
    "positions": (torch.arange(8.0) * 300, lambda t: (t / 300).cos()),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_what_is_not_trained_hides_no_fault(tmp_path: Path, name: str) -> None:
    """Neither its size nor what comes of numbers beside its own says what others may be off."""
    loaded = planned(tmp_path, Held(*TABLES[name]))
    weights, step_batches = load_weights(loaded, None), batches(loaded, 3)
    right = train_eagerly(loaded, weights, step_batches)
    assert compare_training(loaded, weights, step_batches, right).ok
    last = right.tensors["last.weight"]
    for wrong in (last * 1.0005, last * 10, torch.randn_like(last)):
        outcome = replace(right, tensors={**right.tensors, "last.weight": wrong})
        said = compare_training(loaded, weights, step_batches, outcome)
        assert (said.ok, said.where) == (False, "last.weight")
    said = compare_training(loaded, weights, step_batches, replace(right, losses=right.losses * 3))
    assert (said.ok, said.where) == (False, "the losses")
