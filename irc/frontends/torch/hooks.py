"""Hooks on a module's layers: each belongs to what its ``forward`` does, when it is called.

A trace has what hooks make of values, but not what else they do, and it is made once. So calls of a
module whose layers have hooks go by Dynamo, which does in each call what the hooks do. It does not
see that hooks on all modules come and go; calls run uncompiled while there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as of_all
from torch.utils.hooks import RemovableHandle

from irc.errors import IrcError
from irc.frontends.torch.own_backward import is_differentiated

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


_TENSOR: Any = torch.Tensor
ON_GRADIENTS = (_TENSOR.register_hook, _TENSOR.register_post_accumulate_grad_hook)


def has_gradient_hook(parameter: torch.Tensor) -> bool:
    """True for a tensor with a function that autograd calls with its gradient."""
    of_tensor: Any = parameter
    return bool(of_tensor._backward_hooks or of_tensor._post_accumulate_grad_hooks)


def refuse_backward_hooks(module: nn.Module, *, own: bool) -> None:
    """Refuse hooks of the backward pass in a trace of what is trained.

    Args:
        module: what is traced.
        own: refuse its own hooks, too: they do not run around the program.

    Raises:
        IrcError: ``not-differentiable``, as of :func:`check_backward_hooks`.
    """
    if is_differentiated():
        check_backward_hooks(module, own=own)


def num_hooks_so_far() -> int:
    """Return how many hooks of any kind there have been in this process: a new one is one more."""
    return RemovableHandle.next_id


def check_backward_hooks(module: nn.Module, *, own: bool = True) -> None:
    """Refuse to train a module with hooks of the backward pass, which a step would not call.

    Args:
        module: what is trained.
        own: likewise for its own hooks, beside those of its layers and parameters.

    Raises:
        IrcError: ``not-differentiable``.
    """
    layers: Any = module
    for name, parameter in module.named_parameters():
        if has_gradient_hook(parameter):
            raise not_called(f"the gradient of parameter '{name}'")
    for name, layer in layers.named_modules():
        of_layer: Any = layer
        if not own and layer is module:
            continue
        if of_layer._backward_hooks or of_layer._backward_pre_hooks:
            raise not_called(f"the backward pass of '{name or type(layer).__name__}'")
    if any(ON_ALL[len(FORWARD) :]):
        raise not_called("the backward pass of all modules")


def refuse_hook(
    func: Callable[..., Any], args: Sequence[Any], _: Mapping[str, Any]
) -> IrcError | None:
    """Return the error for a call that hooks a gradient, in a trace of what is trained."""
    return not_called("a gradient") if func in ON_GRADIENTS and is_differentiated() else None


def not_called(what: str) -> IrcError:
    """Return the error for a hook that a step would not call."""
    return IrcError(
        "not-differentiable",
        f"{what} has a hook, which a compiled step does not call",
        because="its backward pass is one program, in which no Python runs",
        help="train it by irc.compile(model) and an optimizer of torch's, which call hooks (with "
        "mesh= those of the module itself and of its parameters), or write what the hook does into "
        "the loss",
    )
