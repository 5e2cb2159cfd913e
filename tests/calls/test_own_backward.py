"""Functions with a backward pass of their own: steps take them where it is the derivative."""

# pyright: basic
from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import irc
from irc.errors import IrcError


class Reversed(torch.autograd.Function):
    """Gradients are turned about."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return -grads[0]


class Spike(torch.autograd.Function):
    """A step, with a surrogate's gradient."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return (x > 0).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] / (1 + 10 * ctx.saved_tensors[0].abs()) ** 2


class Swish(torch.autograd.Function):
    """What saves memory and nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * torch.sigmoid(scale * x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        share = torch.sigmoid(ctx.scale * x)
        return grads[0] * share * (1 + ctx.scale * x * (1 - share)), None


class Model(nn.Module):
    """Two layers around a function."""

    def __init__(self, function: Any, *more: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 1)
        self.function, self.more = function, more

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function.apply(self.first(x), *self.more)).square().mean()


def test_a_step_takes_what_is_the_derivative() -> None:
    mine, theirs, x = Model(Swish, 1.5), Model(Swish, 1.5), torch.randn(8, 4)
    step = irc.compile_step(mine, optimizer="sgd")
    optimizer = torch.optim.SGD(theirs.parameters(), 0.1)
    for _ in range(2):
        loss = theirs(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(step(x, lr=0.1), loss.detach())
    torch.testing.assert_close(dict(mine.state_dict()), dict(theirs.state_dict()))


@pytest.mark.parametrize("function", [Reversed, Spike])
def test_a_step_refuses_what_is_none(function: Any) -> None:
    """It trained by the derivative of the forward pass, without a word."""
    step = irc.compile_step(Model(function), optimizer="sgd")
    with pytest.raises(IrcError, match=f"'{function.__name__}' has a backward pass") as caught:
        step(torch.randn(8, 4), lr=0.1)
    assert caught.value.code == "not-differentiable"


@pytest.mark.parametrize("function", [Reversed, Spike])
def test_a_loop_runs_it(function: Any) -> None:
    torch._dynamo.reset()
    mine, theirs, x = Model(function), Model(function), torch.randn(8, 4)
    irc.compile(mine)(x).backward()
    theirs(x).backward()
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert torch.autograd.Function.apply.__module__ == "torch.autograd.function"
