"""Which driver a plan has: the one of the machine that its kernels are for, and where that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from irc.plan.load import LoadedPlan
from irc.runtime.executor import Executor
from irc.runtime.segments import DEVICE_BACKENDS
from irc.runtime.torch_driver import TorchDriver


def memory_of(backend: str) -> torch.device:
    """Return where what a plan's functions hand on lies: on the device that its kernels run on.

    Raises:
        IrcError: ``device-missing``.
    """
    if backend not in DEVICE_BACKENDS:
        return torch.device("cpu")
    from irc.runtime.device import device_of

    return device_of(backend)


def driver_of(backend: str, tensors: Mapping[str, torch.Tensor], **options: Any) -> TorchDriver:
    """Return the driver of the plans of a backend.

    Args:
        backend: whose kernels the plans have.
        tensors: this rank's weights by name.
        options: what :class:`irc.runtime.torch_driver.TorchDriver` takes.

    Raises:
        IrcError: ``device-missing``.
    """
    if backend not in DEVICE_BACKENDS:
        return TorchDriver(tensors, **options)
    from irc.runtime.gpu_driver import GpuDriver

    return GpuDriver(backend, tensors, **options)


def executor_of(
    loaded: LoadedPlan,
    tensors: Mapping[str, torch.Tensor],
    *,
    owns: bool = False,
    prepared: Mapping[int, torch.Tensor] | None = None,
    **options: Any,
) -> Executor:
    """Return what runs a plan that shares nothing with others but what ``options`` say.

    Args:
        loaded: the plan.
        tensors: this rank's weights by name.
        owns: see :class:`irc.runtime.executor.Executor`.
        prepared: see :class:`irc.runtime.executor.Executor`.
        options: what :class:`irc.runtime.torch_driver.TorchDriver` takes.

    Raises:
        IrcError: ``device-missing``, ``world-size``, ``input-mismatch``, ``backend-unknown``.
    """
    driver = driver_of(loaded.plan.backend, tensors, **options)
    return driver.bind(loaded, owns=owns, prepared=prepared)
