"""Gradients of gradients of what is compiled are eager's, or refused by name."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import irc
from irc.errors import IrcError


def derivatives(function: Callable[..., Any], *arguments: Tensor) -> list[Tensor]:
    """Return those of first, second and third order."""
    own = [x.detach().clone().requires_grad_() for x in arguments]
    result = function(*own)
    first = torch.autograd.grad(result.sum(), own, create_graph=True)
    penalty = sum((g * g).sum() for g in first)
    second = torch.autograd.grad(penalty, own, create_graph=True)
    third = torch.autograd.grad(sum(g.sin().sum() for g in second), own)
    return [*first, *second, *third]


def test_of_a_function() -> None:
    torch.manual_seed(0)

    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x @ w).sum(1)

    arguments = torch.randn(3, 4).double(), torch.randn(4, 5).double()
    for own, eager in zip(
        derivatives(irc.compile(function), *arguments),
        derivatives(function, *arguments),
        strict=True,
    ):
        torch.testing.assert_close(own, eager, rtol=1e-12, atol=1e-12)


def test_a_penalty_on_the_gradient_of_a_module() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1)).double()
    x = torch.randn(6, 4).double()
    gradients: list[list[Tensor | None]] = []
    for module in (net, irc.compile(net)):
        net.zero_grad()
        own = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(module(own).sum(), own, create_graph=True)
        (module(own).sum() + ((slope.norm(dim=1) - 1) ** 2).mean()).backward()
        gradients.append([p.grad for p in net.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-12)


def test_what_would_not_be_the_same_again() -> None:
    compiled = irc.compile(lambda x: F.dropout(x, 0.5) ** 3)
    with pytest.raises(IrcError, match="draws random numbers") as caught:
        derivatives(compiled, torch.randn(3, 4))
    assert caught.value.code == "not-differentiable"


def test_memory_that_was_written_to_since() -> None:
    x = torch.randn(4, requires_grad=True)
    scale = torch.ones(4)
    result = irc.compile(lambda x, s: (x.sin() * s).sum())(x, scale)
    scale.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(result, x, create_graph=True)


def test_arguments_that_were_written_to_since_and_are_not_saved() -> None:
    def slope(function: Callable[..., Tensor]) -> Tensor:
        x, shift = torch.ones(4, requires_grad=True), torch.zeros(4)
        result = function(x, shift)
        shift.add_(1)  # eager keeps exp(x + shift) alone
        return torch.autograd.grad(result, x, create_graph=True)[0]

    def function(x: Tensor, shift: Tensor) -> Tensor:
        return ((x + shift).exp() * 2).sum()

    assert slope(function)[0].item() == pytest.approx(2 * torch.e)
    with pytest.raises(IrcError, match="modified by an inplace operation since the call"):
        slope(irc.compile(function))


def test_arguments_are_let_go_with_the_graph() -> None:
    compiled = irc.compile(nn.Linear(4, 4))
    x = torch.randn(2, 4)
    held = weakref.ref(x)
    loss = compiled(x).sum()
    loss.backward()
    del x
    gc.collect()
    assert held() is None
    assert loss.grad_fn is not None


@pytest.mark.parametrize("through", ["irc.compile", "torch.compile"])
def test_a_graph_that_is_kept_is_gone_back_through_again(through: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    compiled = (
        irc.compile(model) if through == "irc.compile" else torch.compile(model, backend="irc")
    )
    x = torch.randn(3, 4, requires_grad=True)

    def gradients(call: Callable[[Tensor], Tensor]) -> list[Tensor]:
        leaves = [x, *model.parameters()]
        call(x).sum().backward()  # a pass whose graph is let go comes first
        for leaf in leaves:
            leaf.grad = None
        y = call(x)
        y[0].sum().backward(retain_graph=True)
        first = torch.autograd.grad(y[1, 0], leaves, retain_graph=True)
        y[2].sum().backward()
        return [*first, *[leaf.grad.clone() for leaf in leaves if leaf.grad is not None]]

    torch.testing.assert_close(gradients(compiled), gradients(model))


def drawn(x: Tensor, w: Tensor) -> Tensor:
    return F.dropout(torch.tanh(x @ w), 0.5).sum(1)


def written(x: Tensor, w: Tensor) -> Tensor:
    y = F.batch_norm(x @ w, MEAN, VARIANCE, training=True)
    return torch.tanh(y).sum(1)


MEAN, VARIANCE = torch.zeros(5), torch.ones(5)


def shared(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.tanh(x @ w)
    return y, y[0]


@pytest.mark.parametrize("dynamic", [None, True])
def test_other_sizes_have_gradients_of_gradients(dynamic: bool | None) -> None:
    """A penalty on gradients takes the last, smaller batch as well."""
    torch._dynamo.reset()
    torch.manual_seed(0)

    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh((x @ w).mul_(2)).sum(1)

    fast = irc.compile(function, dynamic=dynamic)
    w = torch.randn(4, 5).double()
    for rows in (3, 6, 2):
        x = torch.randn(rows, 4).double()
        for own, eager in zip(derivatives(fast, x, w), derivatives(function, x, w), strict=True):
            torch.testing.assert_close(own, eager, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("function", [drawn, written, shared])
def test_other_sizes_of_what_would_not_be_the_same_again(function: Any) -> None:
    torch._dynamo.reset()
    fast = irc.compile(function, dynamic=True)

    def first(*arguments: Tensor) -> Tensor:
        result = fast(*arguments)
        return result[0] if isinstance(result, tuple) else result

    for rows in (3, 6):
        with pytest.raises(IrcError, match="differentiated"):
            derivatives(first, torch.randn(rows, 4), torch.randn(4, 5))


class _Doubled(torch.autograd.Function):
    """A user's own function, whose backward pass is not the derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 5


