"""Functions that assert inside of what torch transforms: pytest rewrites asserts of tests."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._higher_order_ops import associative_scan


def added(x: Tensor) -> Tensor:
    def both(a: Tensor, b: Tensor) -> Tensor:
        assert (b > 0).all(), "not positive"
        return a + b

    return associative_scan(both, x, 0, combine_mode="generic") * 2


def of_each_row(x: Tensor) -> Tensor:
    def of_row(row: Tensor) -> Tensor:
        def of_number(number: Tensor) -> Tensor:
            assert number > 0, "not positive"
            return number.cumsum(0)

        return torch.func.vmap(of_number)(row)

    return torch.func.vmap(of_row)(x) * 2


def of_a_gradient(x: Tensor) -> Tensor:
    def squared(row: Tensor) -> Tensor:
        assert (row > 0).all(), "not positive"
        return (row * row).sum()

    return torch.func.vmap(torch.func.grad(squared))(x)
