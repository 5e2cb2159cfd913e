"""Hooks on a module's layers: each belongs to what its ``forward`` does, when it is called.

A trace has what hooks make of values, but not what else they do, and it is made once. So calls of a
module whose layers have hooks go by Dynamo, which does in each call what the hooks do. It does not
see that hooks on all modules come and go; calls run uncompiled while there are any.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as of_all

FORWARD = ("_forward_pre_hooks", "_forward_hooks")

ON_ALL: Any = tuple(
    getattr(of_all, f"_global{name}")
    for name in (*FORWARD, "_backward_pre_hooks", "_backward_hooks")
)


def layer_hooks(module: nn.Module) -> tuple[dict[int, Any], ...]:
    """Return where the forward hooks on the layers of a module are held, and those on all modules.

    Args:
        module: its own hooks are not among them: they run outside its ``forward``. Only where it
            holds a tensor that they may make anew for each call (the weight of
            ``torch.nn.utils.spectral_norm``) are they.
    """
    layers = [layer for layer in module.modules() if layer is not module]
    own = [vars(layer)[name] for layer in layers for name in FORWARD if name in vars(layer)]
    if any(isinstance(value, torch.Tensor) for value in vars(module).values()):
        own.append(vars(module)[FORWARD[0]])
    return (*own, *ON_ALL[: len(FORWARD)]) if layers else tuple(own)


def on_all_modules() -> bool:
    """True where there are hooks that torch runs for each module that there is."""
    return any(ON_ALL)
