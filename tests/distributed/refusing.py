"""A case of the program of checkpoints: what one rank alone cannot read."""

# pyright: basic
from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch import nn

import irc
from irc.errors import IrcError
from irc.runtime import checkpoint
from irc.runtime.weight_files import WeightFiles


def said_of_each(step: Any, module: nn.Module, folder: Path) -> list[str]:
    """Return what this rank is told, of each thing that fails on one of two ranks.

    Args:
        step: of two ranks, that has not run yet.
        module: as the step has it.
        folder: none yet.
    """
    torn = IrcError("checkpoint-corrupt", "torn", help="copy it again")
    other = IrcError("state-mismatch", "another", because="it is", help="name it")
    denied = OSError(errno.EACCES, os.strerror(errno.EACCES))
    irc.save_safetensors(step, folder)
    cases: list[tuple[Any, str, int, Exception, Callable[[], object]]] = [
        (WeightFiles, "read", 1, torn, lambda: irc.load_safetensors(step, folder)),
        (WeightFiles, "read", 1, torn, lambda: irc.load_safetensors(module, folder)),
        (WeightFiles, "stored", 0, other, lambda: irc.load_safetensors(step, folder)),
        (checkpoint, "checkpoint_at", 0, denied, lambda: step.load(folder, missing_ok=True)),
        (checkpoint, "checkpoint_at", 1, denied, lambda: step.load(folder, missing_ok=True)),
        (checkpoint, "checkpoint_at", 0, other, lambda: step.load(folder / "none")),
    ]
    told: list[str] = []
    for place, name, rank, error, call in cases:
        act = error if dist.get_rank() == rank else getattr(place, name)
        with mock.patch.object(place, name, autospec=True, side_effect=act):
            try:
                call()
            except IrcError as caught:
                told.append(f"{caught}")
            else:
                told.append("nothing")
    return told
