"""Which executor runs a plan: the one of the device that its kernels run on, and where that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from irc.plan.load import LoadedPlan
from irc.runtime.executor import Executor
from irc.runtime.segments import DEVICE_BACKENDS


def memory_of(backend: str) -> torch.device:
    """Return where what a plan's functions hand on lies: on the device that its kernels run on.

    Raises:
        IrcError: ``device-missing``.
    """
    if backend not in DEVICE_BACKENDS:
        return torch.device("cpu")
    from irc.runtime.device import device_of

    return device_of(backend)


def executor_of(
    loaded: LoadedPlan, tensors: Mapping[str, torch.Tensor], **options: Any
) -> Executor:
    """Return the executor of a plan.

    Args:
        loaded: the plan.
        tensors: this rank's weights by name.
        options: what :class:`irc.runtime.executor.Executor` takes.

    Raises:
        IrcError: ``device-missing``, ``world-size``, ``input-mismatch``, ``backend-unknown``.
    """
    if loaded.plan.backend not in DEVICE_BACKENDS:
        return Executor(loaded, tensors, **options)
    from irc.runtime.device import DeviceExecutor

    return DeviceExecutor(loaded, tensors, **options)
