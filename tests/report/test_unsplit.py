"""A mesh that divides nothing is said, with a constraint that would."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import irc
from irc.cli import main
from irc.plan.load import load_plan
from irc.report.unsplit import idle_axes, pin_for


def planned(folder: Path, mesh: str, pins: str = "", rows: int = 4) -> Path:
    torch.manual_seed(0)
    arguments = (torch.randn(rows, 6),)
    irc.export_plan(
        nn.Linear(6, 12),
        arguments,
        out=folder,
        mesh=mesh,
        cluster="8xH100",
        pins=pins,
        native="none",
    )
    return folder


@pytest.mark.parametrize(("axis", "named"), [("tensor", "weight"), ("data", "input")])
def test_the_pin_that_is_named_divides(
    axis: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = planned(tmp_path / "whole", f"{axis}=2")
    plan = load_plan(folder).plan
    assert idle_axes(plan) == (axis,)
    pin = pin_for(plan, axis)
    assert pin == f'"{named}" = [{axis} = S(0)]'
    assert main(["explain", "plan", str(folder)]) == 0
    said = capsys.readouterr().out
    assert f"{axis} divides nothing over its 2 ranks" in said
    assert f"--pins '{pin}'" in said
    assert not idle_axes(load_plan(planned(tmp_path / "pinned", f"{axis}=2", pin)).plan)


def test_an_axis_beside_one_that_divides(tmp_path: Path) -> None:
    pins = '"input" = [data = S(0), tensor = B]; "weight" = [data = B, tensor = B]'
    plan = load_plan(planned(tmp_path / "plan", "data=2,tensor=2", pins)).plan
    assert idle_axes(plan) == ("tensor",)


def test_where_no_size_is_a_multiple_nothing_is_promised(tmp_path: Path) -> None:
    plan = load_plan(planned(tmp_path / "plan", "data=7")).plan
    assert idle_axes(plan) == ("data",)
    assert pin_for(plan, "data") == ""


def test_compile_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nbuild = lambda: (torch.nn.Linear(6, 12), (torch.randn(4, 6),))\n"
    )
    words = ["compile", f"{tmp_path}/net.py:build", "-o", f"{tmp_path}/plan", "--mesh", "tensor=2"]
    assert main([*words, "--cluster", "8xH100", "--native", "none"]) == 0
    said = capsys.readouterr().out
    pins = re.search(r"tensor divides nothing over its 2 ranks; --pins '(.*)' divides", said)
    assert pins is not None
    assert (
        main([*words, "--cluster", "8xH100", "--native", "none", "--force", "--pins", pins[1]]) == 0
    )
    assert "divides nothing" not in capsys.readouterr().out
