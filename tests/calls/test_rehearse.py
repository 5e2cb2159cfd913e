"""Rehearsals: one rank of a plan of many runs here alone, its memory as predicted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import irc
from irc.calls.rehearse import rehearse_plan
from irc.calls.smaller_plan import smaller_plan
from irc.cli import main
from irc.dialects.text import load
from irc.errors import IrcError
from irc.plan.parts_files import load_parts
from irc.programs.fewer_layers import leave_layers
from irc.runtime.memory_needed import needed_bytes


class Layer(nn.Module):
    """A residual layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        """Add what two matrices make of the rows."""
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Words, equal layers, and a loss."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(512, 64)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(64, 512)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        """Return a loss."""
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def exported(folder: Path, layers: int = 4, **options: Any) -> Path:
    with torch.device("meta"):
        model = Net(layers)
    words = torch.zeros(16, 16, dtype=torch.int64)
    options = {"optimizer": "adamw", "cluster": "2x8xH100", **options}
    irc.export_plan(model, (words, words), out=folder, native="none", **options)
    return folder


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stages") / "plan"
    return exported(folder, mesh="pipe=2,tensor=2", micro_batches=2, backend="triton")


@pytest.mark.parametrize("rank", [1, 2])
def test_a_rank_of_stages_takes_the_memory_that_is_predicted(stages: Path, rank: int) -> None:
    report = rehearse_plan(stages, rank)
    assert (report.rank, report.ranks, report.micro_batches) == (rank, 4, (2, 2))
    assert report.is_host
    assert set(report.predicted) == {"weights", "registers", "arena"}
    assert abs(report.gap) < 0.1
    assert [f.runs for f in report.functions][:3] == [2, 2, 1]
    assert all(f.measured_s and f.predicted_s for f in report.functions)
    assert all(action.predicted_s is not None for action in report.actions)


def test_layers_are_left_out_and_lie_alike(stages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, planned = load_parts(stages), list[Any]()

    def noted(*args: Any) -> Any:
        planned.append(smaller_plan(*args))
        return planned[-1]

    room = sum(needed_bytes(whole, 1).values()) - 1
    monkeypatch.setattr("irc.calls.rehearse.room_on", lambda _: room)
    monkeypatch.setattr("irc.calls.rehearse.smaller_plan", noted)
    with pytest.raises(IrcError) as caught:
        rehearse_plan(stages, 1)
    assert caught.value.code == "memory-exceeded"
    assert "1 fit (--layers 1)" in (caught.value.help or "")
    (one, left), (two, all_left) = planned
    assert (left.layers, all_left.layers) == ((2, 4), (4, 4))
    assert sum(needed_bytes(one, 1).values()) < room
    # What is planned again as a whole is what was planned at first.
    assert needed_bytes(two, 1) == needed_bytes(whole, 1)


class Attention(nn.Module):
    """A residual layer with one projection of queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Add what four heads see."""
        heads = (each.unflatten(-1, (4, 4)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return x + self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))


@pytest.mark.slow
@pytest.mark.parametrize("passes", ["", "no-split-projections"])
def test_fewer_layers_are_split_as_the_plan_is(tmp_path: Path, passes: str) -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(Attention() for _ in range(3)))
    x, options = torch.zeros(4, 8, 16), {"passes": [passes]} if passes else {}
    irc.export_plan(
        model, (x, x), out=tmp_path, loss=F.mse_loss, optimizer="adamw", mesh="tensor=2",
        micro_batches=2, cluster="2x8xH100", backend="triton", native="none", **options,
    )  # fmt: skip
    whole = load_parts(tmp_path)
    smaller, left = smaller_plan(whole, 2)
    assert left.layers == (2, 3)
    assert bool(whole.facts.slices) != bool(passes)
    assert smaller.facts.slices.items() <= whole.facts.slices.items()
    assert len(smaller.facts.slices) * 3 == len(whole.facts.slices) * 2


def test_a_step_of_one_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder, trace = exported(Path("plan"), mesh="data=4"), tmp_path / "trace.json"
    report = rehearse_plan(folder, 2, layers=2)
    assert not report.is_host
    assert report.layers == (2, 4)
    assert abs(report.gap) < 0.1
    assert main(["run", str(folder), "--comm", "fake", "--trace", str(trace)]) == 0
    assert json.loads(trace.read_text())
    with pytest.raises(IrcError) as caught:
        rehearse_plan(folder, micro_batches=1)
    assert caught.value.code == "option-value"


def test_the_command_prints_a_table_and_json(
    stages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", str(stages), "--comm", "fake", "--rank", "3", "--micro-batches", "1"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "rank       3 of 4" in said
    assert "OK: the peak is" in said
    assert main([*words, "--links", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["measured"]["peak"] > 0
    assert report["exposed_s"] > 0


def test_what_cannot_be_rehearsed_is_said(stages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rehearsal = ["run", str(stages), "--comm", "fake"]
    for words, code in (
        ([*rehearsal, "--rank", "4"], "rehearsal-rank"),
        ([*rehearsal, "--layers", "0"], "option-value"),
        ([*rehearsal, "--steps", "2"], "option-value"),
        ([*rehearsal, "--no-compare"], "option-value"),
        (["run", str(stages), "--rank", "0"], "option-value"),
    ):
        assert main(words) == 2
        assert f"error[{code}]" in capsys.readouterr().err
    with pytest.raises(IrcError) as caught:
        leave_layers(load("func.func @forward() { func.return }"), 1)
    assert caught.value.code == "rehearsal-layers"
