"""Weights are written whole or not at all, whatever the disk says, and on all ranks or none."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import irc
from irc.errors import IrcError
from irc.runtime import weight_writing


def failing(own: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that fails for paths that end in a name."""

    def act(path: Path, *more: Any) -> Any:
        if path.name.endswith(name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return own(path, *more)

    return act


@pytest.mark.parametrize("what", ["sync", "sync_index", "replace", "replace_index", "dtype"])
def test_a_disk_that_is_full_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    if what == "dtype":  # of the last file
        module[1].bias = nn.Parameter(torch.zeros(4, dtype=torch.complex128))
    elif what == "sync":
        monkeypatch.setattr(
            weight_writing, "sync", failing(weight_writing.sync, "00002.safetensors.partial")
        )
    elif what == "sync_index":
        monkeypatch.setattr(
            weight_writing,
            "write_synced",
            failing(weight_writing.write_synced, "index.json.partial"),
        )
    else:
        name = (
            "index.json.partial"
            if what == "replace_index"
            else "00002-of-00002.safetensors.partial"
        )
        monkeypatch.setattr(Path, "replace", failing(Path.replace, name))
    with pytest.raises(IrcError) as caught:
        irc.save_safetensors(module, tmp_path, max_bytes=80)
    assert caught.value.code == ("op-unsupported" if what == "dtype" else "checkpoint-failed")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    irc.save_safetensors(nn.Linear(4, 4), tmp_path)


def test_without_a_configuration_there_are_no_weights(tmp_path: Path) -> None:
    """So that the same call can be made again."""
    module: Any = nn.Linear(4, 4)
    module.config = Configuration()
    module.config.is_full = True
    with pytest.raises(IrcError, match="No space left"):
        irc.save_safetensors(module, tmp_path)
    assert list(tmp_path.iterdir()) == []
    module.config.is_full = False
    irc.save_safetensors(module, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


class Configuration:
    """As transformers has one."""

    is_full = False

    def save_pretrained(self, folder: Path) -> None:
        """Write it."""
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        (folder / "config.json").write_text("{}")
