"""What a model asks of gradients, and how it turns them off, while a step is traced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import irc
from irc.errors import IrcError
from tests.calls.trained import trains_as_eager


class Net(nn.Module):
    """A layer, and what is done to its result."""

    def __init__(self, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.scale, self.then = nn.Linear(3, 3), nn.Parameter(torch.ones(3)), then

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        h = h * 3 if self.layer.weight.requires_grad else h
        return (self.then(h) * self.scale).square().mean()


def by_mode(h: Tensor) -> Tensor:
    return h * 2 if torch.is_grad_enabled() else h


def by_mode_inside(h: Tensor) -> Tensor:
    with torch.no_grad():
        factor = 2 if torch.is_grad_enabled() else 3
    with torch.set_grad_enabled(False):
        rest = h.mean()
    return h * factor + rest


TRAINED = [by_mode, by_mode_inside]


@pytest.mark.parametrize("then", TRAINED)
def test_a_model_sees_that_gradients_are_on(then: Callable[[Tensor], Tensor]) -> None:
    trains_as_eager(lambda: Net(then), (4, 3))


def by_its_flag(h: Tensor) -> Tensor:
    return h * 2 if h.requires_grad else h


def by_its_node(h: Tensor) -> Tensor:
    return h * 2 if h.grad_fn is not None else h


def by_its_place(h: Tensor) -> Tensor:
    return h if h.is_leaf else h * 2


def in_place(h: Tensor) -> Tensor:
    return h.detach_()


def as_function(h: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    try:
        rest = h.mean()
    finally:
        torch.set_grad_enabled(True)
    return h + rest


REFUSED = {
    by_its_flag: "the requires_grad of a tensor is read",
    by_its_node: "the grad_fn of a tensor is read",
    by_its_place: "the is_leaf of a tensor is read",
    in_place: "detached in place",
    as_function: "called as a function",
}


@pytest.mark.parametrize("then", REFUSED)
def test_what_a_trace_does_not_know_is_refused(then: Callable[[Tensor], Tensor]) -> None:
    step = irc.compile_step(Net(then), optimizer="sgd")
    with pytest.raises(IrcError, match=REFUSED[then]) as caught:
        step(torch.randn(4, 3), lr=0.1)
    assert caught.value.code == "capture-failed"
