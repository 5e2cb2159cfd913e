"""The schedule of a plan of stages, under irc schedule: it is the one that was written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import irc
from irc.cli import main
from tests.programs.models import OPTIMIZER


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of two stages, and one of one program."""
    folder = tmp_path_factory.mktemp("schedules")
    model, x = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))), torch.randn(8, 8)
    irc.export_plan(model[0], (x,), out=folder / "one")
    irc.export_plan(
        model,
        (x, x),
        out=folder / "steps",
        loss=nn.functional.mse_loss,
        optimizer=OPTIMIZER,
        mesh="pipe=2",
        micro_batches=4,
        schedule="zb-h1",
    )
    return folder


def test_it_is_shown_drawn_and_converted(
    plans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = str(plans / "steps")
    assert main(["schedule", "show", steps]) == 0
    of_plan = capsys.readouterr().out
    assert "2 on 2 ranks" in of_plan
    assert main(["schedule", "show", "zb-h1", "--ranks", "2", "--micro-batches", "4"]) == 0
    assert capsys.readouterr().out == of_plan
    assert main(["schedule", "draw", steps, "-o", str(tmp_path / "s.svg")]) == 0
    assert (tmp_path / "s.svg").read_text().startswith("<svg")
    assert main(["schedule", "convert", steps, "--to", "csv"]) == 0
    assert capsys.readouterr().out.count("\n") == 2


def test_a_plan_of_one_program_has_none(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "draw", str(plans / "one")]) == 2
    said = capsys.readouterr().err
    assert "has no schedule" in said
    assert "a plan of stages" in said
