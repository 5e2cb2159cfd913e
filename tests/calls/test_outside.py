"""What traced code reads from outside is guarded: numbers, tensors, layers, however held."""

# pyright: basic
from __future__ import annotations

import argparse
import os
import threading
import weakref
from collections import ChainMap, UserDict, deque
from collections.abc import Callable
from configparser import ConfigParser
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

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
LAYERED = ChainMap({"scale": 2.0}, {"bias": 1.0})
FILE = ConfigParser()
FILE.read_dict({"model": {"scale": "2"}})
FLAG = threading.Event()
LOCAL = threading.local()
LOCAL.scale = 2.0
DATA = bytearray([2])
SEEN = memoryview(DATA)
WEAK = weakref.ref(PARSED)
VARIABLE = ContextVar("scale", default=2.0)


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
ARRAY = np.array([1.0, 2.0, 3.0, 4.0])
LARGE = np.full(20_000, 2.0)
BYTES = bytearray(b"\2")
QUEUE = deque([2.0])
USERS = UserDict(scale=2.0)
PROXIED = {"scale": 2.0}
PROXY = MappingProxyType(PROXIED)
CONFIGURED = PretrainedConfig()
CONFIGURED.scale = 2.0
CONFIGURED.table = {"scale": 2.0}
HERE = globals()
NAME = "scale"


class Kind(Enum):
    """A choice."""

    ONE = 1
    TWO = 2


PAIR, DTYPE, PART, KIND, TURN = (1, 2), torch.float32, slice(0, 2), Kind.ONE, 1j
CALLED, PARTIAL, SPACE = torch.sin, partial(torch.mul, other=2.0), SimpleNamespace(scale=2.0)


class Descriptor:
    """Keeps what it gives under a name that it computes."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}"

    def __get__(self, owner: Any, cls: type | None = None) -> float:
        return getattr(owner, self.name)

    def __set__(self, owner: Any, value: float) -> None:
        setattr(owner, self.name, value)


class Described:
    """Computes what it is asked for."""

    scale = Descriptor()

    def __init__(self) -> None:
        self.scale = 2.0
        self.__dict__["kept"] = {"more": 2.0}

    def __getattr__(self, name: str) -> float:
        return self.__dict__["kept"][name]

    def __getitem__(self, name: str) -> float:
        return self.kept[name]

    def __len__(self) -> int:
        return len(self.kept)


DESCRIBED = Described()


class Configured(nn.Module):
    """Reads a configuration of a library's class."""

    def __init__(self) -> None:
        super().__init__()
        self.config = CONFIGURED
        self.array = ARRAY

    def forward(self, x: Tensor) -> Tensor:
        return x * self.config.scale * self.config.table["scale"] * float(self.array[0])


CONFIGURED_MODULE = Configured()


@torch.no_grad()
def decorated(x: Tensor) -> Tensor:
    return x * CONFIG.SCALE


