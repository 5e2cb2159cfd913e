"""What comparisons read of half types is rounded: the largest element of a row is one of them."""

# pyright: basic
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import irc

HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu, "gelu": F.gelu, "sin": torch.sin, "a product": lambda x: x * 1.7 * x,
    "a view of one": lambda x: torch.exp(x).t().contiguous().t(),
}  # fmt: skip


@HALVES
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_computed_equals_what_eager_has_stored(name: str, dtype: torch.dtype) -> None:
    function = FUNCTIONS[name]

    def equal(x: Tensor, top: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return function(x) == top, function(x) >= top, torch.where(function(x) != top, 1.0, 0.0)

    torch.manual_seed(0)
    x = torch.randn(17, 48).to(dtype)
    top = function(x).amax(1, keepdim=True)
    with torch.no_grad():
        for mine, theirs in zip(irc.compile(equal)(x, top), equal(x, top), strict=True):
            assert torch.equal(mine, theirs)


@HALVES
@pytest.mark.parametrize(
    "way", [irc.compile, lambda f: torch.compile(f, backend="irc")], ids=["compile", "backend"]
)
@pytest.mark.parametrize("largest", [torch.amax, torch.amin, lambda x, dim: x.max(dim)[0]])
def test_a_largest_elements_gradient_is_no_quotient_by_none(
    largest: Any, way: Any, dtype: torch.dtype
) -> None:
    """Backward counts the elements that are as large: where none is, it divides by zero."""

    def call(x: Tensor) -> Tensor:
        return largest(F.silu(x), dim=1).float()

    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.randn(17, 16).to(dtype)
    one, other = (x.clone().requires_grad_() for _ in range(2))
    way(call)(one).square().sum().backward()
    call(other).square().sum().backward()
    torch.testing.assert_close(one.grad, other.grad, rtol=2e-2, atol=2e-2)


class Largest(nn.Module):
    """The largest of activations in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16).bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        return torch.amax(F.silu(self.linear(x)), dim=1).float().sum()


def test_a_step_of_training_takes_a_largest_element() -> None:
    torch.manual_seed(0)
    model = Largest()
    eager = copy.deepcopy(model)
    x = torch.randn(17, 16).bfloat16()
    irc.compile_step(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))(x)
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1)
    eager(x).backward()
    optimizer.step()
    torch.testing.assert_close(model.linear.weight, eager.linear.weight, rtol=0, atol=5e-3)


SEARCHES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "values": lambda x, b: torch.bucketize(x * 1.1, b),
    "table": lambda x, b: torch.bucketize(x, b * 1.1),
    "both": lambda x, b: torch.searchsorted(b * 0.7, x * 0.3, right=True),
    "rows": lambda x, b: torch.searchsorted(b.expand(17, -1) * 1.3, x * 1.1),
}


@HALVES
@pytest.mark.parametrize("name", SEARCHES)
def test_what_is_searched_and_where_are_rounded(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, table = torch.randn(17, 48).to(dtype), torch.linspace(-3, 3, 50).to(dtype)
    search = SEARCHES[name]
    assert torch.equal(irc.compile(search)(x, table), search(x, table))
