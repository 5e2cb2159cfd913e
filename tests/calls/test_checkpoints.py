"""Checkpoints of a step on one device: what is loaded, and what is refused, by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn import functional as F

import irc
from irc.errors import IrcError
from irc.runtime.checkpoint_files import CheckpointWriter, checkpoints_in

X, Y = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 3


def net(hidden: int = 7) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, hidden), nn.ReLU(), nn.Linear(hidden, 3))


def step_of(module: nn.Module | None = None, optimizer: Any = "adamw") -> Any:
    module = net() if module is None else module
    return irc.compile_step(module, loss=F.cross_entropy, optimizer=optimizer)


def saved(folder: Path, steps: int = 2, **options: Any) -> Any:
    step = step_of(**options)
    for _ in range(steps):
        step(X, Y)
    step.save(folder)
    return step


def refusal(load: Callable[[], object], code: str) -> str:
    with pytest.raises(IrcError) as caught:
        load()
    assert caught.value.codes == [code] or caught.value.code == code
    return f"{caught.value}"


def test_a_run_goes_on(tmp_path: Path) -> None:
    step = saved(tmp_path)
    other = step_of()
    other.load(tmp_path)
    assert other.count == 2
    # The module has its values at once, before the first call.
    for name, value in other.module.state_dict().items():
        assert torch.equal(value, step.module.state_dict()[name])
    assert [float(other(X, Y)) for _ in range(2)] == [float(step(X, Y)) for _ in range(2)]
    assert other.state_dict()["step"] == 4


def test_a_later_whole_state_wins_over_a_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path)
    wanted = saved(tmp_path / "other", steps=3)
    step = step_of()
    step.load(tmp_path)
    step.load_state_dict(wanted.state_dict())
    assert [float(step(X, Y)) for _ in range(2)] == [float(wanted(X, Y)) for _ in range(2)]


def test_the_model_alone(tmp_path: Path) -> None:
    """States stay; another optimiser's checkpoint gives its parameters."""
    wanted = saved(tmp_path, optimizer="sgd")
    step = step_of()
    said = refusal(lambda: step.load(tmp_path), "state-mismatch")
    assert "no states of adamw" in said
    assert "optimizer=False" in said
    step.load(tmp_path, optimizer=False)
    assert step.count == 0
    assert float(step(X, Y)) == float(wanted(X, Y))


def test_what_was_saved_before_the_first_step(tmp_path: Path) -> None:
    saved(tmp_path, steps=0)
    step = step_of()
    with torch.no_grad():
        step.module[0].weight.zero_()
    step.load(tmp_path)
    assert float(step(X, Y)) == float(step_of()(X, Y))


def test_more_of_a_run(tmp_path: Path) -> None:
    """A scheduler of torch goes on; wrong names and objects are refused."""

    def scheduler() -> Any:
        optimizer = torch.optim.SGD(net().parameters(), lr=1.0)
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    step, before = step_of(), scheduler()
    before.optimizer.step()
    before.step()
    step.save(tmp_path, more={"schedule": before})
    after = scheduler()
    step.load(tmp_path, more={"schedule": after})
    assert after.last_epoch == 1
    assert "no 'other'" in refusal(
        lambda: step.load(tmp_path, more={"other": after}), "state-mismatch"
    )
    assert "'model'" in refusal(lambda: step.save(tmp_path, more={"model": after}), "option-value")
    assert "int" in refusal(lambda: step.save(tmp_path, more={"epoch": 3}), "option-value")


def test_the_last_are_kept(tmp_path: Path) -> None:
    step = step_of()
    for _ in range(4):
        step(X, Y)
        step.save(tmp_path, keep=2)
    step.save(tmp_path, keep=2)  # the same step again
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step-3", "step-4"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-3", "step-4"]


def test_there_is_none(tmp_path: Path) -> None:
    step = step_of()
    assert "no folder" in refusal(lambda: step.load(tmp_path / "rnu"), "checkpoint-missing")
    (tmp_path / "notes.txt").write_text("mine")
    assert "no checkpoint" in refusal(lambda: step.load(tmp_path), "checkpoint-missing")
    (tmp_path / ".step-3.partial").mkdir()
    assert "broken off" in refusal(lambda: step.load(tmp_path), "checkpoint-missing")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


DAMAGE = {
    "flipped": ("__0_0.distcp", flip, "'__0_0.distcp' is not what was written"),
    "torn": ("__0_0.distcp", tear, "'__0_0.distcp' has"),
    "missing": ("__0_0.distcp", Path.unlink, "'__0_0.distcp' is missing"),
    "metadata": (".metadata", flip, "'.metadata' is not what was written"),
    "no metadata": (".metadata", Path.unlink, "'.metadata' is missing"),
    "digests": ("irc.json", tear, "'irc.json' cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    """Nothing is written then, and the one before is offered."""
    name, harm, words = DAMAGE[damage]
    step = saved(tmp_path)
    step(X, Y)
    path = step.save(tmp_path)
    other = step_of()
    before = {n: t.clone() for n, t in other.module.state_dict().items()}
    harm(path / name)
    said = refusal(lambda: other.load(tmp_path), "checkpoint-corrupt")
    assert words in said
    assert "step-2" in said
    assert all(torch.equal(t, before[n]) for n, t in other.module.state_dict().items())
    other.load(tmp_path / "step-2")
    assert other.count == 2


@pytest.mark.parametrize("called", [False, True])
def test_a_torn_file_that_torch_wrote(tmp_path: Path, *, called: bool) -> None:
    """It has no digests; reading it fails before anything is written."""
    step = saved(tmp_path / "own")
    dcp.save(step.state_dict(parts=True), checkpoint_id=tmp_path / "torch", no_dist=True)
    path = tmp_path / "torch" / "__0_0.distcp"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    other = step_of()
    if called:
        other(X, Y)
    before = other.state_dict()
    refusal(lambda: other.load(tmp_path / "torch"), "checkpoint-corrupt")
    assert all(torch.equal(t, before["model"][n]) for n, t in other.state_dict()["model"].items())


def test_another_models(tmp_path: Path) -> None:
    saved(tmp_path)
    wide = step_of(net(9))
    assert "'0.weight' is [7, 5]" in refusal(lambda: wide.load(tmp_path), "state-mismatch")
    more = step_of(nn.Sequential(*net(), nn.Linear(3, 3)))
    assert "lacks '3.weight'" in refusal(lambda: more.load(tmp_path), "state-mismatch")
    less = step_of(nn.Sequential(nn.Linear(5, 7)))
    assert "no '2.weight'" in refusal(lambda: less.load(tmp_path), "state-mismatch")


def test_a_write_that_fails_leaves_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and in a thread, where the next save tells it."""
    step = saved(tmp_path)
    step(X, Y)

    def finish(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointWriter, "finish", finish)
        assert "No space left" in refusal(lambda: step.save(tmp_path), "checkpoint-failed")
        waiting = step.save_async(tmp_path)
        assert waiting.exception() is not None
    refusal(lambda: step.save(tmp_path), "checkpoint-failed")
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step-2"]
    step.save(tmp_path)
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step-2", "step-3"]


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    step = step_of()
    refusal(lambda: step.save(tmp_path / "file"), "checkpoint-failed")


def test_the_digests_are_of_all_files(tmp_path: Path) -> None:
    path = saved(tmp_path).save(tmp_path)
    named = json.loads((path / "irc.json").read_text())["files"]
    assert sorted(named) == [".metadata", "__0_0.distcp"]
