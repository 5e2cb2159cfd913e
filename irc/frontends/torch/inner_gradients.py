"""Modules that take gradients, or transform functions (vmap, jacrev), in what they compute.

torch.export traces above autograd and above transforms: it keeps a vmap as calls, and knows no
gradients. A trace below both has what they compute. So such a module is traced there first, and
torch.export is given a module with the same parameters that computes what came of it.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta
from torch.nn.utils.stateless import _reparametrize_module  # pyright: ignore[reportPrivateUsage]
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from irc.errors import IrcError
from irc.frontends.torch.detached_writes import DATA, DETACH, DETACHED, is_inexact
from irc.frontends.torch.faces import face, subclass
from irc.frontends.torch.forward_mode import forward_modes

TORCH = Path(torch.__file__).parent
PARTS = tuple(
    str(TORCH / folder / f"{name}.py")
    for folder, names in {
        "_functorch": ("apis", "eager_transforms", "predispatch", "pyfunctorch", "vmap"),
        "autograd": ("__init__", "functional"),
    }.items()
    for name in names
)
"""Where torch takes gradients and transforms functions; its export and ``no_grad`` stand beside."""

TEXTS = ("functorch tensor", "We found a fake tensor in the exported program constant's list")
"""What torch says of them elsewhere: to a trace above autograd, gradients are constants."""

_TENSOR: Any = torch.Tensor
"""Types know its ``backward`` only in part."""


def is_about_gradients(error: BaseException) -> bool:
    """True for an error from inside of a gradient or a transform that traced code asked for."""
    at: BaseException | None = error
    while at is not None:
        files = [frame.filename for frame in traceback.extract_tb(at.__traceback__)]
        if any(text in str(at) for text in TEXTS) or any(file in PARTS for file in files):
            return True
        at = at.__cause__ or at.__context__
    return False


def taken_apart(module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> nn.Module:
    """Return a face of a module that computes the same without gradients and transforms.

    Args:
        module: has been traced as it is, in vain.
        args: examples.
        kwargs: likewise.

    Raises:
        IrcError: ``capture-failed``.
    """
    if "forward" in vars(module):
        raise _refusal("what is compiled is a function")
    leaves, spec = pytree.tree_flatten((tuple(args), kwargs))
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    recorded: list[Any] = []

    def run(state: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        mine = list(leaves)
        for place, value in zip(tensors, inputs, strict=True):
            mine[place] = value
        own_args, own_kwargs = pytree.tree_unflatten(mine, spec)
        own = dict(zip(held, state, strict=True))
        with (
            _reparametrize_module(module, own, tie_weights=True),
            _Detaching(),
            forward_modes(),
            torch.enable_grad(),
        ):
            results, shape = pytree.tree_flatten(module.forward(*own_args, **own_kwargs))
        places = [i for i, result in enumerate(results) if isinstance(result, Tensor)]
        recorded[:] = [results, shape, places]
        return [results[i] for i in places]

    try:
        traced = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(
            list(held.values()), [leaves[i] for i in tensors]
        )
    except IrcError:
        raise
    except Exception as error:
        raise _refusal(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
    _drop_own_detaches(traced)
    results, shape, places = recorded

    @wraps(type(module).forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        state = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        own_leaves = pytree.tree_leaves((args, kwargs))
        with preserve_node_meta():
            computed = Interpreter(traced).run(*state.values(), *(own_leaves[i] for i in tensors))
        every = list(results)
        for place, value in zip(places, computed, strict=True):
            every[place] = value
        return pytree.tree_unflatten(every, shape)

    return face(subclass(type(module), forward=forward), module)


class _Detaching(TorchFunctionMode):
    """Notes what the module detaches: autograd detaches what it keeps, which means nothing."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named: dict[str, Any] = kwargs or {}
        if func in (torch.Tensor.detach, torch.detach, DATA) and is_inexact(args[0]):
            return DETACHED(args[0])
        if func in (_TENSOR.backward, torch.autograd.backward):
            raise _refusal("backward() writes to .grad, which is no result")
        if func is torch.autograd.grad and not named.get("create_graph"):
            gradients = func(*args, **named)
            return tuple(x if x is None else DETACHED(x) for x in gradients)
        return func(*args, **named)


def _drop_own_detaches(traced: GraphModule) -> None:
    for node in list(traced.graph.nodes):
        if node.op == "call_function" and node.target is DETACH:
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
    traced.recompile()


def _refusal(because: str) -> IrcError:
    return IrcError(
        "capture-failed",
        "gradients are taken, or functions transformed, in what is compiled",
        because=because,
        help="torch.func (grad, vmap, jvp, jacrev, functional_call), torch.autograd.functional "
        "and torch.autograd.grad of tensors that the module computes can be a part of it; for the "
        "rest call the module through irc.compile, and an optimizer of torch's",
    )
