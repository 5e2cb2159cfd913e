"""Which GPU is at hand: the device of a process, its name, and the target that fits it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module

import torch

from irc.errors import IrcError


def target_at_hand(backend: str, targets: Sequence[str]) -> str:
    """Return that of a backend's targets which is the GPU here; the first where there is no GPU.

    A GPU that is none of them gets the lowest: only what is in it does every later one have.

    Args:
        backend: its name.
        targets: such as ``sm_80``, the default first.
    """
    if import_module(f"irc.backends.{backend}").is_interpreted() or not torch.cuda.is_available():
        return targets[0]
    major, minor = torch.cuda.get_device_capability()
    archs = {int(name.removeprefix("sm_")): name for name in targets}
    return archs.get(10 * major + minor, archs[min(archs)])


def name_at_hand(backend: str) -> str:
    """Return the name of the GPU here; empty where there is none, or in Triton's interpreter."""
    if import_module(f"irc.backends.{backend}").is_interpreted() or not torch.cuda.is_available():
        return ""
    return torch.cuda.get_device_name()


def device_of(backend: str) -> torch.device:
    """Return where the kernels of a backend run.

    Raises:
        IrcError: ``device-missing``.
    """
    if import_module(f"irc.backends.{backend}").is_interpreted():
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise IrcError(
            "device-missing",
            f"kernels of backend '{backend}' run on a GPU, and torch finds none here",
            because=f"torch {torch.__version__}: torch.cuda.is_available() is False",
            help="run the plan where there is one, or compile it with the backend cpu",
        )
    return torch.device("cuda", own_device(torch.cuda.current_device(), torch.cuda.device_count()))


def own_device(current: int, count: int) -> int:
    """Return which of the GPUs that a process sees is its own.

    Args:
        current: torch's current one: other than 0, the program has chosen it.
        count: how many it sees; a launcher may show each process one.

    >>> own_device(2, 4)
    2
    """
    local = os.environ.get("LOCAL_RANK", "")
    return int(local) % count if current == 0 and local.isascii() and local.isdigit() else current
