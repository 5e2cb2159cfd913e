"""Placements in the notation of one's own: OneFlow's or DTensor's."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import irc
from irc.cli import main
from irc.dialects.placement import Mesh, Partial, Placement, Split
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
