"""One rank of the table of values: answers commands in JSON, each a list on a line.

* ``eager MODEL DTYPE STEPS FILE`` saves what one process makes of a model;
* ``train MODEL PLAN WAY RANKS DTYPE FILE`` trains it on all ranks, and gives how far losses and the
  first gradients are from that.
"""

# pyright: basic
from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor, nn

from tests.benchmarks import pipeline_models, training_models
from tests.benchmarks.training_models import MODELS, SETTINGS, Placed, WithLoss, batch
from tests.benchmarks.training_plans import PLANS, Plan

Result = tuple[float, dict[str, Tensor]]


def _whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _model(name: str, dtype: str) -> nn.Module:
    return training_models.model(name, dtype)


def loop(name: str, plan: Plan, ranks: int, dtype: str, steps: int) -> Iterator[Result]:
    """Yield the losses of a training loop; with the first one the gradients, by name."""
    import irc

    net = irc.compile(WithLoss(_model(name, dtype)), **plan.options(MODELS[name], "loop", ranks))
    optimizer: torch.optim.Optimizer | None = None
    for number in range(steps):
        value = net(*batch(name, number, dtype))
        value.backward()
        gradients: dict[str, Tensor] = {}
        if not number:
            own = {n.removeprefix("net."): p.grad for n, p in net.named_parameters()}
            gradients = {n: _whole(g).clone() for n, g in own.items() if g is not None}
        optimizer = optimizer or _optimizer(net, plan)
        optimizer.step()
        optimizer.zero_grad()
        yield value.item(), gradients


def _optimizer(net: nn.Module, plan: Plan) -> torch.optim.Optimizer:
    if not plan.states_split:
        return torch.optim.AdamW(net.parameters(), **SETTINGS)
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, **SETTINGS)


def step(name: str, plan: Plan, ranks: int, dtype: str, steps: int) -> Iterator[Result]:
    """Yield the losses of ``irc.compile_step``, and the gradients that its states tell."""
    import irc

    net = _model(name, dtype)
    if plan.between:
        net = Placed(net.layers, plan.between)
    made = irc.compile_step(
        net,
        loss=pipeline_models.loss,
        optimizer={"kind": "adamw", **SETTINGS},
        **plan.options(MODELS[name], "step", ranks),
    )
    for number in range(steps):
        value = float(made(*batch(name, number, dtype)))
        gradients: dict[str, Tensor] = {}
        if not number:
            # The first moment was zero, and is (1 - beta1) times the gradient.
            states = made.state_dict()["optimizer"]["state"]
            share = 1 - SETTINGS["betas"][0]
            gradients = {n: own["exp_avg"] / share for n, own in states.items()}
        yield value, gradients


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
    """Train on all ranks; return how far that is from one process."""
    start = time.perf_counter()
    losses, gradients = torch.load(file, weights_only=True)
    trained = (loop if way == "loop" else step)(name, PLANS[plan], ranks, dtype, len(losses))
    gaps = {"losses": 0.0, "gradients": 0.0}
    for number, (value, own) in enumerate(trained):
        if not number:
            gaps["gradients"] = gradient_gap(own, gradients)
        gap = abs(value - losses[number]) / abs(losses[number])
        gaps["losses"] = max(gaps["losses"], gap)
    del trained
    gc.collect()
    return {**gaps, "took": time.perf_counter() - start}


def eager(name: str, dtype: str, steps: int, file: str) -> bool:
    """Save the losses and the first gradients of one process."""
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
