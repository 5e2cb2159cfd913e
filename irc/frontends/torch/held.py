"""What modules hold that a trace takes for constant: options, tensors, layers, and how many.

Of torch's own layers only options that their code reads can matter.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any, cast

from torch import Tensor, nn

Slot = tuple[str, dict[str, Any], str]
"""A name for messages, and the entry of a dictionary."""

UNREAD = {"__init__", "__repr__", "__setstate__", "__getstate__", "extra_repr", "reset_parameters"}
"""Methods that no call runs."""


def attributes(module: nn.Module) -> Iterator[Slot]:
    """Return plain attributes that traced code can read, those that torch's layers read too."""
    every = cast("Iterable[tuple[str, nn.Module]]", module.named_modules())
    for path, child in every:
        torchs = read_by(type(child)) if is_torchs(child) else None
        for key, value in vars(child).items():
            if key == "training" or (key in torchs if torchs is not None else key[:1] != "_"):
                is_sizes = torchs is not None and isinstance(value, tuple)
                if is_sizes or isinstance(value, bool | int | float | str | None):
                    yield f"{path}.{key}" if path else key, vars(child), key


def held(module: nn.Module) -> Iterator[Slot]:
    """Return the parameters, buffers and layers, and places for them that are empty.

    A layer of torch's may have a tensor for an attribute, which a hook computes for each call.
    """
    every = cast("Iterable[tuple[str, nn.Module]]", module.named_modules())
    for path, child in every:
        for slots in (child._parameters, child._buffers, child._modules):
            for key in slots:
                yield f"{path}.{key}" if path else key, slots, key
        if is_torchs(child):
            for key, value in vars(child).items():
                if isinstance(value, Tensor):
                    yield f"{path}.{key}" if path else key, vars(child), key


def sized(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Return the dictionaries to which an entry may be added that calls would read."""
    for child in module.modules():
        if not is_torchs(child):
            yield from (vars(child), child._parameters, child._buffers, child._modules)
        elif child._modules or isinstance(child, COLLECTIONS):
            yield from (child._parameters, child._modules)


COLLECTIONS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""Layers of torch's that calls go through."""


def is_torchs(module: nn.Module) -> bool:
    """True for a layer of torch's own."""
    return type(module).__module__.startswith("torch.")


@cache
def read_by(cls: type) -> frozenset[str]:
    """Return the names in the code of a class: of what its calls read, others may be among them."""
    return frozenset(
        name
        for base in cls.__mro__
        if base not in (nn.Module, object)
        for key, method in vars(base).items()
        if isinstance(method, FunctionType) and key not in UNREAD
        for name in _names(method.__code__)
    )


def _names(code: CodeType) -> list[str]:
    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    return [*code.co_names, *(name for c in inner for name in _names(c))]
