"""A random program: straight-line code over tensors, as text, as torch function, as flow module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import torch

from tests.fuzz.bounded import DTYPES, Bounded
from tests.fuzz.meaning import Meaning
from tests.fuzz.reference import BoundMeaning
from tests.fuzz.vocabulary import OPS

SCOPE = {"torch": torch, "F": torch.nn.functional, "inf": float("inf")}
LAYOUTS = ("plain", "transposed", "sliced", "offset", "expanded")


@dataclass(frozen=True)
class Input:
    """An argument: what is drawn for it, and how it lies in memory.

    Attributes:
        name: ``x0``.
        shape: its sizes.
        dtype: irc's name.
        layout: plain, transposed (last two dims swapped in memory), sliced (every second column of
            a wider tensor), offset (the middle of a longer one), expanded (stride 0 in dim 0).
        below: integers are drawn from 0 to below; 0: from -9 to 9. A negative number: -n-1 draws a
            permutation of n along each row.
        alike: an earlier input whose tensor is given again, or an empty text.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str = "plain"
    below: int = 0
    alike: str = ""

    def draw(self, seed: int) -> torch.Tensor:
        """Return a tensor of the stated layout, the same one for the same seed."""
        generator = torch.Generator().manual_seed(seed * 101 + int(self.name[1:]))
        values = self._values(generator)
        return laid_out(values, self.layout)

    def _values(self, generator: torch.Generator) -> torch.Tensor:
        dtype = DTYPES[self.dtype]
        if dtype.is_floating_point:
            return torch.randn(self.shape, generator=generator, dtype=torch.float64).to(dtype)
        if dtype == torch.bool:
            return torch.rand(self.shape, generator=generator) < 0.6
        if self.below < 0:
            noise = torch.rand(self.shape, generator=generator)
            return noise.argsort(-1).to(dtype) if self.shape else noise.to(dtype)
        low = 0 if self.below or self.dtype == "u8" else -9
        high = self.below or 10
        return torch.randint(low, max(high, 1), self.shape, generator=generator).to(dtype)


def laid_out(values: torch.Tensor, layout: str) -> torch.Tensor:
    """Return the values in another layout; one that does not fit the shape stays plain."""
    shape = values.shape
    if layout == "transposed" and values.ndim >= 2:
        return values.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "sliced" and values.ndim >= 1:
        wide = torch.zeros((*shape[:-1], 2 * shape[-1] + 1), dtype=values.dtype)
        wide[..., 1::2] = values
        return wide[..., 1::2]
    if layout == "offset":
        long = torch.zeros(values.numel() + 10, dtype=values.dtype)
        long[3 : 3 + values.numel()] = values.reshape(-1)
        return long[3 : 3 + values.numel()].view(shape)
    if layout == "expanded" and values.ndim >= 1 and shape[0] > 0:
        return values[:1].clone().expand(shape)
    return values


@dataclass(frozen=True)
class Node:
    """One statement: an op of the vocabulary applied to earlier values."""

    name: str
    op: str
    args: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def text(self) -> str:
        """The statement in torch's words."""
        return OPS[self.op].statement(self.name, self.args, self.attrs)


@dataclass(frozen=True)
class Program:
    """Inputs, statements, and the names of the results."""

    seed: int
    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]

    @cached_property
    def text(self) -> str:
        """The program as a torch function."""
        names = ", ".join(x.name for x in self.inputs)
        lines = [f"    {line}" for node in self.nodes for line in node.text.splitlines()]
        comments = "".join(f"    # {x.name}: {describe(x)}\n" for x in self.inputs)
        body = "\n".join(lines)
        return f"def program({names}):\n{comments}{body}\n    return ({', '.join(self.outputs)},)\n"

    def function(self) -> Callable[..., tuple[torch.Tensor, ...]]:
        """Return the torch function."""
        scope = dict(SCOPE)
        exec(compile(self.text, f"<fuzz {self.seed}>", "exec"), scope)
        return scope["program"]

    def draw(self) -> list[torch.Tensor]:
        """Return a tensor for each input; alike ones are one tensor."""
        tensors: dict[str, torch.Tensor] = {}
        for x in self.inputs:
            tensors[x.name] = tensors[x.alike] if x.alike else x.draw(self.seed)
        return list(tensors.values())

    def walk(self, meaning: Meaning, values: dict[str, Any]) -> dict[str, Any]:
        """Give every statement its meaning."""
        for node in self.nodes:
            args = [values[a] for a in node.args]
            values[node.name] = OPS[node.op].meaning(meaning, *args, **node.attrs)
        return values

    def reference(self, inputs: Sequence[torch.Tensor]) -> list[Bounded]:
        """Return what the results are, with bounds."""
        bounded = {x.name: Bounded.exact(t) for x, t in zip(self.inputs, inputs, strict=True)}
        values = self.walk(BoundMeaning(), bounded)
        return [values[name] for name in self.outputs]

    @property
    def elements(self) -> int:
        """How many elements the inputs have."""
        return sum(prod(x.shape) for x in self.inputs)


def describe(x: Input) -> str:
    """Return an input's description.

    >>> describe(Input("x0", (2, 3), "f32", "sliced"))
    'f32[2, 3] sliced'
    """
    parts = [f"{x.dtype}[{', '.join(map(str, x.shape))}]"]
    parts += [x.layout] if x.layout != "plain" else []
    parts += [f"below {x.below}"] if x.below else []
    parts += [f"the tensor of {x.alike}"] if x.alike else []
    return " ".join(parts)


def pruned(program: Program) -> Program:
    """Drop statements and inputs that no result needs."""
    wanted = set(program.outputs)
    kept: list[Node] = []
    for node in reversed(program.nodes):
        if node.name in wanted:
            kept.insert(0, node)
            wanted |= set(node.args)
    wanted |= {x.alike for x in program.inputs if x.name in wanted and x.alike}
    inputs = tuple(x for x in program.inputs if x.name in wanted)
    return Program(program.seed, inputs, tuple(kept), program.outputs)
