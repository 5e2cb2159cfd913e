"""Steps refuse what they would leave out of the backward pass: hooks, and complex parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import irc
import irc.calls.step as calls_of_steps
from irc.errors import IrcError
from tests.calls.trained import trains_as_eager


class Net(nn.Module):
    """Two layers, and what is done between them."""

    def __init__(self, between: Callable[[Tensor], Tensor] = torch.tanh) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.between = nn.Linear(4, 4), nn.Linear(4, 2), between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x))).square().mean()


def refused(model: nn.Module, saying: str, *batch: Any) -> None:
    step = irc.compile_step(model, optimizer="sgd")
    with pytest.raises(IrcError, match=saying) as caught:
        step(*(batch or (torch.randn(5, 4),)), lr=0.1)
    assert caught.value.code == "not-differentiable"


def doubled(gradient: Tensor) -> Tensor:
    return gradient * 2


def test_hooks_on_gradients_are_refused() -> None:
    of_parameter, after, of_layer, of_all = Net(), Net(), Net(), Net()
    of_parameter.first.weight.register_hook(doubled)
    refused(of_parameter, r"the gradient of parameter 'first.weight' has a hook")
    after.last.bias.register_post_accumulate_grad_hook(lambda _: None)
    refused(after, r"the gradient of parameter 'last.bias' has a hook")
    of_layer.first.register_full_backward_hook(lambda *_: None)
    refused(of_layer, r"the backward pass of 'first' has a hook")
    handle = nn.modules.module.register_module_full_backward_hook(lambda *_: None)
    try:
        refused(of_all, r"the backward pass of all modules has a hook")
    finally:
        handle.remove()


def test_hooks_of_layers_that_come_after_the_first_step_are_refused() -> None:
    model, x = Net(), torch.randn(5, 4)
    step = irc.compile_step(model, optimizer="sgd")
    step(x, lr=0.1)
    layer = model.first.register_full_backward_pre_hook(lambda *_: None)
    with pytest.raises(IrcError, match=r"the backward pass of 'first' has a hook"):
        step(x, lr=0.1)
    layer.remove()
    step(x, lr=0.1)
    of_all = nn.modules.module.register_module_full_backward_hook(lambda *_: None)
    try:
        with pytest.raises(IrcError, match=r"the backward pass of all modules has a hook"):
            step(x, lr=0.1)
    finally:
        of_all.remove()


def test_a_hook_on_what_is_computed_is_refused() -> None:
    def between(h: Tensor) -> Tensor:
        h.register_hook(doubled)
        return h

    refused(Net(between), r"a gradient has a hook")


def test_a_hook_that_comes_later_is_refused() -> None:
    model, x = Net(), torch.randn(5, 4)
    step = irc.compile_step(model, optimizer="sgd")
    step(x, lr=0.1)
    handle = model.first.weight.register_hook(doubled)
    with pytest.raises(IrcError, match=r"'first.weight' has a hook"):
        step(x, lr=0.1)
    handle.remove()
    step(x, lr=0.1)


def test_layers_are_gone_through_for_hooks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Net(), torch.randn(5, 4)
    step, looks = irc.compile_step(model, optimizer="sgd"), []
    step(x, lr=0.1), step(x, lr=0.1)
    monkeypatch.setattr(calls_of_steps, "check_backward_hooks", looks.append)
    step(x, lr=0.1), step(x, lr=0.1)
    assert not looks
    torch.ones(1, requires_grad=True).register_hook(doubled)
    step(x, lr=0.1), step(x, lr=0.1)
    assert looks == [model]


def test_a_complex_parameter_is_refused_unless_it_is_frozen() -> None:
    class Turned(Net):
        def __init__(self, is_trained: bool) -> None:
            super().__init__(lambda h: (h * self.turn).abs())
            self.turn = nn.Parameter(torch.randn(4, dtype=torch.complex64), is_trained)

    refused(Turned(True), r"parameter 'turn' is complex")
    trains_as_eager(lambda: Turned(False), (5, 4))


def test_rows_that_are_looked_up_often_are_trained_less() -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)

        class Rows(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.rows = nn.Embedding(4, 3, padding_idx=0, scale_grad_by_freq=True)

            def forward(self, x: Tensor) -> Tensor:
                return self.rows((x.abs() * 1.5).long().clamp(0, 3)).square().mean()

        return Rows()

    trains_as_eager(build, (6, 4))


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("shape", [(5, 2), (5, 1), (5,)])
@pytest.mark.filterwarnings("ignore::irc.frontends.torch.tensor_checks.CheckLeftOutWarning")
def test_the_gaussian_loss_is_trained(shape: tuple[int, ...], full: bool) -> None:
    class Spread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(4, 2), nn.Parameter(torch.randn(shape).abs() * 0.3)
            self.loss = nn.GaussianNLLLoss(full=full, eps=0.1)

        def forward(self, x: Tensor) -> Tensor:
            return self.loss(self.first(x), x[:, :2], self.last.square())

    trains_as_eager(Spread, (5, 4))
