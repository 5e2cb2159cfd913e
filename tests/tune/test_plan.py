"""Timing a plan's kernels, and plans that know the times."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from irc.cli import main
from irc.cluster.cache import cache_root
from irc.cluster.host import num_cores
from irc.cost.measured import Times, load_times, save_times
from irc.errors import InternalError
from irc.plan.load import load_plan
from irc.tune import beside
from irc.tune.beside import ranks_beside
from irc.tune.others import Others
from irc.tune.plan import tune_plan


class Block(torch.nn.Module):
    """A residual perceptron, and an op that only torch has."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(48, 80), torch.nn.Linear(80, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.down(torch.relu(self.up(x)))
        return torch.special.i0e(torch.tanh(x))


def compiled(folder: Path, mesh: str | None = None) -> str:
    import irc

    torch.manual_seed(0)
    irc.export_plan(
        Block().eval(), (torch.randn(36, 48),), out=folder, mesh=mesh, cluster="this-host"
    )
    return str(folder)


@pytest.fixture
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.usefixtures("_own_cache")
@pytest.mark.parametrize("mesh", [None, "tensor=2"])
def test_a_plan_compiled_after_tuning_states_what_was_measured(
    tmp_path: Path, mesh: str | None
) -> None:
    before = load_plan(compiled(tmp_path / "before", mesh))
    tuned = tune_plan(before, rounds=2, anyway=True)
    names = {row.name for row in tuned.rows}
    assert "flow.extern" in names
    assert any("matmul" in name for name in names)
    after = load_plan(compiled(tmp_path / "after", mesh)).plan
    stated = {
        after.kernels[call.kernel].name: call.seconds
        for action in after.actions
        if action.kind == "kernels"
        for call in action.calls
    }
    measured = {row.name: row.seconds for row in tuned.rows if row.name in stated}
    assert measured
    assert measured.items() <= stated.items()
    assert after.predicted_s == pytest.approx(tuned.predicted_s, rel=1e-6)


@pytest.mark.usefixtures("_own_cache")
def test_times_survive_writing_and_damage_forgets_them() -> None:
    assert load_times() == Times()
    path = save_times(Times({"a": 1e-6}).with_({"b": 2e-6}))
    assert load_times().seconds == {"a": 1e-6, "b": 2e-6}
    assert cache_root().stat().st_mode & 0o777 == 0o700
    for text in ("", "{", "[]", '{"format": 9}', '{"format": 1, "seconds": 3}', "\0", "[" * 10**5):
        Path(path).write_text(text)
        assert load_times() == Times()
    Path(path).write_text('{"format": 1, "seconds": {"a": "x", "b": -1, "c": true, "d": 0.5}}')
    assert load_times().seconds == {"d": 0.5}


@pytest.mark.usefixtures("_own_cache")
def test_times_of_this_machine_do_not_price_another(tmp_path: Path) -> None:
    import irc

    tune_plan(load_plan(compiled(tmp_path / "here")), rounds=1, anyway=True)
    x = (torch.randn(36, 48),)
    plans: list[float | None] = []
    for name in ("a", "b"):
        irc.export_plan(Block().eval(), x, out=tmp_path / name, cluster="8xH100")
        plans.append(load_plan(tmp_path / name).plan.predicted_s)
        save_times(Times(dict.fromkeys(load_times().seconds, 1.0)))
    assert plans[0] == plans[1]
    assert plans[0] is not None
    assert plans[0] < 1.0


@pytest.mark.usefixtures("_own_cache")
def test_a_library_op_that_is_named_as_copies_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import irc

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.special.i0e(torch.tanh(x)), x.reshape(-1)

    irc.export_plan(Net(), (torch.randn(4, 8),), out=tmp_path / "plan", cluster="this-host")
    loaded = load_plan(tmp_path / "plan")
    assert {"library", "copy"} <= {action.kind for action in loaded.plan.actions}
    monkeypatch.setattr("irc.simulate.labels.op_of", lambda plan, step: "copy")
    assert "flow.extern" in {row.name for row in tune_plan(loaded, rounds=1).rows}


@pytest.mark.usefixtures("_own_cache")
def test_the_command_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = compiled(tmp_path / "plan")
    assert main(["tune", folder, "--rounds", "1", "--anyway"]) == 0
    assert "flow.extern" in capsys.readouterr().out
    assert main(["tune", folder, "--rounds", "0"]) == 2
    assert main(["tune", str(tmp_path / "none")]) == 2


@pytest.mark.usefixtures("_own_cache")
def test_a_busy_machine_leaves_the_table_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = compiled(tmp_path / "plan")
    monkeypatch.setattr("irc.tune.plan.others_since", lambda: lambda: Others(1e4))
    assert main(["tune", folder, "--rounds", "1"]) == 2
    printed = capsys.readouterr()
    assert "flow.extern" in printed.out
    assert "written" not in printed.out
    assert "error[machine-busy]" in printed.err
    assert load_times() == Times()
    assert main(["tune", folder, "--rounds", "1", "--anyway"]) == 0
    assert load_times() != Times()


@pytest.mark.usefixtures("_own_cache")
def test_what_users_print_is_no_answer_of_a_rank_beside(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loud.py").write_text("print('loaded', flush=True)\n")
    loaded = load_plan(compiled(tmp_path / "plan", "tensor=2"), trust=True)
    with ranks_beside(loaded, 1, [str(tmp_path / "loud.py")]):
        pass
    out, err = capfd.readouterr()
    assert "loaded" not in out
    assert ("loaded" in err) == (num_cores() > 1)


@pytest.mark.usefixtures("_own_cache")
@pytest.mark.skipif(num_cores() < 2, reason="no rank computes beside one")
def test_a_rank_beside_that_ends_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was timed was timed alone."""
    loaded = load_plan(compiled(tmp_path / "plan", "tensor=2"), trust=True)
    started: list[subprocess.Popen[bytes]] = []

    def popen(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(*args, **kwargs))
        return started[-1]

    def stop() -> None:
        started[0].kill()
        started[0].wait()

    names = {**vars(subprocess), "Popen": popen}
    monkeypatch.setattr(beside, "subprocess", SimpleNamespace(**names))
    with pytest.raises(InternalError, match="ended beside"), ranks_beside(loaded, 1):
        stop()
    with pytest.raises(InternalError, match="ended: "), ranks_beside(loaded, 1, ["no_such_module"]):
        pass
