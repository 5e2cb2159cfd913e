"""Functions that are not continuous, or cancel, in half types: rounded where eager rounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import irc

OF_TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "//": lambda a, b: a // b,
    "by one": lambda a, b: torch.div(a, b[:1, :1], rounding_mode="trunc"),
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "lerp from the end": lambda a, b: torch.lerp(a, b, 0.9),
    "lerp by a tensor": lambda a, b: torch.lerp(a, b, b.clamp(0, 1)),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.3),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b, value=0.3),
}
OF_ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "trunc": lambda a: torch.div(a, 0.1, rounding_mode="trunc"),
    "floor": lambda a: torch.div(a, 7.3, rounding_mode="floor"),
    "number //": lambda a: 7.3 // a,
    "%": lambda a: a % 0.1,
    "fmod": lambda a: torch.fmod(a, 7.3),
    "**": lambda a: a.abs() ** 7.3,
    "number **": lambda a: 7.3 ** a.clamp(-9, 9),
}
ALIKE: dict[torch.dtype, float] = {torch.bfloat16: 2**-7, torch.float16: 2**-10}


def drawn(dtype: torch.dtype, *shape: int) -> Tensor:
    special = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, float("inf"), -float("inf"), float("nan")]
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(shape[0])) * 20
    x.view(-1)[:: 1 + x.numel() // 20][: len(special)] = torch.tensor(special)[: x.numel()]
    return x.to(dtype)


@pytest.mark.parametrize("dtype", ALIKE)
@pytest.mark.parametrize("name", OF_TWO)
@torch.no_grad()
def test_of_two(name: str, dtype: torch.dtype) -> None:
    a, b, function = drawn(dtype, 64, 1), drawn(dtype, 1, 96), OF_TWO[name]
    mine = irc.compile(function, fullgraph=True)(a, b)
    torch.testing.assert_close(mine, function(a, b), rtol=ALIKE[dtype], atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", ALIKE)
@pytest.mark.parametrize("name", OF_ONE)
@torch.no_grad()
def test_of_a_number(name: str, dtype: torch.dtype) -> None:
    a, function = drawn(dtype, 256), OF_ONE[name]
    mine = irc.compile(function, fullgraph=True)(a)
    torch.testing.assert_close(mine, function(a), rtol=ALIKE[dtype], atol=0, equal_nan=True)


@torch.no_grad()
def test_products_that_overflow_are_made_in_order() -> None:
    a = torch.tensor([1.5, 3.0])
    b = torch.full((2,), 3e38)
    mine = irc.compile(lambda a, b: torch.addcmul(a, a, b, value=0.3), fullgraph=True)(a, b)
    torch.testing.assert_close(mine, torch.addcmul(a, a, b, value=0.3))
    far = torch.tensor([1e8, -3e9])
    mine = irc.compile(lambda a, b: torch.lerp(a, b, 1.0), fullgraph=True)(far, a)
    assert torch.equal(mine, a)


def test_no_gradient_passes_a_whole_number() -> None:
    model = torch.nn.Linear(4, 8).bfloat16()
    x = torch.randn(3, 4).bfloat16()

    def loss(y: Tensor) -> Tensor:
        return (y // (y.detach() * 0.3) + y).float().mean()

    step = irc.compile_step(model, loss=loss, optimizer="sgd")
    before = model.bias.detach().clone()
    step(x, lr=1.0)
    torch.testing.assert_close(
        before - model.bias.detach(), torch.full((8,), 1 / 8).bfloat16(), rtol=0.05, atol=0
    )
