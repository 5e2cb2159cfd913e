"""Weights that are computed from others at each call: torch.nn.utils, old forms and new."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import utils
from torch.nn.utils import parametrizations, parametrize

import irc


class Symmetric(nn.Module):
    """Mirrors the upper triangle."""

    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).mT


class Scaled(nn.Module):
    """Has a parameter of its own, and a right inverse."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale

    def right_inverse(self, x: Tensor) -> Tensor:
        return x / self.scale


def _linear() -> nn.Linear:
    return nn.Linear(5, 5)


def _twice(layer: nn.Module) -> nn.Module:
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return parametrize.register_parametrization(layer, "weight", Scaled())


def _of_image() -> nn.Module:
    layer = parametrizations.spectral_norm(nn.Conv1d(1, 2, 3))
    return nn.Sequential(nn.Unflatten(1, (1, 5)), layer, nn.Flatten())


MAKE: dict[str, Callable[[], nn.Module]] = {
    "weight_norm": lambda: parametrizations.weight_norm(_linear()),
    "weight_norm of all": lambda: parametrizations.weight_norm(_linear(), dim=None),
    "weight_norm by a hook": lambda: utils.weight_norm(_linear()),
    "weight_norm of a layer by a hook": lambda: nn.Sequential(utils.weight_norm(_linear())),
    "spectral_norm": lambda: parametrizations.spectral_norm(_linear()),
    "spectral_norm of an image": _of_image,
    "spectral_norm by a hook": lambda: utils.spectral_norm(_linear()),
    "spectral_norm of a layer by a hook": lambda: nn.Sequential(utils.spectral_norm(_linear())),
    "orthogonal": lambda: parametrizations.orthogonal(_linear()),
    "cayley": lambda: parametrizations.orthogonal(_linear(), orthogonal_map="cayley"),
    "two of the user's": lambda: _twice(_linear()),
}


def _dynamo(module: nn.Module) -> Any:
    return torch.compile(module, backend="irc")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("way", [irc.compile, _dynamo], ids=["irc.compile", "torch.compile"])
def test_weights_are_computed_as_in_eager(way: Callable[[Any], Any], kind: str) -> None:
    """In train and eval mode, with gradients and without, between writes to what they come from."""
    torch._dynamo.reset()
    modules = []
    for _ in range(2):
        torch.manual_seed(0)
        modules.append(MAKE[kind]())
    module, eager = modules
    fast = way(module)
    for step, (train, grad) in enumerate([(True, True), (True, False), (True, False), (False, True),
                                          (False, False), (False, False)]):  # fmt: skip
        module.train(train)
        eager.train(train)
        x = torch.linspace(-1, 1 + step, 15).reshape(3, 5)
        with torch.set_grad_enabled(grad):
            got, wanted = fast(x), eager(x)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
        if grad:
            got.square().sum().backward()
            wanted.square().sum().backward()
        for one, other in zip(module.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-3)
            with torch.no_grad():
                one.mul_(1.25)
                other.mul_(1.25)
        torch.testing.assert_close(
            dict(module.state_dict()), dict(eager.state_dict()), rtol=1e-3, atol=1e-3
        )
