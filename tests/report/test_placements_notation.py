"""Placements in the notation of one's own: OneFlow's or DTensor's."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import irc
from irc.cli import main
from irc.dialects.placement import Mesh, Partial, Placement, Split
from irc.report.diff import diff_plans
from irc.report.notation import dtensor, in_dtensor, oneflow

MESH = Mesh.parse("data=2,tensor=4")


@pytest.mark.parametrize(
    "placement",
    [
        Placement.of(data=Split(0), tensor=Split(0)),
        Placement.of(data=Split(1), tensor=Partial("max")),
        Placement((("data", Split(0, 1)), ("tensor", Split(0)))),
        Placement.replicated(("data", "tensor")),
    ],
    ids=str,
)
def test_both_notations_say_the_same(placement: Placement) -> None:
    assert in_dtensor(oneflow(placement), MESH) == dtensor(placement, MESH)
    assert in_dtensor(f"from {oneflow(placement)}", Mesh.parse("data=2")).endswith(")")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notation") / "plan"
    module, arguments = nn.Sequential(nn.Linear(8, 12)), (torch.randn(4, 8),)
    pins = '"0.weight" = [tensor = S(0)]'
    irc.export_plan(
        module, arguments, out=folder, mesh="tensor=2", cluster="8xH100", pins=pins, native="none"
    )
    return folder


def test_explained_in_either(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for choice in ("oneflow", "dtensor"):
        assert main(["explain", "plan", str(plan), "--placements", choice]) == 0
        said[choice] = capsys.readouterr().out
    assert "Shard" not in said["oneflow"]
    assert "S(0)" in said["oneflow"]
    assert "S(0)" not in said["dtensor"]
    assert "Shard(0)" in said["dtensor"]
    assert "[Replicate()], [Shard(0)] -> [Shard(1)]" in said["dtensor"]
    assert main(["explain", "plan", str(plan), "--op", "n0", "--placements", "dtensor"]) == 0
    assert "[Shard(1)]" in capsys.readouterr().out
    assert main(["explain", "plan", str(plan), "--placements", "dtensor", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["ops"]
    assert "[Shard(0)]" in rows[0]["runner_up"]["signature"]


SHOWN = {
    "": ("S(0)", "R"),
    "--placements oneflow": ("(S(0))", "(B)"),
    "--placements dtensor": ("[Shard(0)]", "[Replicate()]"),
}
"""How a weight lies in parts, and whole."""


@pytest.mark.parametrize("words", SHOWN)
def test_changes_of_a_pin_in_either(
    words: str, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts, whole = SHOWN[words]
    asked = ["--op", "0.weight", "--why-not", "B", *words.split()]
    assert main(["explain", "plan", str(plan), *asked]) == 0
    assert f"{parts} -> {whole}: 1 argument, 0.weight" in capsys.readouterr().out


@pytest.mark.parametrize("words", SHOWN)
def test_difference_in_either(
    words: str, plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A placement of each plan is on the mesh of that plan."""
    parts, whole = SHOWN[words]
    module, arguments = nn.Sequential(nn.Linear(8, 12)), (torch.randn(4, 8),)
    other = tmp_path / "other"
    options = {"mesh": "tensor=2", "cluster": "8xH100", "native": "none"}
    pins = '"0.*" = [tensor = B]'
    irc.export_plan(module, arguments, out=other, pins=pins, **options)
    assert main(["diff", str(plan), str(other), *words.split()]) == 0
    assert f"{parts} -> {whole}: 1 argument, 0.weight" in capsys.readouterr().out
    wider = tmp_path / "wider"
    irc.export_plan(module, arguments, out=wider, **{**options, "mesh": "data=2,tensor=2"},
                    pins='"0.weight" = [data = S(0), tensor = S(0)]')  # fmt: skip
    changes = [t.change for t in diff_plans(plan, wider, "dtensor").changes.arguments]
    assert "[Shard(0)] -> [Shard(0), Shard(0)]" in changes


class Deep(nn.Module):
    """Four matmuls and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.l:
            x = torch.relu(layer(x))
        return x.square().mean()


def test_stages_in_either(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a stage keeps is shown in the notation, as are the values between stages."""
    folders = [str(tmp_path / name) for name in ("parts", "whole")]
    for folder, pin in zip(folders, ("S(0)", "B"), strict=True):
        irc.export_plan(
            Deep(), (torch.randn(8, 8),), out=folder, mesh="pipe=2,data=2", cluster="8xH100",
            optimizer="sgd", pins=f"*.weight = [data = {pin}]", stages="l.0-l.1; l.2-l.3",
        )  # fmt: skip
    said = {}
    for words in SHOWN:
        assert main(["explain", "plan", folders[0], *words.split()]) == 0
        said[words] = capsys.readouterr().out
        assert main(["diff", *folders, *words.split()]) == 0
        assert f"  {SHOWN[words][0]} -> {SHOWN[words][1]}: " in capsys.readouterr().out
    assert "weights" not in said[""].split("functions")[1]
    rows = said["--placements dtensor"].splitlines()
    (row,) = (r for r in rows if "  l.{0-1}.weight  " in r)
    assert row.split()[2:6] == ["parameter", "f32[4,", "8]", "[Shard(0)]"]
    assert "S(0)" not in said["--placements dtensor"]
    assert "Shard" not in said["--placements oneflow"]
    assert main(["explain", "plan", folders[0], "--json"]) == 0
    weights = json.loads(capsys.readouterr().out)["parts"][0]["weights"]
    assert weights[0]["oneflow"] == "(S(0))"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--placements sbp", "oneflow"),
        ("--placements dtensor --fusion", "--fusion shows no placements"),
        ("--placements dtensor --overlap", "--overlap shows no placements"),
    ],
)
def test_wrong_choices(
    plan: Path, words: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "plan", str(plan), *words.split()]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error[option-value]")
    assert says in errors
