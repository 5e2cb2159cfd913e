"""Functions that are not continuous, or cancel, in half types: rounded where eager rounds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import irc

WAYS: dict[str, Callable[[Any], Any]] = {
    "irc.compile": irc.compile,
    "torch.compile": partial(torch.compile, backend="irc"),
}
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


def every_number(dtype: torch.dtype) -> Tensor:
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)


@pytest.mark.parametrize("dtype", [*ALIKE, torch.float32])
@pytest.mark.parametrize("lambd", [0.5, 0.3, 0.0])
@pytest.mark.parametrize("way", WAYS)
def test_softshrink_of_each_number_of_a_half_type(
    way: str, lambd: float, dtype: torch.dtype
) -> None:
    torch._dynamo.reset()
    a = every_number(torch.bfloat16 if dtype is torch.float32 else dtype).to(dtype)

    def function(x: Tensor) -> Tensor:
        return torch.nn.functional.softshrink(x, lambd)

    with torch.no_grad():
        mine, eager = WAYS[way](function)(a), function(a)
    torch.testing.assert_close(mine, eager, rtol=0, atol=0, equal_nan=True)
    numbers = ~eager.isnan()
    assert torch.equal(mine.signbit()[numbers], eager.signbit()[numbers])  # 0, where torch has -0
    theirs, own = (a.clone().requires_grad_() for _ in range(2))
    function(theirs).sum().backward()
    WAYS[way](function)(own).sum().backward()
    assert theirs.grad is not None and own.grad is not None
    # Backward, eager rounds lambd to the half type.
    is_told = a.abs() != torch.tensor(lambd, dtype=dtype)
    assert torch.equal(own.grad[is_told], theirs.grad[is_told])


@pytest.mark.parametrize("dtype", ALIKE)
@pytest.mark.parametrize("way", WAYS)
def test_the_normal_distribution_is_rounded_at_each_step(way: str, dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    theirs, own = (every_number(dtype).requires_grad_() for _ in range(2))
    eager, mine = torch.special.ndtr(theirs), WAYS[way](torch.special.ndtr)(own)
    torch.testing.assert_close(mine, eager, rtol=2 * ALIKE[dtype], atol=1e-6, equal_nan=True)
    assert int(((mine != eager) & ~theirs.isnan()).sum()) < 10  # where erf lies between two numbers
    eager.sum().backward()
    mine.sum().backward()
    # Of the gradient, eager rounds each step too.
    near = {"rtol": 4 * ALIKE[dtype], "atol": 1e-6}
    torch.testing.assert_close(own.grad, theirs.grad, equal_nan=True, **near)


@pytest.mark.parametrize("way", WAYS)
def test_what_softshrink_refuses(way: str) -> None:
    torch._dynamo.reset()
    run = WAYS[way](torch.nn.functional.softshrink)
    for operand, lambd in ((torch.ones(3), -1.0), (torch.ones(3, dtype=torch.int64), 0.5)):
        with pytest.raises(RuntimeError):
            torch.nn.functional.softshrink(operand, lambd)
        with pytest.raises(RuntimeError):
            run(operand, lambd)


@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_arguments_by_the_names_of_functions_and_of_ops(way: str) -> None:
    x = torch.linspace(-2, 2, 9)
    for call in (
        lambda x: torch.special.ndtr(x, out=None),
        lambda x: torch.ops.aten.softshrink.default(self=x, lambd=0.3),
        lambda x: torch.nn.functional.softshrink(input=x, lambd=0.3),
    ):
        torch._dynamo.reset()
        torch.testing.assert_close(WAYS[way](call)(x), call(x))
