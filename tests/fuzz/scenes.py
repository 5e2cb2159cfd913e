"""Scenes: random torch functions as people write them, held against eager torch and nothing else.

Programs of :mod:`tests.fuzz.program` are about numbers and have a proven bound. A scene is about
meaning: complex, half, integer and mixed dtypes, views that are written to, arguments that share
memory, results that are arguments, strides, hooks, random numbers, gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from tests.fuzz.bounded import DTYPES, HALVES
from tests.fuzz.program import laid_out

KINDS = {**DTYPES, "c64": torch.complex64, "c128": torch.complex128}
WIDE = {"f16": "f64", "bf16": "f64", "f32": "f64", "c64": "c128"}
"""What a scene is computed in to see how much rounding does."""
NAMES = {str(dtype): name for name, dtype in KINDS.items()}
HOOKS = ("", "pre", "forward", "layer", "backward")


@dataclass(frozen=True)
class Argument:
    """An argument.

    Attributes:
        name: ``x0``.
        shape: its sizes.
        dtype: irc's name, also ``c64`` and ``c128``.
        layout: how it lies, as that of :class:`tests.fuzz.program.Input`; or channels last.
        of: an expression of an earlier argument that it is, or an empty text.
        wants: True where a gradient is wanted of it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str = "plain"
    of: str = ""
    wants: bool = False

    def draw(self, seed: int) -> torch.Tensor:
        """Return a tensor; the same numbers for the same seed."""
        generator = torch.Generator().manual_seed(seed * 103 + int(self.name[1:]))
        dtype = KINDS[self.dtype]
        if dtype == torch.bool:
            values = torch.rand(self.shape, generator=generator) < 0.6
        elif dtype.is_floating_point or dtype.is_complex:
            wide = torch.complex128 if dtype.is_complex else torch.float64
            values = torch.randn(self.shape, generator=generator, dtype=wide).to(dtype)
        else:
            low = 0 if dtype == torch.uint8 else -9
            values = torch.randint(low, 10, self.shape, generator=generator).to(dtype)
        if self.layout == "channels_last" and values.ndim == 4:
            return values.contiguous(memory_format=torch.channels_last)
        return laid_out(values, self.layout)

    @property
    def text(self) -> str:
        """A description."""
        shown = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        parts = [shown, *([self.layout] if self.layout != "plain" else [])]
        return " ".join([*parts, *([f"is {self.of}"] if self.of else [])])


@dataclass(frozen=True)
class Scene:
    """A torch function with what is done around it.

    Attributes:
        seed: of the numbers of the arguments.
        arguments: what it takes.
        lines: statements, the name that each defines or changes first.
        results: names that it returns.
        random: names among the results that depend on random numbers.
        hook: one of :data:`HOOKS`: which hook a module of it has.
    """

    seed: int
    arguments: tuple[Argument, ...]
    lines: tuple[tuple[str, str], ...]
    results: tuple[str, ...]
    random: frozenset[str] = frozenset()
    hook: str = ""

    @cached_property
    def text(self) -> str:
        """The function as text."""
        names = ", ".join(x.name for x in self.arguments)
        comments = "".join(f"    # {x.name}: {x.text}\n" for x in self.arguments)
        body = "".join(f"    {line}\n" for _, line in self.lines)
        hook = f"# as a module with a {self.hook} hook\n" if self.hook else ""
        inner = ", ".join(["gate", *([names] if names else [])])
        return (
            f"{hook}def scene({inner}):\n{comments}{body}    return ({', '.join(self.results)},)\n"
        )

    @property
    def draws(self) -> bool:
        """True where random numbers are drawn, whether a result shows it or not."""
        return any(word in self.text for word in ("torch.rand", "bernoulli", "dropout"))

    def function(self) -> Callable[..., Any]:
        """Return the function; its first argument is a layer."""
        scope: dict[str, Any] = {"torch": torch, "F": nn.functional}
        exec(compile(self.text, f"<scene {self.seed}>", "exec"), scope)
        return scope["scene"]

    def draw(self, *, gradients: bool = False) -> list[torch.Tensor]:
        """Return new arguments, which share memory as they say.

        Args:
            gradients: those that want one record it.
        """
        tensors: dict[str, torch.Tensor] = {}
        for x in self.arguments:
            value = eval(x.of, {"torch": torch}, tensors) if x.of else x.draw(self.seed)
            tensors[x.name] = value
        for x in self.arguments:
            if gradients and x.wants:
                tensors[x.name].requires_grad_()
        return list(tensors.values())

    def widened(self) -> Scene:
        """Return the same scene in float64 and complex128."""
        arguments = tuple(replace(x, dtype=WIDE.get(x.dtype, x.dtype)) for x in self.arguments)
        text = {str(KINDS[a]): str(KINDS[b]) for a, b in WIDE.items()}
        lines: list[tuple[str, str]] = []
        for name, line in self.lines:
            for narrow, wide in text.items():
                line = line.replace(f"({narrow})", f"({wide})").replace(f"={narrow}", f"={wide}")
            lines.append((name, line))
        return replace(self, arguments=arguments, lines=tuple(lines))

    @property
    def unit(self) -> float:
        """The rounding unit of the narrowest float that occurs."""
        words = self.text
        dtypes = {x.dtype for x in self.arguments}
        floats = [torch.float64]
        narrow = ("f32", "c64", *HALVES)
        floats += [KINDS[n] for n in narrow if n in dtypes or str(KINDS[n]) in words]
        if not dtypes <= {"f64", "c128"}:
            floats.append(torch.float32)  # what is made of integers and bools
        return max(torch.finfo(dtype).eps for dtype in floats)


class Module(nn.Module):
    """A scene as a module with a layer.

    Args:
        scene: what it computes.
    """

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self.gate = nn.Tanh()
        self._scene = scene.function()

    def forward(self, *arguments: torch.Tensor) -> Any:
        return self._scene(self.gate, *arguments)


def hooked(module: nn.Module, hook: str, calls: list[str]) -> None:
    """Register a hook that changes what passes, and notes that it ran.

    Args:
        module: a :class:`Module`, compiled or not.
        hook: one of :data:`HOOKS`.
        calls: takes a note of each run of a hook that eager runs as often.
    """

    def pre(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (args[0] * 2, *args[1:])

    def forward(_: nn.Module, args: Any, output: Any) -> Any:
        return tuple(x * 2 for x in output) if isinstance(output, tuple) else output * 2

    def backward(*_: Any) -> None:
        calls.append("backward")

    match hook:
        case "pre":
            module.register_forward_pre_hook(pre)
        case "forward":
            module.register_forward_hook(forward)
        case "layer":
            module.get_submodule("gate").register_forward_hook(forward)
        case "backward":
            module.register_full_backward_hook(backward)
