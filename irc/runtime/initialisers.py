"""Initial values of a module on the meta device: each layer's own initialiser, one after the other.

A layer has memory while it is initialised; what a rank holds of it is kept, and the rest is freed.
The order and the seed are the same on every rank and mesh, and so are the values: those of ::

    model.to_empty(device="cpu")
    torch.manual_seed(seed)
    for layer in model.modules():
        layer.reset_parameters()   # where it has one
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

from irc.errors import IrcError
from irc.runtime.parts import Parts

_library: Any = torch
"""torch, where types are unknown in part."""

Init: TypeAlias = Callable[[nn.Module], Any]
"""Initialises the parameters and buffers that are a layer's own."""


class InitialStart:
    """The initialisers of a module.

    Args:
        module: on the meta device, or part of it.
        first: the name that ranks hold a tensor by, for each of its names.
        seed: of random numbers.
        init: for each layer; by default its ``reset_parameters()``.
    """

    def __init__(
        self, module: nn.Module, first: Mapping[str, str], seed: int, init: Init | None
    ) -> None:
        self._module: Any = module  # torch's named_modules has types that are unknown in part
        self._first, self._seed, self._init = first, seed, init
        self._names = {first.get(name, name) for name, _, _ in _layers_slots(module)}

    @property
    def names(self) -> Collection[str]:
        """What it has values of."""
        return self._names

    def leave_out(self, names: Collection[str]) -> None:
        """Give no value to these: they have another."""
        self._names = self._names - set(names)

    def fill(self, parts: Parts, names: Collection[str]) -> None:
        """Write this rank's part of each tensor; the others are initialised and forgotten.

        Raises:
            IrcError: ``weights-missing`` for what no initialiser has written.
        """
        if not names:
            return
        for name, whole in self.values():
            if name in names and parts.holds(name):
                parts.load(name, whole)

    def wholes(self, names: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield whole tensors among some, by name."""
        if not names:
            return iter(())
        return ((name, value) for name, value in self.values() if name in names)

    def values(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all tensors by name; of one that several layers have, the last counts."""
        with _library.random.fork_rng(devices=[]), torch.no_grad():
            _library.manual_seed(self._seed)
            for path, layer in self._module.named_modules():
                yield from self._layer(path, layer)

    def _layer(self, path: str, layer: nn.Module) -> list[tuple[str, torch.Tensor]]:
        kept = [(slots, key, value) for _, slots, key, value in _slots(path, layer)]
        reset = self._init or _initialiser(layer)
        if not kept and self._init is None and reset is None:
            return []
        for slots, key, value in kept:
            room: Any = torch.empty_like(value, device="cpu")
            slots[key] = nn.Parameter(room, False) if slots is layer._parameters else room
        try:
            before = [slots[key]._version for slots, key, _ in kept]
            if reset is not None:
                reset(layer)
            tensors: list[tuple[str, torch.Tensor]] = []
            for (name, slots, key), version in zip(
                [(n, s, k) for n, s, k in _keys(path, kept)], before, strict=True
            ):
                value = slots[key]
                whole = self._first.get(name, name)
                if value._version == version and whole in self._names:
                    raise IrcError(
                        "weights-missing",
                        f"'{name}' has no value: {type(layer).__name__} does not initialise it",
                        because="the module is on the meta device",
                        help="say how: irc.compile_step(.., init=FUNCTION of each layer), or load "
                        "a checkpoint first: step.load(folder)",
                    )
                tensors.append((whole, value.detach()))
            return tensors
        finally:
            for slots, key, value in kept:
                slots[key] = value


def _initialiser(layer: nn.Module) -> Init | None:
    for name in ("reset_parameters", "_reset_parameters"):
        if (reset := getattr(layer, name, None)) is not None:
            return lambda _: reset()
    return None


def _keys(path: str, kept: list[Any]) -> Iterator[tuple[str, Any, str]]:
    for slots, key, _ in kept:
        yield (f"{path}.{key}" if path else key), slots, key


def _slots(path: str, layer: nn.Module) -> Iterator[tuple[str, Any, str, torch.Tensor]]:
    """Yield what a layer itself has on the meta device: name, dictionary, key and value."""
    for slots in (layer._parameters, layer._buffers):
        for key, value in slots.items():
            if value is not None and value.is_meta:
                yield (f"{path}.{key}" if path else key), slots, key, value


def _layers_slots(module: Any) -> Iterator[tuple[str, Any, str]]:
    for path, layer in module.named_modules():
        for name, slots, key, _ in _slots(path, layer):
            yield name, slots, key