@pytest.mark.parametrize("through", [irc.compile, lambda f: torch.compile(f, backend="irc")])
@pytest.mark.parametrize("first", ["irc", "aot_eager"])
def test_what_another_graph_made_keeps_its_own_node(
    through: Callable[..., Any], first: str
) -> None:
    def function(y: Tensor) -> tuple[Tensor, Tensor]:
        return y.to(torch.float32), torch.tanh(y)

    x = torch.tensor([0.5, -1.0], requires_grad=True)
    produced, plain = torch.compile(torch.sin, backend=first)(x), torch.sin(x)
    own, eager = (
        torch.autograd.grad(sum((r * r).sum() for r in results), y, create_graph=True)[0]
        for results, y in ((through(function)(produced), produced), (function(plain), plain))
    )
    torch.testing.assert_close(own, eager)
    # The second function gives back its argument: the derivative of its gradients is refused.
    outputs = through(function)(torch.compile(torch.sin, backend=first)(x))

    def second() -> None:
        (gradient,) = torch.autograd.grad(sum((r * r).sum() for r in outputs), x, create_graph=True)
        torch.autograd.grad(gradient.sum(), x)

    with pytest.raises((IrcError, RuntimeError), match=r"differentiated|double backward"):
        second()


@pytest.mark.parametrize("through", [irc.compile, lambda f: torch.compile(f, backend="irc")])
def test_an_argument_that_comes_back_keeps_its_own_node(through: Callable[..., Any]) -> None:
    backward = _Doubled.backward

    def function(y: Tensor) -> tuple[Tensor, Tensor]:
        return y.to(torch.float32), torch.tanh(y)

    x = torch.tensor([0.5, -1.0], requires_grad=True)
    results = through(function)(_Doubled.apply(x))
    assert _Doubled.backward is backward
    own, eager = (
        torch.autograd.grad(sum(r.sum() for r in each), x, create_graph=True)[0]
        for each in (results, function(_Doubled.apply(x)))
    )
    torch.testing.assert_close(own, eager)


@pytest.mark.parametrize("through", [irc.compile, lambda f: torch.compile(f, backend="irc")])
def test_a_module_with_a_backward_hook_may_give_its_argument(through: Callable[..., Any]) -> None:
    class Cast(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor]:
            return (x.to(torch.float32),)

    module, calls = Cast(), list[str]()
    module.register_full_backward_hook(lambda *_: calls.append("ran"))
    x = torch.tensor(2.0, requires_grad=True)
    (result,) = through(module)(x)
    (result * 3).backward()
    assert x.grad is not None and x.grad.item() == 3.0 and calls == ["ran"]
