"""`irc simulate`, from the terminal."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import irc
from irc.cli import main
from irc.plan.load import load_plan
from irc.plan.parts import with_files
from irc.plan.parts_files import load_parts, save_parts
from irc.simulate.parts import predict_step
from irc.simulate.plan import predict
from tests.simulate.test_parts import planned


class Net(nn.Module):
    """Two layers, which a tensor axis splits."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def test_a_plan_of_one_program(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder, trace = tmp_path / "plan", tmp_path / "trace.json"
    x = torch.randn(8, 64)
    irc.export_plan(Net().eval(), (x,), out=folder, mesh="tensor=2", cluster="demo-gpus",
                    pins='"x" = [tensor = S(1)]')  # fmt: skip
    assert main(["simulate", str(folder), "--trace", str(trace)]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    prediction = predict(load_plan(folder).plan)
    assert lines["ranks"] == "2, tensor=2"
    assert lines["call"] == f"{prediction.seconds * 1e3:.4g} ms"
    events = json.loads(trace.read_text())["traceEvents"]
    ends = [e["ts"] + e["dur"] for e in events if e["ph"] == "X"]
    assert max(ends) == pytest.approx(prediction.seconds * 1e6)
    assert main(["simulate", str(folder), "--cluster", "8xH100"]) == 2
    assert "--cluster is for plans of several programs" in capsys.readouterr().err


def test_a_plan_of_several(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from irc.cluster.presets import PRESETS

    folder, trace = tmp_path / "plan", tmp_path / "trace.json"
    plan, tensors = planned("gpt", "pipe=2", "1f1b")
    save_parts(folder, with_files(plan, {}), tensors)
    assert main(["simulate", str(folder), "--cluster", "8xH100", "--trace", str(trace)]) == 0
    lines = capsys.readouterr().out.splitlines()
    prediction = predict_step(load_parts(folder), PRESETS["8xH100"])
    assert lines[0] == "ranks           2, pipe=2"
    assert lines[2] == f"step            {prediction.seconds * 1e3:.4g} ms"
    assert lines[3].split() == ["rank", "columns", "idle", "peak", "reserved"]
    assert [line.split()[2] for line in lines[4:6]] == [
        f"{prediction.bubble(rank):.2%}" for rank in range(2)
    ]
    assert any("link from rank 0 to rank 1" in line for line in lines[6:])
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"0F0", "1B3", "0update"} <= names


def test_what_is_no_plan_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["simulate", str(tmp_path / "none")]) == 2
    assert "plan-missing" in capsys.readouterr().err
