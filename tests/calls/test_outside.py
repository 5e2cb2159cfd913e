"""What traced code reads from outside is guarded: numbers, tensors, layers, however held."""

# pyright: basic
from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import irc
from irc.calls.compiled import statistics

X = torch.linspace(-1, 2, 12).reshape(3, 4)

CONFIG = ModuleType("tests_config")
CONFIG.__file__ = __file__
CONFIG.SCALE = 2.0
TABLE: dict[str, Any] = {"scale": 2.0, "inner": {"bias": 1}}
LIST: list[Any] = [2.0, [1]]
LAYERS = [nn.Linear(4, 4)]
WEIGHTS = {"w": torch.ones(4)}
BAG = SimpleNamespace(scale=2.0)
PARSED = argparse.Namespace(scale=2.0)
ORDER = [1, 2]


class Held:
    """An object with a property and a method."""

    scale = 2.0

    def __init__(self) -> None:
        self.bias = 1.0
        self.unread = 0

    @property
    def total(self) -> float:
        return self.scale + self.bias

    def times(self, x: Tensor) -> Tensor:
        return x * self.total


@dataclass(slots=True)
class Slotted:
    """An object without a dictionary."""

    scale: float = 2.0


HELD = Held()
SLOTTED = Slotted()


def helper(x: Tensor, held: Any) -> Tensor:
    return x * held.scale


class Module(nn.Module):
    """Reads a Python module, a global list and a dictionary of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = {"scale": 2.0}
        self._factor = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self._scaled(x) * CONFIG.SCALE * self._factor

    def _scaled(self, x: Tensor) -> Tensor:
        return x * self.table["scale"] * LIST[0]


MODULE = Module()


@torch.no_grad()
def decorated(x: Tensor) -> Tensor:
    return x * CONFIG.SCALE


CHANGES: dict[str, tuple[Callable[[Tensor], Tensor], Any, Any, Any]] = {
    "a Python module": (lambda x: x * CONFIG.SCALE, CONFIG, "SCALE", 3.0),
    "under a decorator": (decorated, CONFIG, "SCALE", 3.0),
    "a dictionary": (lambda x: x * TABLE["scale"], TABLE, "scale", 3.0),
    "an inner one": (lambda x: x * TABLE["inner"]["bias"], TABLE["inner"], "bias", 3),
    "a list": (lambda x: x * LIST[0], LIST, 0, 3.0),
    "an inner list": (lambda x: x * LIST[1][0], LIST[1], 0, 3),
    "keys": (lambda x: x * len(TABLE), TABLE, "more", 1),
    "a float for an equal integer": (lambda x: x + ORDER[0], ORDER, 0, 1.0),
    "a tensor": (lambda x: x * WEIGHTS["w"], WEIGHTS, "w", torch.full((4,), 3.0)),
    "a layer": (lambda x: LAYERS[0](x), LAYERS, 0, nn.Linear(4, 4)),
    "a layer's bias": (lambda x: LAYERS[0](x), LAYERS[0]._parameters, "bias", torch.ones(4)),
    "a namespace": (lambda x: x * BAG.scale, BAG, "scale", 3.0),
    "arguments": (lambda x: x * PARSED.scale, PARSED, "scale", 3.0),
    "an object": (lambda x: x * HELD.bias, HELD, "bias", 3.0),
    "an object elsewhere": (lambda x: helper(x, HELD), HELD, "scale", 3.0),
    "a class": (lambda x: x * Held.scale, Held, "scale", 3.0),
    "an object's class": (lambda x: x * HELD.scale, Held, "scale", 3.0),
    "a property": (lambda x: x * HELD.total, HELD, "bias", 3.0),
    "a method": (lambda x: HELD.times(x), HELD, "bias", 3.0),
    "a bound method": (HELD.times, HELD, "bias", 3.0),
    "slots": (lambda x: x * SLOTTED.scale, SLOTTED, "scale", 3.0),
    "a default": (lambda x, bag=BAG: x * bag.scale, BAG, "scale", 3.0),
    "what a module's forward reads": (MODULE, CONFIG, "SCALE", 3.0),
    "what its methods read": (MODULE, LIST, 0, 3.0),
    "what a module holds": (MODULE, MODULE.table, "scale", 3.0),
    "what it holds for itself": (MODULE, MODULE, "_factor", 3.0),
    "of a layer": (nn.Sequential(nn.ReLU(), MODULE), CONFIG, "SCALE", 3.0),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_is_seen(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, owner, key, value = CHANGES[kind]
    fast = irc.compile(run)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(X), run(X))
        before = run(X)
        with monkeypatch.context() as patch:
            if isinstance(owner, list):
                old, owner[key] = owner[key], value
            elif isinstance(owner, dict):
                patch.setitem(owner, key, value)
            else:
                patch.setattr(owner, key, value)
            now = run(X)
            for _ in range(2):
                torch.testing.assert_close(fast(X), now)
            if isinstance(owner, list):
                owner[key] = old
        if kind != "a float for an equal integer":
            assert not torch.equal(now, before)
        torch.testing.assert_close(fast(X), before)
    assert statistics(fast).compilations == 2


def test_what_is_not_read_may_change() -> None:
    fast = irc.compile(lambda x: HELD.times(x) * BAG.scale)
    with torch.no_grad():
        for n in range(4):
            HELD.unread = n
            BAG.scale = float("2")  # an equal number
            fast(X)
    assert statistics(fast).compilations == 1


def test_containers_of_a_module_stay_its_own() -> None:
    table = MODULE.table
    irc.compile(MODULE)(X)
    with torch.no_grad():
        irc.compile(MODULE)(X)
    assert MODULE.table is table
