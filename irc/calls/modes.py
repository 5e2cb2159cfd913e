"""Modes that ops of torch run under: what somebody wants to see of each op, or to do to it.

Kernels of a plan call no op of torch's. A ``TorchFunctionMode`` or ``TorchDispatchMode`` sees none
of what a compiled call computes, and what a trace under one has done to an op stays in the trace.
Such calls run uncompiled. So do those in a ``dual_level()`` of ``torch.autograd.forward_ad``, where
each op gives its result a tangent: arguments, parameters or what a function reads may have one.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

num_function_modes = torch._C._len_torch_function_stack
num_dispatch_modes = torch._C._len_torch_dispatch_stack
"""How many modes this thread is under; each call of what is compiled asks."""

forward: Any = forward_ad
"""torch's, whose types are unknown in part: ``_current_level`` is -1 where no level is open."""

FORWARD = "a dual_level() of torch.autograd.forward_ad is open"
"""What is said where derivatives go forward."""


def mode_here() -> str:
    """Say which mode ops of this thread run under; nothing where a compiled call does as well.

    ``torch.device(..)`` as a block, and ``torch.set_default_device``, are a mode, too: what it does
    is guarded. Some modes let torch.compile's calls pass, such as those of selective checkpoints.

    >>> with torch.device("cpu"):
    ...     mode_here()
    ''
    """
    for i in range(num_function_modes()):
        mode: Any = torch._C._get_function_stack_at(i)
        if type(mode) is not DeviceContext:
            return f"the TorchFunctionMode '{type(mode).__name__}' is active"
    for i in range(num_dispatch_modes()):
        mode = torch._C._get_dispatch_stack_at(i)
        if not mode.ignore_compile_internals():
            return f"the TorchDispatchMode '{type(mode).__name__}' is active"
    return FORWARD if forward._current_level >= 0 else ""
