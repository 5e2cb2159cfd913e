"""Slice ``models``: whole programs by ``irc.compile`` with each backend on the GPU.

Checked against eager in float64 on the CPU, and raced against eager and torch.compile, with its
default options and with max-autotune.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
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
        errors: by backend, relative to the largest output, over what is allowed: up to 1 is right.
        times: seconds of a call by contender; irc's are named after the backend.
        why: of contenders that cannot be run.
    """

    name: str
    errors: dict[str, float] = field(default_factory=dict[str, float])
    times: dict[str, float] = field(default_factory=dict[str, float])
    why: dict[str, str] = field(default_factory=dict[str, str])

    def __str__(self) -> str:
        shown = [f"{name} error {error:.2f}" for name, error in self.errors.items()]
        shown += [f"{name} {1e3 * t:.3f} ms" for name, t in self.times.items()]
        shown += [f"{name}: {why}" for name, why in self.why.items()]
        return f"{self.name:<40}{'  '.join(shown)}"


def names() -> list[str]:
    """Return the models that can be built here, in float32 and bfloat16."""
    known = list(models.MODELS) if find_spec("transformers") else list(PLAIN)
    # Its weights come with a package; its shape is BERT's.
    return [f"{name}{suffix}" for name in known if name != "minilm" for suffix in ("", ":bf16")]


def race(name: str, backends: Sequence[str], *, tuned: bool) -> Whole:
    """Check and time one model.

    Args:
        name: of the model.
        backends: irc's.
        tuned: also race against max-autotune, which takes minutes to compile.
    """
    module, inputs = models.build(name)
    with torch.no_grad():
        wanted = _first(copy.deepcopy(module).double()(*_wide(inputs)))
    module, inputs = module.cuda(), tuple(x.cuda() for x in inputs)
    contenders: dict[str, Callable[..., Any]] = {
        backend: irc.compile(copy.deepcopy(module), backend=backend) for backend in backends
    }
    contenders["eager"] = module
    contenders["torch.compile"] = torch.compile(copy.deepcopy(module))
    if tuned:
        contenders["max-autotune"] = torch.compile(copy.deepcopy(module), mode="max-autotune")
    allowed = TOLERANCE["bf16" if name.endswith(":bf16") else "f32"]
    row = Whole(name)
    for label, call in contenders.items():
        try:
            with torch.no_grad():
                output = _first(call(*inputs)).double().cpu()
                if label in backends:
                    error = float((output - wanted).abs().max() / wanted.abs().max())
                    row.errors[label] = error / allowed
                row.times[label] = seconds(lambda call=call: call(*inputs))
        except Exception as failure:
            line = (str(failure).splitlines() or [""])[0][:160]
            row.why[label] = f"{type(failure).__name__}: {line}"
            if label in backends:
                row.errors[label] = float("inf")
    torch.compiler.reset()
    return row


def _wide(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(x.double() if x.is_floating_point() else x for x in inputs)


def _first(output: Any) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output
