"""Steps of an optimizer inside what is compiled: each is taken once, and is eager's."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import irc

pytestmark = pytest.mark.filterwarnings("ignore")

WAYS: dict[str, Callable[..., Callable[..., Any]]] = {
    "irc.compile": irc.compile,
    "torch.compile": partial(torch.compile, backend="irc"),
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.01),
    "momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9, nesterov=True),
    "adamw": partial(torch.optim.AdamW, lr=0.01, foreach=True),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01),
}
X = torch.linspace(-1, 2, 6).sin().reshape(2, 3)


def trained(
    make: Callable[..., torch.optim.Optimizer], compiled: Callable[..., Any], *, whole: bool
) -> tuple[list[Tensor], dict[str, Any]]:
    """Return the losses and parameters of a few steps; compile them whole, or the update alone."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = make(model.parameters())

    def update() -> None:
        optimizer.step()

    change = update if whole else compiled(update)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).pow(2).sum()
        loss.backward()
        change()
        return loss.detach()

    run = compiled(step) if whole else step
    losses = [run(X + i) for i in range(4)]
    return losses, dict(model.state_dict())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("whole", [True, False], ids=["the whole step", "the update alone"])
def test_steps_are_eagers(name: str, way: str, whole: bool) -> None:
    make = OPTIMIZERS[name]
    wanted = trained(make, lambda step: step, whole=whole)
    torch.testing.assert_close(trained(make, WAYS[way], whole=whole), wanted)
