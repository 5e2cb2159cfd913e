"""Writes scenes: each statement is run in eager when it is written, and kept if it is tame."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from tests.fuzz.program import LAYOUTS
from tests.fuzz.scenes import HOOKS, KINDS, NAMES, Argument, Scene

FLOATS = ("f32", "f32", "f64", "f16", "bf16")
COMPLEX = ("c64", "c64", "c128")
WHOLE = ("i64", "i32", "i16", "u8", "i1")
SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
MOST = 1e3


class SceneWriter:
    """The state of a scene that is being written.

    Args:
        seed: of everything that is drawn.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(f"scene {seed}")
        self.arguments: list[Argument] = []
        self.lines: list[tuple[str, str]] = []
        self.values: dict[str, Tensor] = {}
        self.random: set[str] = set()
        self.gate = nn.Tanh()
        self._names = 0

    # arguments

    def shape(self, ndim: int | None = None) -> tuple[int, ...]:
        """Return a shape; sizes of 0 are seldom."""
        count = self.rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4)) if ndim is None else ndim
        while True:
            shape = tuple(self.rng.choice(SIZES) for _ in range(count))
            if prod(shape) <= 3000:
                empty = count and self.rng.random() < 0.04
                return (0, *shape[1:]) if empty else shape

    def argument(self, shape: Sequence[int], dtype: str) -> str:
        """Add an argument in some layout."""
        shape = tuple(shape)
        layout = self.rng.choice(LAYOUTS) if self.rng.random() < 0.35 else "plain"
        if len(shape) == 4 and self.rng.random() < 0.4:
            layout = "channels_last"
        wants = KINDS[dtype].is_floating_point or KINDS[dtype].is_complex
        wants = wants and layout != "expanded" and self.rng.random() < 0.8
        return self.add(Argument(f"x{len(self.arguments)}", shape, dtype, layout, "", wants))

    def shared(self, name: str) -> str | None:
        """Add an argument that shares memory with an earlier one."""
        value = self.values[name]
        forms = [name, f"{name}.detach()"]
        if value.ndim and value.shape[0] > 1:
            forms += [f"{name}[1:]", f"{name}[::2]", f"{name}.transpose(0, -1)"]
        of = self.rng.choice(forms)
        self.arguments = [
            x if x.name != name else Argument(x.name, x.shape, x.dtype, x.layout)
            for x in self.arguments
        ]
        shape = tuple(eval(of, {}, {name: value}).shape)
        dtype = NAMES[str(value.dtype)]
        return self.add(Argument(f"x{len(self.arguments)}", shape, dtype, of=of))

    def add(self, argument: Argument) -> str:
        """Add an argument as it is."""
        self.arguments.append(argument)
        self.values[argument.name] = (
            eval(argument.of, {}, self.values) if argument.of else argument.draw(self.seed)
        )
        return argument.name

    # statements

    def pick(self, fits: Callable[[Tensor], bool] = lambda _: True) -> str | None:
        """Return a value that fits, late ones more often."""
        names = [name for name, value in self.values.items() if fits(value)]
        if not names:
            return None
        return self.rng.choice(names[-3:] if self.rng.random() < 0.6 else names)

    def define(self, expression: str, *read: str) -> str | None:
        """Append ``v = expression``; None where eager refuses it or its numbers are wild."""
        name = f"v{self._names}"
        scope = self._run(f"{name} = {expression}")
        if not isinstance(scope.get(name), Tensor) or not _is_tame(scope[name]):
            return None
        self._names += 1
        self.lines.append((name, f"{name} = {expression}"))
        self.values[name] = scope[name]
        if any(self.is_random(each) for each in read):
            self.random.add(name)
        return name

    def change(self, target: str, statement: str, *read: str) -> bool:
        """Append a statement that writes to a value's memory."""
        scope = self._run(statement)
        if not scope or not all(map(_is_tame, self.values.values())):
            self._replay()
            return False
        self.lines.append((target, statement))
        if any(self.is_random(each) for each in read):
            self.random |= {n for n, v in self.values.items() if _shares(v, self.values[target])}
        return True

    def _replay(self) -> None:
        """Compute all values again: the last statement wrote to some, and is not kept."""
        self.values = {}
        for x in self.arguments:
            self.values[x.name] = eval(x.of, {}, self.values) if x.of else x.draw(self.seed)
        for name, line in self.lines:
            scope = self._run(line)
            if line.startswith(f"{name} = "):
                self.values[name] = scope[name]

    def is_random(self, name: str) -> bool:
        """True for what depends on random numbers."""
        return name in self.random

    def is_expanded(self, value: Tensor) -> bool:
        """True in the memory of an expanded argument, which Dynamo cannot write back to."""
        wide = (self.values[x.name] for x in self.arguments)
        return any(0 in x.stride() and x.numel() > 1 and _shares(x, value) for x in wide)

    def _run(self, statement: str) -> dict[str, Any]:
        scope = {"torch": torch, "F": nn.functional, "gate": self.gate, **self.values}
        try:
            with _quiet():
                exec(statement, scope)
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
            return {}
        return scope

    def finish(self) -> Scene:
        """Choose the results: late values, and now and then an argument or a value twice."""
        own = [name for name in self.values if name.startswith("v")]
        count = self.rng.choice((1, 1, 2, 3))
        results = own[-count:] or [self.arguments[0].name]
        if own and self.rng.random() < 0.3:
            results.append(self.rng.choice(own))
        if self.rng.random() < 0.15:
            results.append(self.rng.choice(self.arguments).name)
        hook = self.rng.choice(HOOKS) if self.rng.random() < 0.25 else ""
        if hook == "layer" and not any("gate(" in line for _, line in self.lines):
            hook = "forward"
        first = self.arguments[0].dtype
        if hook in ("pre", "forward") and {first, *map(self._dtype, results)} & set(WHOLE):
            hook = "backward"
        return Scene(
            self.seed, tuple(self.arguments), tuple(self.lines), tuple(results),
            frozenset(self.random & set(results)), hook,
        )  # fmt: skip

    def _dtype(self, name: str) -> str:
        return NAMES[str(self.values[name].dtype)]


@contextmanager
def _quiet() -> Generator[None]:
    """No gradients, no warnings."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _is_tame(value: Tensor) -> bool:
    if value.numel() > 20_000 or str(value.dtype) not in NAMES:
        return False
    if not value.numel() or not (value.is_floating_point() or value.is_complex()):
        return True
    size = value.abs().double()
    return bool(torch.isfinite(size).all()) and float(size.max()) < MOST


def _shares(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
