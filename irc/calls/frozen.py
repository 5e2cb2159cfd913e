"""Freezing: a compiled module lets go of the weights that its kernels read from packed copies.

Kernels read the weights of matmuls and convolutions from copies in another order. While a weight
may still change, the original has to stay beside its copy. Where the user says that none changes
any more, the originals are not needed, and a model takes as much memory as it did before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from irc.calls.compiled import dispatcher_of, original
from irc.calls.tracing import TRACING
from irc.calls.version import Version
from irc.errors import IrcError


def freeze(compiled: Any) -> Any:
    """Let a compiled module release the weights of which its calls read packed copies alone.

    Call it after the module was called once in each way that it will be called in (shapes, dtypes,
    flags). From then on calls of another kind are an error, as are writes to weights that packed
    copies are made of. In the module, parameters and buffers that were released lie on torch's
    ``meta`` device: shapes and dtypes without values, so that whoever reads them is told by torch.
    Save ``state_dict()`` before. The memory is free once nobody else (an optimizer, a second
    module) holds the tensors.

    Args:
        compiled: what ``irc.compile`` returned for a module.

    Returns:
        The same object.

    Raises:
        IrcError: ``input-mismatch`` where it is no compiled module, was not called yet, runs on a
            mesh, or was compiled with sizes left open; ``weights-released``, at later calls.

    >>> fast = irc.compile(nn.Linear(64, 64).eval())         # doctest: +SKIP
    >>> with torch.no_grad():                                # doctest: +SKIP
    ...     fast(x)
    >>> irc.freeze(fast).weight.device                       # doctest: +SKIP
    device(type='meta')
    """
    original(compiled)
    dispatcher = dispatcher_of(compiled) if isinstance(compiled, nn.Module) else None
    if dispatcher is None or not dispatcher.versions:
        raise IrcError(
            "input-mismatch",
            "only a compiled module that has been called can be frozen",
            because="the first call of each kind packs the weights as its kernels read them",
            help="call it once with inputs of each kind, then irc.freeze(module)",
        )
    versions = [each for each in dispatcher.versions if isinstance(each, Version)]
    if len(versions) < len(dispatcher.versions) or dispatcher.options.mesh.num_ranks > 1:
        raise IrcError(
            "input-mismatch",
            "a module on a mesh, or with sizes left open, cannot be frozen",
            because="sizes that have not come yet may need other packed copies",
            help="compile it without dynamic= and mesh=",
        )
    with TRACING:
        named = _named(compiled)
        names = _unread(versions, named)
        replaced = {id(named[name]): _on_meta(named[name]) for name in names if name in named}
        for version in versions:
            version.release(names, replaced)
        _replace(compiled, replaced)
        dispatcher.hand_none()
        dispatcher.is_frozen = True
    return compiled


def _named(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by the names that programs call them."""
    buffers = dict(module.named_buffers(remove_duplicate=False))
    return {**buffers, **dict(module.named_parameters(remove_duplicate=False))}


def _unread(versions: list[Version], named: dict[str, Tensor]) -> frozenset[str]:
    """Return the weights that some version has packed and that none reads as they are."""
    unread = frozenset[str]().union(*(version.unread() for version in versions))
    read = frozenset[str]().union(*(version.weights() - version.unread() for version in versions))
    usual = {name for name, value in named.items() if type(value) in (Tensor, nn.Parameter)}
    # A constant that a version made itself is called as it likes: another may call its own so.
    shared = {id(named[name]) for name in read if name in named}
    return frozenset(
        name
        for name in unread - read
        if name not in named or (name in usual and id(named[name]) not in shared)
    )


def _on_meta(value: Tensor) -> Tensor:
    meta = torch.empty_like(value, device="meta", requires_grad=False)
    if isinstance(value, nn.Parameter):
        return nn.Parameter(meta, requires_grad=value.requires_grad)
    return meta


def _replace(module: nn.Module, replaced: dict[int, Tensor]) -> None:
    for child in module.modules():
        stores: Any = (child._parameters, child._buffers)  # pyright: ignore[reportPrivateUsage]
        for slots in stores:
            for key, value in slots.items():
                if id(value) in replaced:
                    slots[key] = replaced[id(value)]
