"""A module that computes in another dtype, as ``torch.autocast`` has it, and one that stores so."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch import nn

from irc.errors import IrcError
from irc.training.precision import Precision


def computing(module: nn.Module, precision: Precision) -> nn.Module:
    """Return a second face of a module, which computes under autocast where that is asked for.

    Raises:
        IrcError: ``option-value`` for float32 parameters on the meta device that would stay so: no
            autocast of torch knows that device, and the program would compute in float32.
    """
    if not precision.computes:
        return module
    if any(p.is_meta and p.dtype == torch.float32 for p in module.parameters()):
        raise IrcError(
            "option-value",
            f"precision {precision.computes}: the module's float32 parameters are on the meta "
            "device, where torch.autocast changes nothing",
            help=f"store them so, with precision='parameters={precision.computes},masters=float32'"
            ", or give the module values",
        )
    cls, dtype = type(module), getattr(torch, precision.computes)

    @wraps(cls.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # The lists of the CPU: what a program says does not depend on where it runs.
        with torch.autocast("cpu", dtype):
            return cls.forward(self, *args, **kwargs)

    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    face = object.__new__(type(cls.__name__, (cls,), {**names, "forward": forward}))
    object.__setattr__(face, "__dict__", module.__dict__)
    return face


def store(module: nn.Module, precision: Precision) -> None:
    """Change float32 parameters of a module to the dtype that they are to be stored in, in place.

    Buffers stay: running means of a batch norm need their digits.
    """
    if not precision.parameters:
        return
    dtype = getattr(torch, f"{precision.parameters}")
    for parameter in module.parameters():
        if parameter.dtype == torch.float32:
            parameter.data = parameter.data.to(dtype)
