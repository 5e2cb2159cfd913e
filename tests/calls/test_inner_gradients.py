"""Steps of modules that take gradients, or transform functions, in what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import functional
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vmap

import irc
from irc.errors import IrcError
from tests.calls.trained import trains_as_eager

linear = nn.functional.linear


class Net(nn.Module):
    """Two layers, and a loss of them."""

    def __init__(self, loss: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.loss = nn.Linear(4, 3), nn.Linear(3, 2), loss
        self.register_buffer("seen", torch.zeros(()))

    def net(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).tanh())

    def forward(self, x: Tensor) -> Tensor:
        self.get_buffer("seen").add_(x.mean())
        return self.loss(self, x)


def of(p: dict[str, Tensor], x: Tensor) -> Tensor:
    hidden = linear(x, p["a.weight"], p["a.bias"]).tanh()
    return linear(hidden, p["b.weight"], p["b.bias"]).square().mean()


def inner_step(m: Net, x: Tensor) -> Tensor:
    p = dict(m.named_parameters())
    slopes = grad(of)(p, x[:2])
    return of({name: value - 0.1 * slopes[name] for name, value in p.items()}, x[2:])


def inner_step_by_autograd(m: Net, x: Tensor) -> Tensor:
    p = dict(m.named_parameters())
    slopes = torch.autograd.grad(of(p, x[:2]), list(p.values()), create_graph=True)
    return of({k: v - 0.1 * g for (k, v), g in zip(p.items(), slopes, strict=True)}, x[2:])


def first_order(m: Net, x: Tensor) -> Tensor:
    p = dict(m.named_parameters())
    slopes = torch.autograd.grad(of(p, x[:2]), list(p.values()), retain_graph=True)
    return of({k: v - 0.1 * g for (k, v), g in zip(p.items(), slopes, strict=True)}, x[2:])


def penalty(m: Net, x: Tensor) -> Tensor:
    y = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(m.net(y).sum(), y, create_graph=True)
    return m.net(x).square().mean() + (slope.norm(dim=1) - 1).square().mean()


def detached(m: Net, x: Tensor) -> Tensor:
    slopes: Any = vmap(grad(lambda row: m.net(row).square().sum()))(x)
    y = m.net(x)
    with torch.no_grad():
        scale = y.abs().mean()
    return (slopes.detach().mean() * y + scale * y + y.data).square().mean()


def through_a_call(m: Net, x: Tensor) -> Tensor:
    p = {name: value * 1.1 for name, value in m.b.named_parameters()}
    return vmap(lambda row: functional_call(m.b, p, (m.a(row).tanh(),)))(x).square().mean()


def derivative(name: str, function: Callable[..., Any], *at: Tensor, **options: bool) -> Tensor:
    result = getattr(functional, name)(function, *at, create_graph=True, **options)
    return (result[1] if isinstance(result, tuple) else result).square().mean()


def forward_jacobian(function: Callable[..., Any], at: Any) -> Any:
    return functional.jacobian(function, at, vectorize=True, strategy="forward-mode")


def normed(y: Tensor) -> Tensor:
    return nn.functional.batch_norm(y, None, None, training=True)


LOSSES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "vmap": lambda m, x: vmap(m.net)(x).square().mean(),
    "nested": lambda m, x: vmap(lambda r: m.net(r) * vmap(torch.sin)(r).sum())(x).square().mean(),
    "grad": lambda m, x: vmap(grad(lambda r: m.net(r).sum()))(x).square().mean(),
    "jvp": lambda m, x: jvp(m.net, (x,), (torch.ones_like(x),))[1].square().mean(),
    "jacrev": lambda m, x: jacrev(m.net)(x[0]).square().mean(),
    "jacfwd": lambda m, x: jacfwd(m.net)(x[0]).square().mean(),
    "hessian": lambda m, x: hessian(lambda r: m.net(r).sum())(x[0]).square().mean(),
    "functional.jacobian": lambda m, x: derivative("jacobian", m.net, x[0]),
    "functional.jacobian at once": lambda m, x: derivative("jacobian", m.net, x[0], vectorize=True),
    "functional.jacobian forward": lambda m, x: forward_jacobian(m.net, x[0]).square().mean(),
    "functional.jacobian of two forward": lambda m, x: (
        forward_jacobian(lambda a, b: (m.net(a * b), a), (x[0], x[1]))[0][1].square().mean()
    ),
    "batch norm": lambda m, x: grad(lambda r: normed(m.net(r)).cos().sum())(x).square().mean(),
    "number beside an example": lambda m, x: vmap(lambda r: m.net(r)[0] * 3)(x).square().mean(),
    "functional.hessian": lambda m, x: derivative("hessian", lambda r: m.net(r).sum(), x[0]),
    "functional.vjp": lambda m, x: derivative("vjp", m.net, x[0], torch.ones(2)),
    "functional.jvp": lambda m, x: derivative("jvp", m.net, x[0], x[1]),
    "functional.hvp": lambda m, x: derivative("hvp", lambda r: m.net(r).sum(), x[0], x[1]),
    "functional.jacobian detached": lambda m, x: (
        functional.jacobian(m.net, x[0]).mean() * m.net(x).square().mean()
    ),
    "inner step": inner_step,
    "inner step by autograd": inner_step_by_autograd,
    "first order": first_order,
    "penalty": penalty,
    "detached": detached,
    "call": through_a_call,
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_step_trains_as_eager(name: str) -> None:
    trains_as_eager(lambda: Net(LOSSES[name]), (5, 4))


def test_what_is_no_result_is_refused() -> None:
    def backward(m: Net, x: Tensor) -> Tensor:
        loss = m.net(x).square().mean()
        loss.backward(retain_graph=True)
        return loss

    step = irc.compile_step(Net(backward), optimizer="sgd")
    with pytest.raises(IrcError, match=r"gradients are taken") as caught:
        step(torch.randn(5, 4), lr=0.1)
    assert "torch.func" in str(caught.value)


def test_a_gradient_that_torch_keeps_a_part_of_is_refused() -> None:
    def along(m: Net, x: Tensor) -> Tensor:
        return linearize(m.net, x)[1](x.cos()).square().mean()

    step = irc.compile_step(Net(along), optimizer="sgd")
    with pytest.raises(IrcError, match=r"torch.func.linearize") as caught:
        step(torch.randn(5, 4), lr=0.1)
    assert "torch.func.jvp" in str(caught.value)
