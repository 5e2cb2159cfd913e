"""Slice ``models``: whole programs by ``irc.compile(backend="triton")`` on the GPU.

Checked against eager in float64 on the CPU, and raced against eager and torch.compile, with its
default options and with max-autotune.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch

import irc
from tests.benchmarks import models
from tests.gpu.launching import seconds

PLAIN = ("mlp", "gpt")
"""Models that need nothing but torch; the others are those of transformers."""
TOLERANCE = {"f32": 1e-4, "bf16": 8e-2}


@dataclass
class Whole:
    """One model on the device.

    Attributes:
        name: of the model and dtype.
        error: relative to the largest output, over what is allowed: at most 1 is right.
        times: seconds of a call by contender; irc's is ``irc``.
        why: why there is nothing to compare.
    """

    name: str
    error: float = float("inf")
    times: dict[str, float] = field(default_factory=dict)
    why: str = ""

    def __str__(self) -> str:
        if self.why:
            return f"{self.name:<40}{self.why}"
        shown = "  ".join(f"{name} {1e3 * t:.3f} ms" for name, t in self.times.items())
        return f"{self.name:<40}error {self.error:.2f} of what is allowed  {shown}"


def names() -> list[str]:
    """Return the models that can be built here, in float32 and bfloat16."""
    known = list(models.MODELS) if find_spec("transformers") else list(PLAIN)
    # Its weights come with a package; its shape is BERT's.
    return [f"{name}{suffix}" for name in known if name != "minilm" for suffix in ("", ":bf16")]


def run(chosen: list[str], *, tuned: bool) -> Iterator[Whole]:
    """Yield a row for each model.

    Args:
        chosen: names of models.
        tuned: also race against max-autotune, which takes minutes to compile.
    """
    for name in chosen:
        try:
            yield _race(name, tuned=tuned)
        except Exception as failure:
            line = str(failure).splitlines()[0][:160]
            yield Whole(name, why=f"{type(failure).__name__}: {line}")


def _race(name: str, *, tuned: bool) -> Whole:
    module, inputs = models.build(name)
    with torch.no_grad():
        wanted = _first(copy.deepcopy(module).double()(*_wide(inputs)))
    module, inputs = module.cuda(), tuple(x.cuda() for x in inputs)
    contenders: dict[str, Callable[..., Any]] = {
        "irc": irc.compile(copy.deepcopy(module), backend="triton"),
        "eager": module,
        "torch.compile": torch.compile(copy.deepcopy(module)),
    }
    if tuned:
        contenders["max-autotune"] = torch.compile(copy.deepcopy(module), mode="max-autotune")
    row = Whole(name)
    with torch.no_grad():
        found = _first(contenders["irc"](*inputs)).double().cpu()
        allowed = TOLERANCE["bf16" if name.endswith(":bf16") else "f32"]
        row.error = float((found - wanted).abs().max() / wanted.abs().max()) / allowed
        for label, call in contenders.items():
            row.times[label] = seconds(lambda call=call: call(*inputs))
    torch.compiler.reset()
    return row


def _wide(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(x.double() if x.is_floating_point() else x for x in inputs)


def _first(output: Any) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output
