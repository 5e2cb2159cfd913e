"""One rank of the table of values: answers commands in JSON, each a list on a line.

* ``eager MODEL DTYPE STEPS FILE`` saves what one process makes of a model;
* ``train MODEL PLAN WAY RANKS DTYPE FILE`` trains it on all ranks, and gives how far that is.
"""

# pyright: basic
from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor

from tests.benchmarks import pipeline_models, training_models
from tests.benchmarks.training_models import (
    MODELS,
    Placed,
    WithLoss,
    batch,
    model,
    settings,
    stored,
)
from tests.benchmarks.training_plans import PLANS, Plan


def _whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


class Loop:
    """A training loop around a compiled module.

    Args:
        name: of the model.
        plan: that it is compiled for.
        ranks: how many.
        dtype: of its weights; ``bfloat16`` of what autocast computes in.

    Attributes:
        gradients: those of the first step, whole, by the names of parameters.
    """

    def __init__(self, name: str, plan: Plan, ranks: int, dtype: str) -> None:
        import irc

        net = WithLoss(model(name, stored(dtype)))
        self._net = irc.compile(net, **plan.options(MODELS[name], "loop", ranks))
        self._name, self._plan, self._dtype = name, plan, dtype
        self._optimizer: torch.optim.Optimizer | None = None
        self.gradients: dict[str, Tensor] = {}

    def step(self, number: int) -> float:
        """Return the loss of the next step."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self._dtype == "bfloat16"):
            value = self._net(*batch(self._name, number, stored(self._dtype)))
        value.backward()
        if not number:
            own = {n.removeprefix("net."): p.grad for n, p in self._net.named_parameters()}
            self.gradients = {n: _whole(g).clone() for n, g in own.items() if g is not None}
        self._optimizer = self._optimizer or self._made()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return value.item()

    def held(self) -> dict[str, int]:
        """Return how many bytes of parameters this rank holds."""
        parts = (p.to_local() if hasattr(p, "to_local") else p for p in self._net.parameters())
        return {"parameters": sum(p.numel() * p.element_size() for p in parts)}

    def _made(self) -> torch.optim.Optimizer:
        numbers = settings(self._dtype)
        if not self._plan.states_split:
            return torch.optim.AdamW(self._net.parameters(), **numbers)
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(self._net.parameters(), torch.optim.AdamW, **numbers)


class Step:
    """What ``irc.compile_step`` makes of a model; arguments and attributes as of :class:`Loop`."""

    def __init__(self, name: str, plan: Plan, ranks: int, dtype: str) -> None:
        import irc

        net = model(name, stored(dtype))
        if plan.between:
            net = Placed(net.layers, plan.between)
        self._step = irc.compile_step(
            net,
            loss=pipeline_models.loss,
            optimizer={"kind": "adamw", **settings(dtype)},
            precision="bfloat16" if dtype == "bfloat16" else None,
            **plan.options(MODELS[name], "step", ranks),
        )
        self._name, self._dtype = name, dtype
        self.gradients: dict[str, Tensor] = {}

    def step(self, number: int) -> float:
        """Return the loss of the next step."""
        value = float(self._step(*batch(self._name, number, stored(self._dtype))))
        if not number:
            # The first moment was zero, and is (1 - beta1) times the gradient.
            states = self._step.state_dict()["optimizer"]["state"]
            share = 1 - settings(self._dtype)["betas"][0]
            self.gradients = {n: own["exp_avg"] / share for n, own in states.items()}
        return value

    def held(self) -> dict[str, int]:
        """Return how many bytes of parameters and states this rank holds."""
        held = self._step.memory_bytes()
        return {name: held[name] for name in ("parameters", "states")}


def gradient_gap(mine: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Return the norm of the largest error of a gradient, relative to that gradient's norm.

    One that is zero but for rounding counts by the largest of all.
    """
    if mine.keys() != wanted.keys():
        raise AssertionError(f"gradients of other parameters: {mine.keys() ^ wanted.keys()}")
    norms = {n: float(g.norm()) for n, g in wanted.items()}
    least = 1e-3 * max(norms.values())
    return max(float((mine[n] - g).norm()) / max(norms[n], least) for n, g in wanted.items())


def train(name: str, plan: str, way: str, ranks: int, dtype: str, file: str) -> dict[str, float]:
    """Train on all ranks; return how far that is from one process, and what this rank holds.

    Of float32 and float64 ``losses`` is the largest error, relative to the loss, and ``gradients``
    the largest of the first step. Of bfloat16 ``losses`` is the root of the mean square of what
    float32 would give less, as a share of eager bfloat16's.
    """
    wanted = torch.load(file, weights_only=True)
    trained = (Loop if way == "loop" else Step)(name, PLANS[plan], ranks, dtype)
    steps = range(len(wanted["losses"]))
    losses = torch.tensor([trained.step(n) for n in steps], dtype=torch.float64)
    gaps: dict[str, float] = {}
    errors = losses - wanted["losses"]
    if dtype == "bfloat16":
        gaps["losses"] = float(errors.square().mean().sqrt()) / wanted["spread"]
    else:
        gaps["losses"] = float((errors / wanted["losses"]).abs().max())
        gaps["gradients"] = gradient_gap(trained.gradients, wanted["gradients"])
    gaps |= {k: n / wanted["parameter bytes"] for k, n in trained.held().items()}
    del trained
    gc.collect()
    return gaps


def eager(name: str, dtype: str, steps: int, file: str) -> bool:
    """Save what one process makes of a model."""
    torch.save(training_models.eager(name, dtype, steps), file)
    return True


def main() -> None:
    """Answer commands until they end."""
    torch.set_num_threads(1)
    answers, rank = int(os.environ["ANSWERS"]), int(os.environ["RANK"])

    def say(value: Any) -> None:
        os.write(answers, (json.dumps([rank, value]) + "\n").encode())

    say("ready")
    for line in sys.stdin:
        command, *words = json.loads(line)
        try:
            say({"train": train, "eager": eager}[command](*words))
        except Exception as error:  # the parent says which row it is
            say({"error": f"{type(error).__name__}: {error}"[:2000]})


if __name__ == "__main__":
    main()
