"""What a process keeps in memory is there for the next one, all of it or nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import irc
from irc.errors import IrcError
from irc.runtime import host_memory
from irc.runtime.boxes import Box
from irc.runtime.host_memory import Shelf, shelf_of
from irc.runtime.kept import Keeping, KeptState, kept_state


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "irc" / "launcher" / "run", 0)


def state(value: float) -> dict[str, Any]:
    half = torch.full((2, 3), value, dtype=torch.bfloat16)
    return {
        "model": {"w": Box([torch.full((2, 4), value)], [[slice(2, 4), slice(0, 4)]], (2, 4))
                  if value < 0 else torch.full((2, 4), value), "half": half},
        "optimizer": {"state": {"w": {"step": torch.tensor(value)}}, "param_groups": [{"lr": 0.1}]},
        "seed": 5,
        "sampler": {"epoch": {1: 2}},
    }  # fmt: skip


def test_the_last_step_that_is_whole(shelf: Shelf, tmp_path: Path) -> None:
    keeping = Keeping(shelf)
    for step in (1, 2, 3):
        keeping.keep(state(step), step, (0, 1))
    again = Shelf(tmp_path / "irc" / "launcher" / "run", 0)
    kept, lost = kept_state(again)
    assert kept is not None
    assert (kept.step, lost) == (3, "")
    assert kept.shapes["optimizer.state.w.step"] == ()
    assert kept.values(("seed", "nothing")) == {"seed": 5}
    assert kept.section("sampler") == {"epoch": {1: 2}}
    assert kept.groups() == [{"lr": 0.1}]
    # What follows is written beside it, to memory of its own.
    following = Keeping(again)
    for step in (4, 5, 6):
        following.keep(state(step), step, (0, 1))
    column = torch.zeros(2, 1)
    half = torch.zeros(2, 3, dtype=torch.float32)
    kept.read({"model.w": Box([column], [[slice(0, 2), slice(3, 4)]], (2, 4)),
               "model.half": Box.of(half)})  # fmt: skip
    assert column.tolist() == [[3.0], [3.0]]
    assert (half == 3).all()


def test_a_rank_that_holds_no_tensor_keeps_the_rest(shelf: Shelf) -> None:
    """So is one whose stage others have a copy of; its state could not be read."""
    Keeping(shelf).keep({"seed": 5}, 1, (0, 1))
    kept, lost = kept_state(shelf)
    assert kept is not None and kept.values(["seed"]) == {"seed": 5} and not lost


def test_one_that_is_being_written_does_not_count(shelf: Shelf) -> None:
    keeping = Keeping(shelf)
    keeping.keep(state(1), 1, (0, 1))
    shelf.room("1", 64)  # and the process ended here
    kept, _ = kept_state(shelf)
    assert kept is not None
    assert kept.step == 1
    shelf.remove()
    assert kept_state(shelf) == (None, "")


def test_parts_that_no_rank_has_any_more(shelf: Shelf) -> None:
    keeping = Keeping(shelf)
    part = Box([torch.ones(2, 4)], [[slice(2, 4), slice(0, 4)]], (4, 4))
    keeping.keep({"model": {"w": part}}, 7, (0, 1))
    kept, lost = kept_state(shelf)
    assert kept is None
    assert lost == "of step 7, which rank 0 kept, no rank that is left has 'model.w'[0:2, 0:4]"
    keeping.keep(state(8), 8, (1, 2))
    _, lost = kept_state(shelf)
    assert lost.endswith("has the parameters of stage 0")


def test_memory_that_the_machine_lacks(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(IrcError, match="cannot keep the 1,024 bytes") as caught:
        Keeping(shelf).keep({"model": {"w": torch.ones(256)}}, 1, (0, 1))
    assert caught.value.code == "checkpoint-failed"


def test_what_cannot_be_pickled(shelf: Shelf) -> None:
    with pytest.raises(IrcError, match="'loader' cannot be kept"):
        Keeping(shelf).keep({"loader": lambda: 0}, 1, (0, 1))


def test_launchers_that_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "MEMORY", tmp_path)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert shelf_of(tmp_path) is None  # nobody starts this process again
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    first = shelf_of(tmp_path / "run")
    assert first is not None
    Keeping(first).keep(state(1), 1, (0, 1))
    own = tmp_path / f"irc-{os.getuid()}"
    (launcher,) = own.iterdir()
    gone = own / f"{launcher.name}1"
    (gone / "run").mkdir(parents=True)
    second = shelf_of(tmp_path / "run")
    assert second is not None
    assert [*second.heads()] == ["0"]
    assert [*own.iterdir()] == [launcher]
    own.chmod(0o755)
    with pytest.raises(IrcError, match="not this user's alone"):
        shelf_of(tmp_path / "run")


def test_what_was_gone_on_from_is_there_until_more_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "MEMORY", tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")

    def trained() -> Any:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return irc.compile_step(model, loss=torch.nn.functional.mse_loss, optimizer=optimizer)

    batch = torch.ones(3, 4), torch.zeros(3, 2)
    before, place = trained(), tmp_path / "run"
    before(*batch)
    before.keep(place)
    after = trained()
    assert str(after.load(place)) == "goes on behind step 1, from the memory of rank 0"
    after(*batch)
    after.keep(place)
    again = shelf_of(place)
    assert again is not None
    steps = [json.loads(head)["step"] for head in again.heads().values()]
    assert sorted(steps) == [1, 2]


def test_ranks_that_kept_nothing_are_told() -> None:
    head = {
        "step": 1,
        "start": "a",
        "stage": (0, 1),
        "objects": "",
        "entries": [("w", "f32", (2,), [((0,), (2,), 0)])],
    }
    kept = KeptState([None, head], torch.empty(0))  # fmt: skip
    assert kept.ranks == [1]
    assert kept.held("w") == ((), (((0, 2),),))