def perhaps(x: Tensor) -> Tensor:
    try:
        return x * LATER
    except NameError:
        return x


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
    "an array": (lambda x: x * float(ARRAY[0]), ARRAY, 0, 3.0),
    "an array's sum": (lambda x: x * ARRAY.sum(), ARRAY, 0, 3.0),
    "a large array": (lambda x: x * float(LARGE[-1]), LARGE, -1, 3.0),
    "another array": (lambda x: x * torch.from_numpy(ARRAY), HERE, "ARRAY", ARRAY * 2),
    "a module's array": (CONFIGURED_MODULE, ARRAY, 0, 3.0),
    "bytes": (lambda x: x * BYTES[0], BYTES, 0, 3),
    "a queue": (lambda x: x * QUEUE[0], QUEUE, 0, 3.0),
    "a dictionary in a class": (lambda x: x * USERS["scale"], USERS.data, "scale", 3.0),
    "a global by its name": (lambda x: x * globals().get("LATER", 2), HERE, "LATER", 3.0),
    "a global that may be there": (
        lambda x: x * (LATER if "LATER" in globals() else 2),  # noqa: F821
        HERE,
        "LATER",
        3.0,
    ),
    "a global that was not there": (perhaps, HERE, "LATER", 3.0),
    "what a proxy shows": (lambda x: x * PROXY["scale"], PROXIED, "scale", 3.0),
    "a configuration": (CONFIGURED_MODULE, CONFIGURED, "scale", 3.0),
    "a dictionary in it": (CONFIGURED_MODULE, CONFIGURED.table, "scale", 3.0),
    "a configuration by itself": (lambda x: x * CONFIGURED.scale, CONFIGURED, "scale", 3.0),
    "a configuration's method": (
        lambda x: x * CONFIGURED.to_dict()["scale"],
        CONFIGURED,
        "scale",
        3.0,
    ),
    "an attribute by its name": (lambda x: x * getattr(BAG, NAME), BAG, "scale", 3.0),
    "an attribute that was not there": (lambda x: x * getattr(BAG, "extra", 1), BAG, "extra", 3.0),
    "how many attributes": (lambda x: x * len(vars(BAG)), BAG, "extra", 3.0),
    "a descriptor": (lambda x: x * DESCRIBED.scale, DESCRIBED, "scale", 3.0),
    "an attribute that is computed": (lambda x: x * DESCRIBED.more, DESCRIBED.kept, "more", 3.0),
    "an item that is computed": (lambda x: x * DESCRIBED["more"], DESCRIBED.kept, "more", 3.0),
    "a length that is computed": (lambda x: x * len(DESCRIBED), DESCRIBED.kept, "extra", 3.0),
    "a global pair": (lambda x: x * PAIR[0], HERE, "PAIR", (3, 2)),
    "a global dtype": (lambda x: x.to(DTYPE) * 1, HERE, "DTYPE", torch.float64),
    "a global slice": (lambda x: x[PART] * 1, HERE, "PART", slice(1, 3)),
    "a global choice": (lambda x: x * KIND.value, HERE, "KIND", Kind.TWO),
    "a global complex number": (lambda x: x * TURN, HERE, "TURN", 2j),
    "a global function of torch": (lambda x: CALLED(x), HERE, "CALLED", torch.cos),
    "a global partial": (lambda x: PARTIAL(x), HERE, "PARTIAL", partial(torch.mul, other=3.0)),
    "a global object": (lambda x: x * SPACE.scale, HERE, "SPACE", SimpleNamespace(scale=3.0)),
    "the environment": (
        lambda x: x * float(os.environ.get("IRC_TEST_SCALE", "2")),
        os.environ,
        "IRC_TEST_SCALE",
        "3",
    ),
    "layered dictionaries": (lambda x: x * LAYERED["scale"], LAYERED.maps[0], "scale", 3.0),
    "a settings file": (
        lambda x: x * float(FILE["model"]["scale"]),
        FILE._sections["model"],
        "scale",
        "3",
    ),
    "a flag of threads": (lambda x: x * (2 if FLAG.is_set() else 3), FLAG, "_flag", True),
    "a value of this thread": (lambda x: x * LOCAL.scale, LOCAL, "scale", 3.0),
    "memory that is looked at": (lambda x: x * SEEN[0], DATA, 0, 3),
    "an object by a weak reference": (lambda x: x * WEAK().scale, PARSED, "scale", 3.0),
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
            if isinstance(owner, list | np.ndarray | bytearray | deque):
                old, owner[key] = owner[key], value
            elif isinstance(owner, dict | os._Environ):
                patch.setitem(owner, key, value)
            else:
                patch.setattr(owner, key, value, raising=False)
            now = run(X)
            for _ in range(2):
                torch.testing.assert_close(fast(X), now)
            if isinstance(owner, list | np.ndarray | bytearray | deque):
                owner[key] = old
        if kind != "a float for an equal integer":
            assert now.dtype is not before.dtype or not torch.equal(now, before)
        torch.testing.assert_close(fast(X), before)
    assert statistics(fast).compilations == 2


def test_a_variable_of_the_context_is_read() -> None:
    fast = irc.compile(lambda x: x * VARIABLE.get())
    with torch.no_grad():
        assert torch.equal(fast(X), X * 2)
        token = VARIABLE.set(3.0)
        assert torch.equal(fast(X), X * 3)
        VARIABLE.reset(token)
        assert torch.equal(fast(X), X * 2)
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
