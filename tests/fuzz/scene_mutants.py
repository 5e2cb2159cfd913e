"""Planted faults of what scenes are about: casts, aliases, hooks, strides, seeds, gradients.

As :mod:`tests.fuzz.mutants`, which runs these too; here a fault is caught when a scene differs from
eager with it, and does not without it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch

from tests.fuzz import ways
from tests.fuzz.scene_motifs import scene
from tests.fuzz.scenes import KINDS, Argument, Scene

SEEDS = 30


@dataclass(frozen=True)
class SceneMutant:
    """A planted fault.

    Attributes:
        name: what is wrong.
        owner: the module, or ``module:class``, of a function.
        function: its name.
        wrong: makes another function of it.
        way: in which it is looked for.
    """

    name: str
    owner: str
    function: str
    wrong: Callable[[Any], Any] = field(repr=False)
    way: str = "way-dynamo-train"

    @contextmanager
    def planted(self) -> Generator[list[int]]:
        """Have the fault inside; the list has an item for each time that its place was reached."""
        module, _, cls = self.owner.partition(":")
        place = __import__(module, fromlist=["_"])
        place = getattr(place, cls) if cls else place
        changed = self.wrong(getattr(place, self.function))
        times: list[int] = []

        def counted(*args: Any, **kwargs: Any) -> Any:
            times.append(1)
            return changed(*args, **kwargs)

        with patch.object(place, self.function, counted):
            yield times

    def killed_by(self) -> str:
        """Return the scene that kills it; ``survives`` or ``not planted`` where none does."""
        reached = False
        for name, one in scenes():
            with self.planted() as times:
                failure = ways.check(one, self.way)
            reached = reached or bool(times)
            if failure is not None and times and ways.check(one, self.way) is None:
                return f"{name}: {failure.kind}: {failure.text[:90]}"
        return "survives" if reached else "not planted"


def _without_imaginary(right: Any) -> Any:
    """A result's imaginary part is lost on its way into the arena."""

    def wrong(*args: Any, **kwargs: Any) -> Any:
        results = right(*args, **kwargs)
        return [x.real + 0j if x.is_complex() else x for x in results]

    return wrong


def _whole(right: Any) -> Any:
    """A number beside a complex tensor is cut to a whole one."""

    def wrong(value: Any, dtype: str) -> Any:
        return right(int(value) if dtype in ("c64", "c128") else value, dtype)

    return wrong


def _apart(right: Any) -> Any:
    """Results that are views of one tensor get memory of their own."""
    return lambda node: node


def _always_hooks(right: Any) -> Any:
    """The program has the module's own hooks in it, and the module runs them too."""
    return lambda *args, **kwargs: right(*args, **{**kwargs, "hooks": True})


def _unturned(right: Any) -> Any:
    """Results are row by row, in whatever order eager's lie."""
    return lambda node, order: node


def _counts_calls(right: Any) -> Any:
    """Seeds count calls, and nobody asks torch's generator."""
    return lambda *args, **kwargs: right(*args, **{**kwargs, "draws": False})


def _one_for_equal(right: Any) -> Any:
    """Gradients with equal numbers are views of one."""

    def wrong(*args: Any) -> Any:
        run = right(*args)

        def run_wrong(*arguments: Any) -> list[Any]:
            gradients = run(*arguments)
            return [gradients[0].view_as(x) if _is_equal(x, gradients[0]) else x for x in gradients]

        return run_wrong

    return wrong


def _is_equal(x: object, first: object) -> bool:
    are_tensors = isinstance(x, torch.Tensor) and isinstance(first, torch.Tensor)
    return are_tensors and x.shape == first.shape and torch.equal(x, first)


def _by_rows(right: Any) -> Any:
    """Gradients are row by row, in whatever order eager's lie."""

    def wrong(*args: Any) -> Any:
        run = right(*args)

        def run_wrong(*arguments: Any) -> list[Any]:
            return [x if x is None else x.contiguous() for x in run(*arguments)]

        return run_wrong

    return wrong


SCENE_MUTANTS = (
    SceneMutant("complex: imaginary parts dropped", "irc.runtime.library", "run",
                _without_imaginary),
    SceneMutant("complex: numbers cut to whole ones", "irc.dialects.builder", "number_in", _whole),
    SceneMutant("alias: a view of a result is a copy", "irc.frontends.torch.result_memory",
                "owner", _apart, "way-dynamo"),
    SceneMutant("hooks: a module's own run twice", "irc.calls.dispatcher", "capture",
                _always_hooks, "way-compile"),
    SceneMutant("strides: results lie row by row", "irc.frontends.torch.result_memory", "_turned",
                _unturned),
    SceneMutant("seeds: manual_seed is not asked", "irc.runtime.torch_driver:TorchDriver",
                "__init__",
                _counts_calls, "way-compile"),
    SceneMutant("gradients: equal ones share memory", "irc.torch_backend.aot", "resolving",
                _one_for_equal),
    SceneMutant("gradients: all lie row by row", "irc.torch_backend.aot", "resolving", _by_rows,
                "way-train"),
)  # fmt: skip


def _scene(
    results: str, *lines: str, hook: str = "", random: str = "", **arguments: Argument
) -> Scene:
    named = tuple((line.split(" = ")[0], line) for line in lines)
    return Scene(
        1, tuple(arguments.values()), named, tuple(results.split()), frozenset(random.split()), hook
    )


def _argument(name: str, *shape: int, dtype: str = "f32", layout: str = "plain") -> Argument:
    wants = torch.empty(0, dtype=KINDS[dtype]).is_floating_point()
    return Argument(name, shape, dtype, layout, wants=wants)


DIRECTED: Mapping[str, Scene] = {
    "complex product": _scene(
        "v0", "v0 = torch.sin(x0) * (1 + 2j)", x0=_argument("x0", 5, 3, dtype="c64")
    ),
    "complex and a number": _scene("v0", "v0 = x0 * 0.5", x0=_argument("x0", 5, dtype="c64")),
    "views of one": _scene(
        "v0 v1", "v0 = x0 * 2", "v1 = v0.transpose(0, 1)", x0=_argument("x0", 5, 3)
    ),
    "hooked": _scene("v0", "v0 = torch.tanh(x0)", hook="forward", x0=_argument("x0", 5, 3)),
    "transposed": _scene(
        "v0", "v0 = torch.tanh(x0)", x0=_argument("x0", 5, 3, layout="transposed")
    ),
    "equal gradients": _scene(
        "v0", "v0 = x0 * 2 + x1 * 2", x0=_argument("x0", 5, 3), x1=_argument("x1", 5, 3)
    ),
    "one channel": _scene(
        "v0",
        "v0 = torch.tanh(F.conv2d(x0, x1))",
        "v0 = F.conv2d(v0, x2, padding=1)",
        x0=_argument("x0", 2, 3, 5, 7, layout="channels_last"),
        x1=_argument("x1", 1, 3, 1, 1),
        x2=_argument("x2", 4, 1, 3, 3),
    ),
    "random": _scene("v0", "v0 = torch.rand_like(x0)", random="v0", x0=_argument("x0", 5, 7)),
}
"""A scene for each fault; seeds come after."""


def scenes() -> Iterator[tuple[str, Scene]]:
    """Yield what faults are tried on."""
    yield from DIRECTED.items()
    for seed in range(SEEDS):
        yield f"seed {seed}", scene(seed)
