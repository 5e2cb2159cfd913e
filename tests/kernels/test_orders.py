"""Results lie in memory as eager's do, stored so by the kernel that computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import irc
from irc.plan.schema import Kernels, Plan

Function = Callable[..., Any]


@pytest.fixture(autouse=True, scope="module")
def _own_kernels() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IRC_FIRST_TIMING", "off")
        yield


def compiled(function: Function, *inputs: torch.Tensor) -> tuple[Any, Plan]:
    """Run once without gradients, and return the results and the plan."""
    run: Any = irc.compile(function)
    with torch.no_grad():
        results = run(*inputs)
    return results, run._irc_dispatcher.versions[0].plan


def num_kernels(plan: Plan) -> int:
    return sum(len(a.calls) for a in plan.actions if isinstance(a, Kernels))


@st.composite
def turned_pairs(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors of one shape, whose dims lie in an order of their own each."""
    ndim = draw(st.integers(2, 4))
    shape = [draw(st.sampled_from([2, 3, 5, 8, 17, 33])) for _ in range(ndim)]
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int32]))
    pair: list[torch.Tensor] = []
    for _ in range(2):
        order = draw(st.sampled_from(list(permutations(range(ndim)))))
        dense = (torch.randn([shape[d] for d in order]) * 9).to(dtype)
        pair.append(dense.permute([order.index(d) for d in range(ndim)]))
    return pair[0], pair[1]


@settings(max_examples=8, deadline=None, phases=[Phase.generate])
@given(turned_pairs())
def test_an_elementwise_result_needs_no_copy(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + y).clamp(min=0) * y

    got, plan = compiled(function, *pair)
    wanted = function(*pair)
    assert got.stride() == wanted.stride()
    torch.testing.assert_close(got, wanted)
    assert num_kernels(plan) == 1 and plan.arena_bytes == 0


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x @ y).t().relu()


def scaled(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2 + 1


X, Y = torch.randn(40, 48), torch.randn(48, 56)
IMAGES = torch.randn(2, 6, 5, 7).to(memory_format=torch.channels_last)


@pytest.mark.parametrize(("function", "inputs"), [(product, (X, Y)), (scaled, (IMAGES,))])
def test_products_and_images_are_stored_as_they_are_returned(
    function: Function, inputs: tuple[torch.Tensor, ...]
) -> None:
    got, plan = compiled(function, *inputs)
    wanted = function(*inputs)
    assert got.stride() == wanted.stride() and not wanted.is_contiguous()
    torch.testing.assert_close(got, wanted)
    assert num_kernels(plan) == 1 and plan.arena_bytes == 0


def twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.t() * 2
    return y, y.contiguous()


def read_on(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.t().exp()
    return y, torch.softmax(y, -1)


@pytest.mark.parametrize("function", [twice, read_on])
def test_results_that_others_read_too(function: Function) -> None:
    (got, other), _ = compiled(function, X)
    wanted, wanted_other = function(X)
    assert (got.stride(), other.stride()) == (wanted.stride(), wanted_other.stride())
    torch.testing.assert_close((got, other), (wanted, wanted_other))


def test_gradients_of_turned_results() -> None:
    x, y = (torch.randn(9, 4, requires_grad=True), torch.randn(4, 9, requires_grad=True))
    weight = torch.randn(9, 4).t()
    grads = [
        torch.autograd.grad(f(x, y), [x, y], weight)
        for f in (irc.compile(lambda x, y: torch.sigmoid(x.t() + y) * y),
                  lambda x, y: torch.sigmoid(x.t() + y) * y)
    ]  # fmt: skip
    torch.testing.assert_close(*grads)
    assert [g.stride() for g in grads[0]] == [g.stride() for g in grads[1]]
