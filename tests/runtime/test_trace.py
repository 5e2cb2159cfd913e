"""`irc run --trace` on one device: what was measured, beside what was predicted."""

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import irc
from irc.cli import main
from irc.dialects.placement import Mesh
from irc.runtime import traced as traced_module
from irc.runtime.processes import gather_texts
from irc.runtime.recorder import HostClock, Recorder
from irc.runtime.traced import clock_offset
from irc.trace.form import Label
from irc.trace.read import read_trace
from irc.trace.rows import Recorded
from tests.simulate.test_traces import check_form


class Net(nn.Module):
    """A matmul, what follows it, and an op of a library."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(torch.eye(32) + 0.01 * self.down(torch.relu(self.up(x))))


def traces(folder: Path, *words: str) -> tuple[str, str]:
    """Predict a plan and run it; both are checked."""
    predicted, measured = str(folder / "predicted.json"), str(folder / "measured.json")
    assert main(["simulate", str(folder / "plan"), "--trace", predicted]) == 0
    assert main(["run", str(folder / "plan"), "--trace", measured, *words]) == 0
    for file in (predicted, measured):
        check_form(read_trace(file))
    return predicted, measured


def test_a_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    irc.export_plan(Net().eval(), (torch.randn(32, 32),), out=tmp_path / "plan")
    predicted, measured = traces(tmp_path)
    said = capsys.readouterr().out
    assert "\ntrace      " in said
    assert "clocks     one process, one clock" in said
    assert said.endswith("OK\n")
    before, after = read_trace(predicted), read_trace(measured)
    own = [[e.label for e in t.events if e.kind == "kernel"] for t in (before, after)]
    # What is said to take no time is not drawn where that is predicted.
    assert own[0] == [label for label in own[1] if label in own[0]]
    assert len(own[0]) > 1
    assert any("test_trace.py:" in e.label.line for e in after.events if e.kind == "kernel")
    assert main(["compare", predicted, measured]) == 0
    assert "test_trace.py:" in capsys.readouterr().out


def test_a_step_has_phases(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x).square().mean()

    out = tmp_path / "plan"
    irc.export_plan(Loss(), (torch.randn(4, 8),), out=out, optimizer={"kind": "sgd", "lr": 0.1})
    _, measured = traces(tmp_path, "--steps", "1")
    phases = {e.phase for e in read_trace(measured).events if e.kind == "kernel"}
    assert phases == {"forward", "backward", "update"}


def test_a_trace_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    irc.export_plan(nn.Linear(4, 4).eval(), (torch.randn(2, 4),), out=tmp_path / "plan")
    words = ["run", str(tmp_path / "plan"), "--trace", str(tmp_path / "none" / "t.json")]
    assert main(words) == 2
    assert "output-write" in capsys.readouterr().err


def test_what_is_not_recorded_is_not_noted() -> None:
    recorder = Recorder(0, Mesh.parse(""), HostClock())
    ran: list[int] = []
    run = recorder.timed(Label("x"), lambda: ran.append(1))
    run()
    recorded = recorder.record(run)
    assert ran == [1, 1]
    assert [row.label.name for row in recorded.rows] == ["x"]
    assert recorded.begin_s <= recorded.rows[0].begin_s <= recorded.rows[0].end_s <= recorded.end_s
    with pytest.raises(ValueError, match="no"):
        recorder.record(lambda: int("no"))
    assert not recorder.is_on


def test_clocks_of_several_machines_are_compared_at_barriers(tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", rank=0, world_size=1, store=store)
    try:
        offset = clock_offset(one_machine=False)
        assert gather_texts("a\u00e4") == gather_texts("a\u00e4", everywhere=True) == ["a\u00e4"]
    finally:
        dist.destroy_process_group()
    assert offset.seconds == 0.0
    assert offset.note.startswith("compared at 15 barriers, to within ")


def test_what_a_clock_that_is_ahead_notes_is_told_by_that_of_rank_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This is rank 1, whose clock is 5 s ahead of rank 0's."""
    texts: list[str] = []

    def gathered(text: str, *, everywhere: bool = False) -> list[str]:
        texts.append(text)
        return [f"rank {rank}" for rank in range(2)]  # Boots of two machines.

    monkeypatch.setattr(traced_module, "gather_seconds", lambda seconds: [seconds - 5.0, seconds])
    monkeypatch.setattr(traced_module, "gather_texts", gathered)
    for name, result in (("is_initialized", True), ("get_rank", 1), ("barrier", None)):
        monkeypatch.setattr(dist, name, lambda result=result: result)
    assert clock_offset().seconds == pytest.approx(5.0)
    begins: list[float] = []
    recorder = Recorder(1, Mesh.parse("data=2"), HostClock())
    traced_module.traced(
        "none", recorder, lambda: begins.append(time.perf_counter()), "cafe", pipeline=False,
        best_s=1.0,
    )  # fmt: skip
    noted = Recorded.from_json(texts[-1])
    assert min(abs(at - 5.0 - noted.begin_s) for at in begins) < 0.1
