"""Functions that torch has as one op are kernels of irc: values and gradients equal torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import irc
from irc.frontends.torch.capture import capture
from irc.ops.functions import POINTWISE

# fmt: off
FUNCTIONS: dict[str, tuple[Callable[..., Any], float, float]] = {
    "erfc":     (torch.erfc, -3, 5),
    "erfinv":   (torch.erfinv, -0.95, 0.95),
    "lgamma":   (torch.lgamma, 0.3, 9),
    "digamma":  (torch.digamma, 1.7, 30),
    "hypot":    (torch.hypot, -3, 3),
    "copysign": (torch.copysign, -3, 3),
}
# fmt: on
TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-6, torch.bfloat16: 1e-2}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def operands(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    _, low, high = FUNCTIONS[name]
    torch.manual_seed(0)
    drawn = [torch.rand(7, 33, dtype=torch.float64) for _ in range(POINTWISE[name].arity)]
    return [(x * (high - low) + low).to(dtype).requires_grad_() for x in drawn]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name: str, dtype: torch.dtype) -> None:
    function, inputs = FUNCTIONS[name][0], operands(name, dtype)
    fast = irc.compile(lambda *x: function(*x), fullgraph=True)
    tolerance = TOLERANCE[dtype]
    wanted = function(*[x.double() for x in inputs])
    torch.testing.assert_close(fast(*inputs).double(), wanted, rtol=tolerance, atol=tolerance)
    weight = torch.randn_like(wanted)
    got = torch.autograd.grad((fast(*inputs) * weight.to(dtype)).sum(), inputs)
    exact = torch.autograd.grad((wanted * weight.to(dtype)).sum(), inputs)
    for mine, theirs in zip(got, exact, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=4 * tolerance, atol=8 * tolerance)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_op_is_left_to_torch(name: str) -> None:
    class Whole(torch.nn.Module):
        def forward(self, *x: torch.Tensor) -> torch.Tensor:
            return FUNCTIONS[name][0](*x)

    inputs = [x.detach() for x in operands(name, torch.float32)]
    assert not capture(Whole(), tuple(inputs)).externs


def test_digamma_at_poles_and_below_zero() -> None:
    x = torch.tensor(
        [0.0, -0.0, -1.0, -7.0, -0.5, -2.25, -30.125, torch.inf, -torch.inf, torch.nan]
    )
    for dtype in (torch.float32, torch.float64):
        fast = irc.compile(torch.digamma, fullgraph=True)
        wanted = torch.digamma(x.to(dtype))
        torch.testing.assert_close(fast(x.to(dtype)), wanted, equal_nan=True)


def test_erfinv_at_its_ends() -> None:
    x = torch.tensor([1.0, -1.0, 1.5, -1.5, torch.nan, 0.0, -0.0, 1 - 2**-24, 2**-24 - 1, 1e-30])
    got, wanted = irc.compile(torch.erfinv, fullgraph=True)(x), torch.erfinv(x)
    torch.testing.assert_close(got, wanted, equal_nan=True)
    assert torch.equal(got.signbit()[5:], wanted.signbit()[5:])


def test_a_step_trains_through_the_gradient_of_lgamma() -> None:
    """A Poisson loss with the constant that it usually leaves out, of a rate that is trained."""

    class Rate(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.softplus(self.layer(x)) + 0.5

    def loss(rate: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        return (torch.lgamma(rate + count) - torch.lgamma(rate) + torch.erfc(rate)).mean()

    torch.manual_seed(0)
    model, x = Rate(), torch.randn(16, 4)
    count = torch.randint(0, 6, (16, 1)).float()
    step = irc.compile_step(model, loss=loss, optimizer={"kind": "sgd"})
    before = [p.detach().clone() for p in model.parameters()]
    got = step(x, count, lr=0.1)
    eager = Rate()
    eager.load_state_dict(dict(zip(eager.state_dict(), before, strict=True)))
    wanted = loss(eager(x), count)
    wanted.backward()
    torch.testing.assert_close(torch.as_tensor(got), wanted.detach())
    for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        assert theirs.grad is not None
        torch.testing.assert_close(mine.detach(), theirs.detach() - 0.1 * theirs.grad)
