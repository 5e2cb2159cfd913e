"""Micro-batches that skip stages: each is computed on its own path, forward and backward."""

# pyright: basic
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from irc.calls.step_plan import captured_step
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.interpret.parts import run_here
from irc.interpret.parts_check import check_parts
from irc.pipeline import Options
from irc.plan.parts import PartsPlan
from irc.programs.make import make_parts_plan
from irc.programs.schedules import schedule_for
from irc.training.recipe import recipe_of
from tests.programs.worded import OPTIMIZER

MICRO_BATCHES, STEPS, WIDTH = 6, 3, 8
STAGES = "first; layers.0; layers.1; last"


class Stream(nn.Module):
    """Layers that add to one stream, of which a micro-batch may leave some out."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, x: torch.Tensor, skipped: tuple[int, ...] = ()) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        for number, layer in enumerate(self.layers):
            x = x if number in skipped else x + torch.tanh(layer(x))
        return self.last(x).square().mean()


class Wide(nn.Module):
    """A middle layer that gives another width than it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.last = nn.Linear(2 * WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.inner(torch.tanh(self.first(x))))).square().mean()


def batch_of(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(12, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)


def planned(
    model: nn.Module, schedule: str, mesh: str, stages: str
) -> tuple[PartsPlan, dict[str, torch.Tensor], list[torch.Tensor]]:
    batch = batch_of()
    recipe = recipe_of(dict(OPTIMIZER), micro_batches=MICRO_BATCHES)
    with torch.no_grad():
        captured, split = captured_step(model, None, recipe, (batch,), {})
    whole = Mesh.parse(mesh)
    plan = make_parts_plan(
        captured.program,
        replace(recipe, split=split),
        Options(mesh=whole),
        schedule_for(schedule, whole.size("pipe"), MICRO_BATCHES),
        stages,
    )
    return plan, dict(captured.program.tensors), [batch]


def eager(model: Stream, skips: list[tuple[int, ...]]) -> list[float]:
    """Train the model in place, each micro-batch without the layers that it skips."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses: list[float] = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        each = zip(batch_of().chunk(MICRO_BATCHES), skips, strict=True)
        loss = torch.stack([model(own, skipped) for own, skipped in each]).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


OWN = """
path 0: 0 3
path 1: 0 1 3
path 4: 0 2 3
rank 0: 0F0 0F1 0F2 0F3 0F4 0F5 0B0 0B1 0B2 0B3 0B4 0B5
rank 1: 1F1 1F2 1F3 1F5 1B1 1B2 1B3 1B5
rank 2: 2F2 2F3 2F4 2F5 2B2 2B3 2B4 2B5
rank 3: 3F0 3F1 3F2 3F3 3F4 3F5 3B0 3B1 3B2 3B3 3B4 3B5
"""


@pytest.mark.parametrize("schedule", ["skip", "own"])
@pytest.mark.parametrize("mesh", ["pipe=4", "pipe=4,data=2"])
def test_each_micro_batch_skips_its_own_layers(schedule: str, mesh: str, tmp_path: Path) -> None:
    """As one process that leaves out the same layers; also where two in a row are left out."""
    if schedule == "own":
        schedule = str(tmp_path / "own.txt")
        Path(schedule).write_text(OWN)
    torch.manual_seed(0)
    model = Stream().double()
    plan, weights, batch = planned(model, schedule, mesh, STAGES)
    assert "are as eager has them" in str(check_parts(plan, weights, batch))
    run = run_here(plan, weights, [batch] * STEPS, lr=0.05)
    skips = [tuple(stage - 1 for stage in own) for own in plan.schedule.skips]
    assert any(skips)
    assert [float(x) for x in run.losses] == pytest.approx(eager(model, skips), abs=1e-12)
    for name, value in model.named_parameters():
        assert (run.whole(name) - value).abs().max() < 1e-12


def test_a_stage_that_is_no_identity_when_left_out_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.txt"
    visits = (range(6), range(1, 6), range(6))
    orders = [
        f"rank {stage}: " + " ".join(f"{stage}{kind}{m}" for kind in "FB" for m in own)
        for stage, own in enumerate(visits)
    ]
    file.write_text("\n".join(["path 0: 0 2", *orders, ""]))
    with pytest.raises(IrcError, match="leaves out stage 1, which is not the same value") as caught:
        planned(Wide().double(), str(file), "pipe=3", "first; inner; last")
    assert caught.value.code == "pipeline-unsupported"


def test_paths_in_another_order_are_refused(tmp_path: Path) -> None:
    text = "path 1: 0 2 1 3\n" + "".join(
        f"rank {stage}: {stage}F0 {stage}F1 {stage}B0 {stage}B1\n" for stage in range(4)
    )
    file = tmp_path / "turned.txt"
    file.write_text(text)
    with pytest.raises(IrcError, match="are not those of a plan") as caught:
        schedule_for(str(file), 4, 2)
    assert caught.value.code == "pipeline-unsupported"
