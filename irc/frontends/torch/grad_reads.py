"""What a model asks of gradients while it is traced: a trace is made without them.

A parameter says truly whether it is trained; of what is computed a trace does not know whether
eager would record it, and a branch by that would be the wrong one.
"""

# pyright: basic
from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from irc.errors import IrcError
from irc.frontends.torch.locations import LIBRARIES, PACKAGE
from irc.frontends.torch.own_backward import is_differentiated

_TENSOR: Any = torch.Tensor
NAMES = {getattr(_TENSOR, name).__get__: name for name in ("requires_grad", "is_leaf", "grad_fn")}


def refuse_read(func: Callable[..., Any], args: Sequence[Any], _: Mapping[str, Any]) -> None:
    """Refuse to read of a computed tensor whether it has a gradient, in what is trained.

    Code of libraries may: it asks to take a faster way of the same values.

    Raises:
        IrcError: ``capture-failed``.
    """
    if func not in NAMES or not is_differentiated():
        return
    tensor: Any = args[0]
    with torch._C.DisableTorchFunction():
        if isinstance(tensor, torch.nn.Parameter) or tensor.requires_grad:
            return
        if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            return
    frame = sys._getframe(1)
    while frame.f_code.co_name == "__torch_function__" and frame.f_back is not None:
        frame = frame.f_back  # of this mode, and of those of torch inside it
    file = frame.f_code.co_filename
    if file.startswith(PACKAGE) or any(part in file for part in LIBRARIES):
        return
    raise IrcError(
        "capture-failed",
        f"the {NAMES[func]} of a tensor is read in what is trained",
        because="a trace is made without gradients, and the answer would not be that of eager",
        help="decide by module.training, or by the requires_grad of a parameter",
    )
