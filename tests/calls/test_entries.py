"""Entries compiled together: one device, and a folder that several plans share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import irc
from irc.errors import IrcError
from irc.plan.load import load_plan
from irc.plan.shared import entry_names
from irc.runtime.weights import load_weights


class Rows(nn.Module):
    """Keeps rows of what a layer gives."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer


class Fill(Rows):
    """Many rows at once."""

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        """Fill the first rows; x [n, 6], rows [9, 6]."""
        rows[: x.shape[0]] = self.layer(x)
        return rows.sum(0)


class Step(Rows):
    """One row."""

    def forward(self, x: Tensor, at: Tensor, rows: Tensor) -> Tensor:
        """Write row ``at`` [1] and read all."""
        rows.index_copy_(0, at, self.layer(x))
        return (rows * x).sum(1)


LAYER = nn.Linear(6, 6)
X, AT = torch.randn(5, 6), torch.tensor([5])


def calls() -> dict[str, Any]:
    rows = torch.zeros(9, 6)
    return {"fill": (Fill(LAYER), (X, rows)), "step": (Step(LAYER), (X[:1], AT), {"rows": rows})}


def test_entries_share_memory_and_follow_the_weights() -> None:
    run = irc.compile_entries(calls())
    assert list(run) == ["fill", "step"]
    rows, expected = torch.zeros(9, 6), torch.zeros(9, 6)
    for _ in range(2):
        with torch.no_grad():
            wanted = [Fill(LAYER)(X, expected), Step(LAYER)(X[:1], AT, expected)]
        results = [run["fill"](X, rows), run["step"](X[:1], AT, rows=rows)]
        torch.testing.assert_close(results, wanted)
        torch.testing.assert_close(rows, expected)
        with torch.no_grad():
            LAYER.weight.mul_(2)
    assert run.hold("rows", rows) is rows


def test_what_no_entry_is_for() -> None:
    run = irc.compile_entries(calls())
    with pytest.raises(IrcError, match="no entry 'stop'") as caught:
        run["stop"]
    assert "did you mean 'step'" in str(caught.value)
    with pytest.raises(IrcError, match=r"'x' has shape \[4, 6\], compiled for \[5, 6\]"):
        run["fill"](X[:4], torch.zeros(9, 6))
    with pytest.raises(IrcError, match="no entry 'fil'"):
        irc.compile_entries(calls(), runs={"fil": 3})


def test_a_mesh_needs_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(IrcError) as caught:
        irc.compile_entries(calls(), mesh="tensor=2")
    assert caught.value.code == "world-size"


@pytest.mark.parametrize("mesh", ["", "tensor=2"])
def test_a_folder_has_the_weights_once(tmp_path: Path, mesh: str) -> None:
    out = tmp_path / "plans"
    pins = "layer.weight = [tensor = S(1)]; rows = [tensor = S(1)]" if mesh else ""
    text = irc.export_entries(
        calls(), out=out, mesh=mesh, cluster="demo-gpus", pins=pins, runs={"step": 50}
    )
    assert text.count("program ") == 2
    assert entry_names(out) == ["fill", "step"]
    assert [path.name for path in out.rglob("*.safetensors")] == ["weights.safetensors"]
    plans = {name: load_plan(out / name) for name in entry_names(out)}
    placed = [
        {plan.buffers[i].name: plan.buffers[i].placement for i in (*plan.inputs, *plan.weights)}
        for plan in (loaded.plan for loaded in plans.values())
    ]
    for name in ("rows", "layer.weight", "layer.bias"):
        assert placed[0][name] == placed[1][name]
    if mesh:
        assert placed[0]["rows"][0].kind == placed[0]["layer.weight"][0].kind == "S"
    for loaded in plans.values():
        whole = load_weights(loaded, None)
        assert torch.equal(whole["layer.weight"], LAYER.weight)
    if not mesh:
        rows, expected = torch.zeros(9, 6), torch.zeros(9, 6)
        with torch.no_grad():
            wanted = Fill(LAYER)(X, expected)
        (output,) = irc.load(out / "fill")(X, rows)
        torch.testing.assert_close(output, wanted)
        torch.testing.assert_close(rows, expected)
    with pytest.raises(IrcError, match="--force") as caught:
        irc.export_entries(calls(), out=out)
    assert caught.value.code == "output-exists"


def test_names_that_are_no_folders(tmp_path: Path) -> None:
    with pytest.raises(IrcError, match="no name of an entry"):
        irc.export_entries({"../up": calls()["fill"]}, out=tmp_path / "plans")
    assert not list(tmp_path.iterdir())
    (tmp_path / "entries.json").write_text(json.dumps({"entries": ["../../etc"]}))
    with pytest.raises(IrcError, match="no name of an entry"):
        entry_names(tmp_path)
    assert entry_names(tmp_path / "nowhere") == []


def test_pins_of_ops_need_one_entry() -> None:
    with pytest.raises(IrcError, match="there are several entries"):
        irc.export_entries(
            calls(), out="nowhere", mesh="tensor=2", cluster="demo-gpus", pins="op n0 = (B)"
        )
    assert not Path("nowhere").exists()


def test_weights_of_one_name_may_be_two(tmp_path: Path) -> None:
    other = nn.Linear(6, 6)
    entries = {"one": (Fill(LAYER), calls()["fill"][1]), "two": (Fill(other), calls()["fill"][1])}
    run = irc.compile_entries(entries)
    with torch.no_grad():
        for name, layer in (("one", LAYER), ("two", other)):
            wanted = Fill(layer)(X, torch.zeros(9, 6))
            torch.testing.assert_close(run[name](X, torch.zeros(9, 6)), wanted)
    irc.export_entries(entries, out=tmp_path / "plans")
    for name, layer in (("one", LAYER), ("two", other)):
        (output,) = irc.load(tmp_path / "plans" / name)(X, torch.zeros(9, 6))
        with torch.no_grad():
            torch.testing.assert_close(output, Fill(layer)(X, torch.zeros(9, 6)))
