"""Tensors in the slots of a module: by their first names, absent, or with memory nobody reads."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from irc.runtime.absent import AbsentParameter
from irc.runtime.parts import Parts


def canonical_names(module: nn.Module) -> dict[str, str]:
    """Return for each name of a parameter or buffer the first name of the same tensor."""
    first: dict[int, str] = {}
    canonical: dict[str, str] = {}
    for walk in (module.named_parameters, module.named_buffers):
        for name, value in walk(remove_duplicate=False):
            canonical[name] = first.setdefault(id(value), name)
    return canonical


def release(module: nn.Module, first: Mapping[str, str], roles: Mapping[str, str]) -> None:
    """Move parameters that ranks hold in parts to the meta device; tied ones stay tied."""
    absent: dict[str, nn.Parameter] = {}
    every = cast("Iterable[tuple[str, nn.Module]]", module.named_modules())
    for path, child in every:
        for key, value in child._parameters.items():
            name = first.get(f"{path}.{key}" if path else key)
            if value is None or isinstance(value, AbsentParameter):
                continue
            if name is None or roles.get(name) != "parameter":
                continue
            if name not in absent:
                absent[name] = AbsentParameter.of(value, name)
            child._parameters[key] = absent[name]


class Shown:
    """Whole values that a module is shown in the place of what is on the meta device.

    Args:
        module: whose parameters ranks hold in parts.
        first: of each name the first one of the same tensor, as :func:`canonical_names` has it.
    """

    def __init__(self, module: nn.Module, first: Mapping[str, str]) -> None:
        self._module, self._first = module, first
        self._replaced: list[tuple[dict[str, Any], str, Any]] = []

    def show(self, parts: Parts) -> None:
        """Let the module hold its values, whole, until :meth:`hide`; every rank calls it."""
        if self._replaced:
            return
        own = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        wholes = {name: parts.whole(name) for name in parts.names if name in own}
        parameters: dict[str, nn.Parameter] = {}
        every = cast("Iterable[tuple[str, nn.Module]]", self._module.named_modules())
        for path, child in every:
            for key, value in child._parameters.items():
                name = self._first.get(f"{path}.{key}" if path else key, "")
                if value is None or not value.is_meta or (whole := wholes.get(name)) is None:
                    continue
                if name not in parameters:
                    parameters[name] = nn.Parameter(whole, requires_grad=value.requires_grad)
                self._replaced.append((child._parameters, key, value))
                child._parameters[key] = parameters[name]
        with torch.no_grad():
            for name, whole in wholes.items():
                if whole is not None and name not in parameters and not own[name].is_meta:
                    own[name].copy_(whole)

    def hide(self) -> None:
        """Put parameters that the module was shown back on the meta device."""
        for slots, key, value in self._replaced:
            slots[key] = value
        self._replaced.clear()


@contextmanager
def shaped(module: nn.Module) -> Generator[None]:
    """Give what is on the meta device memory that nobody reads, so that capture takes it."""
    kept = make_room(module)
    try:
        yield
    finally:
        for slots, key, value in kept:
            slots[key] = value


def make_room(module: nn.Module) -> list[tuple[dict[str, Any], str, Any]]:
    """Put memory in the place of what is on the meta device; return what was where."""
    kept: list[tuple[dict[str, Any], str, Any]] = []
    rooms: dict[int, Any] = {}
    for child in module.modules():
        for slots in (child._parameters, child._buffers):
            for key, value in slots.items():
                if value is None or not value.is_meta:
                    continue
                kept.append((slots, key, value))
                if id(value) not in rooms:
                    # Never touched, so the system gives it no pages.
                    room: Any = torch.empty_like(value, device="cpu")
                    is_parameter = isinstance(value, nn.Parameter)
                    rooms[id(value)] = (
                        nn.Parameter(room, value.requires_grad) if is_parameter else room
                    )
    for slots, key, value in kept:
        slots[key] = rooms[id(value)]
    return kept
