"""What a model asks of gradients, and how it turns them off, while a step is traced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch import is_grad_enabled as is_on

import irc
from irc.errors import IrcError
from tests.calls.trained import trains_as_eager


class Net(nn.Module):
    """A layer, and what is done to its result."""

    def __init__(self, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.scale, self.then = nn.Linear(3, 3), nn.Parameter(torch.ones(3)), then
        self.register_buffer("seen", torch.ones(3))
        self.mask = torch.ones(3)

    def forward(self, x: Tensor) -> Tensor:
        x.detach_()
        for tensor in (x, self.get_buffer("seen"), self.mask):
            if tensor.requires_grad or not tensor.is_leaf or tensor.grad_fn is not None:
                x = x * 2
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


def by_name(h: Tensor) -> Tensor:
    with torch.no_grad():
        factor = 2 if is_on() else 3
    return h * factor * (2 if is_on() else 3)


def turned_off_and_on(h: Tensor) -> Tensor:
    torch.set_grad_enabled(True)
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    try:
        rest, factor = h.mean(), 2 if torch.is_grad_enabled() else 3
    finally:
        torch.set_grad_enabled(before)
    return h * factor + rest


def turned_inside_of_blocks(h: Tensor) -> Tensor:
    with torch.no_grad():
        rest = h.mean()
        torch.set_grad_enabled(True)
        more = h.sin()
        torch.set_grad_enabled(False)
        rest = rest + h.cos().mean()
    with torch.enable_grad():
        torch.set_grad_enabled(False)
        rest = rest * h.mean()
    later = torch.set_grad_enabled(False)
    with later:
        rest = rest + h.max()
        with torch.set_grad_enabled(True):
            more = more + h.sigmoid()
        rest = rest + h.min()

    @torch.set_grad_enabled(False)
    def half(x: Tensor) -> Tensor:
        return x / 2

    return h.tanh() * more + half(h) + rest.tanh()


TRAINED = [by_mode, by_mode_inside, by_name, turned_off_and_on, turned_inside_of_blocks]


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


def left_off(h: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    return h + 1


def on_in_another_mode(h: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    rest = h.mean()
    with torch.device("cpu"):
        torch.set_grad_enabled(True)
        return h + rest


def written_to(h: Tensor) -> Tensor:
    x = torch.zeros(3)
    x += h.mean()
    return h * 2 if x.requires_grad else h


REFUSED = {
    by_its_flag: "the requires_grad of a tensor is read",
    by_its_node: "the grad_fn of a tensor is read",
    by_its_place: "the is_leaf of a tensor is read",
    in_place: "detached in place",
    left_off: "leaves gradients off",
    on_in_another_mode: "inside of another mode",
    written_to: "the requires_grad of a tensor is read",
}


@pytest.mark.parametrize("then", REFUSED)
def test_what_a_trace_does_not_know_is_refused(then: Callable[[Tensor], Tensor]) -> None:
    step = irc.compile_step(Net(then), optimizer="sgd")
    with pytest.raises(IrcError, match=REFUSED[then]) as caught:
        step(torch.randn(4, 3), lr=0.1)
    assert caught.value.code == "capture-failed"
    assert not torch._C._len_torch_function_stack()
