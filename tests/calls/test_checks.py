"""A check of a tensor that does not hold raises, as in eager."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as mapped
from torch.utils.checkpoint import checkpoint

import irc
from irc.frontends.torch.tensor_checks import CheckLeftOutWarning
from irc.torch_backend.counts import counters
from tests.calls.transformed import added, of_a_gradient, of_each_row

pytestmark = pytest.mark.filterwarnings("ignore")

WAYS: dict[str, Callable[..., Callable[..., Any]]] = {
    "irc.compile": irc.compile,
    "torch.compile": partial(torch.compile, backend="irc"),
}


def asserted(x: Tensor) -> Tensor:
    y = x * 2
    assert (y > 0).all(), "not positive"
    return y + 1


CHECK: Any = torch.ops.aten._assert_async


def asynchronous(x: Tensor) -> Tensor:
    y = x * 2
    CHECK.msg((y > 0).all(), "not positive")
    CHECK.default(y.isfinite().all())
    return y + 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", [asserted, asynchronous])
def test_a_check_is_made_in_each_call(call: Any, way: str, grad: bool, dynamic: bool) -> None:
    torch._dynamo.reset()
    run = WAYS[way](call, dynamic=dynamic)
    good = torch.rand(3) + 1
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            x = good.clone().requires_grad_(grad)
            result = run(x)
            torch.testing.assert_close(result, good * 2 + 1)
            if grad:
                result.sum().backward()
                torch.testing.assert_close(x.grad, torch.full((3,), 2.0))
            with pytest.raises((AssertionError, RuntimeError), match="not positive"):
                run((-good).requires_grad_(grad))
        if call is asynchronous:
            with pytest.raises(RuntimeError):
                run(good / 0)


def of_number(x: Tensor) -> Tensor:
    torch._check(x.sum().item() > 0, lambda: "not positive")
    return x * 2 + 1


def checked_part(x: Tensor) -> Tensor:
    assert (x > 0).all(), "not positive"
    return x * 2


def in_checkpoint(x: Tensor) -> Tensor:
    return checkpoint(checked_part, x, use_reentrant=False) + 1


def numbered_in_checkpoint(x: Tensor) -> Tensor:
    return checkpoint(of_number, x, use_reentrant=False)


def in_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        y = checked_part(x)
    return y + 1


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", [of_number, in_checkpoint, numbered_in_checkpoint, in_autocast])
def test_a_check_of_a_number_or_inside_a_checkpoint_is_made(
    call: Any, way: str, grad: bool
) -> None:
    torch._dynamo.reset()
    run, good = WAYS[way](call), torch.rand(3) + 1
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            x = good.clone().requires_grad_(grad)
            result = run(x)
            torch.testing.assert_close(result, good * 2 + 1)
            if grad:
                result.sum().backward()
                torch.testing.assert_close(x.grad, torch.full((3,), 2.0))
            with pytest.raises((AssertionError, RuntimeError), match="not positive"):
                run((-good).requires_grad_(grad))


def written_after(x: Tensor) -> Tensor:
    holds = (x > 0).all()
    CHECK.msg(holds, "not positive")
    CHECK.default(x[0])
    holds.logical_not_()
    x.zero_()
    return x + holds


@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_later_is_not_looked_at(way: str) -> None:
    compiled = WAYS[way](written_after)
    assert torch.equal(compiled(torch.ones(4)), written_after(torch.ones(4)))
    with pytest.raises(RuntimeError, match="not positive"):
        compiled(-torch.ones(4))


@pytest.mark.filterwarnings("default")
def test_a_step_says_that_it_leaves_checks_out() -> None:
    class Checked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            CHECK.msg((x > 0).all(), "not positive")
            return self.line(x).square().mean()

    step = irc.compile_step(Checked(), optimizer="sgd")
    with pytest.warns(CheckLeftOutWarning, match="no part of a compiled step"):
        step(torch.ones(4, 3))


def of_branches(x: Tensor) -> Tensor:
    def large(x: Tensor) -> Tensor:
        torch._assert_async(x.max() < 3, "too large")
        return torch.cond(x[0] > 1, twice, torch.clone, (x,))

    def twice(x: Tensor) -> Tensor:
        torch._assert_async(x.min() > 1, "mixed")
        return x * 2

    def small(x: Tensor) -> Tensor:
        torch._assert_async(x.min() > -3, "too small")
        return x - 1

    return torch.cond(x.sum() > 0, large, small, (x,)) * 2


def of_a_loop(x: Tensor) -> Tensor:
    def body(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        torch._assert_async(x.max() < 3, "grew")
        return i + 1, x * 2

    return while_loop(lambda i, x: i < 5, body, (torch.tensor(0), x))[1]


def of_a_condition(x: Tensor) -> Tensor:
    def goes_on(i: Tensor, x: Tensor) -> Tensor:
        torch._assert_async(x.max() < 3, "left the range")
        return i < 5

    def body(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        torch._assert_async(x.min() > 0, "not positive")
        return i + 1, x * 2

    return while_loop(goes_on, body, (torch.tensor(0), x))[1] * 2


def of_rows(x: Tensor) -> Tensor:
    def step(total: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        torch._assert_async(total < 3, "the sum grew")
        return total + row, total * row

    def of_row(row: Tensor) -> Tensor:
        torch._assert_async(row > -3, "too small")
        return row * 2

    total, rows = scan(step, torch.zeros(()), x)
    return mapped(of_row, x) + rows + total


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("function", "rows", "says"),
    [
        (of_branches, [[0.5, 0.5], [2.0, 1.5], [-1.0, -2.0]], ""),
        (of_branches, [[2.0, 5.0]], "too large"),
        (of_branches, [[2.0, 0.5]], "mixed"),
        (of_branches, [[-2.0, -5.0]], "too small"),
        (of_a_loop, [[0.01, 0.02]], ""),
        (of_a_loop, [[0.01, 1.0]], "grew"),
        (of_a_condition, [[0.01, 0.02]], ""),
        (of_a_condition, [[0.01, 0.1]], "left the range"),
        (of_a_condition, [[0.01, 4.0]], "left the range"),
        (of_a_condition, [[0.01, -0.1]], "not positive"),
        (of_rows, [[0.5, 2.0], [2.0, 5.0], [-1.0, -2.0]], ""),
        (of_rows, [[4.0, 0.5]], "the sum grew"),
        (of_rows, [[0.5, -4.0]], "too small"),
    ],
)
def test_regions_check_what_they_run(
    function: Callable[[Tensor], Tensor], rows: list[list[float]], says: str, way: str, grad: bool,
) -> None:  # fmt: skip
    torch._dynamo.reset()
    run = WAYS[way](function)

    def answer(call: Callable[[Tensor], Tensor], values: list[float]) -> list[Tensor]:
        x = torch.tensor(values, requires_grad=grad)
        result = call(x)
        return [result, *(torch.autograd.grad(result.sum(), x) if grad else ())]

    for values in rows:
        if says:
            with pytest.raises(RuntimeError, match=says):
                answer(run, values)
        else:
            torch.testing.assert_close(answer(run, values), answer(function, values))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (added, lambda x: x.cumsum(0) * 2),
        (of_each_row, lambda x: x * 2),
        (of_a_gradient, lambda x: x * 2),
    ],
)
def test_transformed_functions_check_what_they_are_given(
    function: Callable[[Tensor], Tensor], wanted: Callable[[Tensor], Tensor], way: str, grad: bool
) -> None:
    """Eager refuses to look at a tensor inside of ``vmap``; Dynamo writes the check down."""
    torch._dynamo.reset()
    run, good = WAYS[way](function), torch.rand(5, 3) + 1
    for _ in range(2):
        x = good.clone().requires_grad_(grad)
        result = run(x)
        torch.testing.assert_close(result, wanted(good))
        if grad:
            (own,) = torch.autograd.grad(result.square().sum(), x)
            x = good.clone().requires_grad_()
            torch.testing.assert_close(own, *torch.autograd.grad(wanted(x).square().sum(), x))
        bad = good.clone()
        bad[3, 1] = -1
        with pytest.raises((AssertionError, RuntimeError), match="not positive"):
            run(bad.requires_grad_(grad))


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "function": lambda p: torch.bernoulli(p) + 1,
    "method": lambda p: p.bernoulli() * 2,
    "in place": lambda p: torch.zeros(3).bernoulli_(p) + 1,
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_by_probabilities(name: str, way: str, grad: bool) -> None:
    torch._dynamo.reset()
    counters.clear()
    run = WAYS[way](DRAWS[name])
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            run(torch.tensor([0.0, 1.0, 0.5]))
            for wrong in (-0.1, 1.1, float("nan")):
                with pytest.raises(RuntimeError, match="p_in >= 0 && p_in <= 1"):
                    run(torch.tensor([0.5, wrong, 0.5]))
    assert counters["graphs"] == 1 and not counters["graphs run by torch"]
