"""Values outside: as they were, in a file that nobody sees; what cannot be written is named."""

# pyright: basic
from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from irc.errors import IrcError
from irc.runtime.offload_disk import DiskMoves
from irc.runtime.offload_host import HostMoves
from irc.runtime.outside import Moves
from irc.schedule.actions import Action
from irc.schedule.tapes import Event, Place, Tape

GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
SLOT = Place(0, "saved0", 0)


def moves(
    kind: type[DiskMoves | HostMoves] = DiskMoves, device: str = "cpu"
) -> tuple[Moves, torch.Tensor]:
    register = torch.zeros((3, 5), dtype=torch.bfloat16, device=device)
    tape = Tape((), {(0, "saved0"): 1}, {(0, "saved0"): 2})
    return kind(tape, {SLOT: register}), register


def step(own: Moves, register: torch.Tensor, what: str, number: int) -> None:
    event = Event(what, Action(0, "F", number), place=SLOT, outside=number)  # pyright: ignore[reportArgumentType]
    own.step([(event, register)])()


@pytest.mark.parametrize("kind", [DiskMoves, HostMoves])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_values_come_back_as_they_were(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[DiskMoves | HostMoves],
    device: str,
) -> None:
    monkeypatch.setenv("IRC_SCRATCH", str(tmp_path))
    own, register = moves(kind, device)
    values = [torch.randn(3, 5, device=device).bfloat16() for _ in range(2)]
    for number, value in enumerate(values):
        register.copy_(value)
        step(own, register, "store", number)
        step(own, register, "stored", number)
    assert not list(tmp_path.iterdir())
    for number in (1, 0):
        step(own, register, "fetch", number)
        step(own, register, "fetched", number)
        assert register.equal(values[number])


@pytest.mark.parametrize("folder", ["missing", "file"])
def test_a_folder_that_is_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("IRC_SCRATCH", str(tmp_path / folder))
    with pytest.raises(IrcError, match=f"{folder}' cannot be written to") as caught:
        moves()
    assert caught.value.code == "offload-storage"


def test_too_little_space_is_named_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("IRC_SCRATCH", str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(IrcError, match=f"no space for 8192 bytes .* in '{tmp_path}'") as caught:
        moves()
    assert caught.value.because == ("No space left on device",)


def test_a_write_that_fails_is_named_where_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    own, register = moves()
    monkeypatch.setattr(os, "pwrite", broken)
    step(own, register, "store", 0)
    with pytest.raises(IrcError, match="cannot be written to") as caught:
        step(own, register, "stored", 0)
    assert caught.value.code == "offload-storage"
