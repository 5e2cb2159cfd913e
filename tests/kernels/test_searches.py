"""Searches in sorted tables as kernels: torch's positions, bit for bit, on any table."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import irc
from irc.plan.libraries import library_calls
from irc.plan.schema import Plan

torch.manual_seed(3)
NAN = float("nan")


def compiled(function: Callable[..., Any], *operands: Tensor) -> tuple[Any, Plan]:
    fast = irc.compile(function)
    result = fast(*operands)
    return result, fast._irc_dispatcher.versions[-1].plan


def check(function: Callable[..., Any], *operands: Tensor, kernels: bool = True) -> None:
    result, plan = compiled(function, *operands)
    expected = function(*operands)
    assert result.dtype == expected.dtype
    assert torch.equal(result, expected)
    assert (not library_calls(plan)) == kernels


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 31, 64, 1000])
def test_places_among_ties(n: int, right: bool) -> None:
    table = torch.randint(0, max(n // 2, 2), (n,)).sort().values.float()
    x = torch.cat([table, table + 0.5, torch.tensor([-1.0, float("inf"), -float("inf")])])
    check(lambda t, v: torch.searchsorted(t, v.reshape(1, -1), right=right), table, x)
    check(lambda t, v: torch.bucketize(v, t, right=right, out_int32=True), table, x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int32, torch.uint8])
def test_dtypes(dtype: torch.dtype) -> None:
    table = torch.randint(0, 90, (37,)).sort().values.to(dtype)
    x = torch.randint(0, 99, (5, 7)).to(dtype)
    check(lambda t, v: torch.searchsorted(t, v), table, x)


def test_rows_of_their_own_and_odd_sizes() -> None:
    table = torch.randn(3, 1, 13).sort().values
    x = torch.randn(3, 1, 17)
    check(lambda t, v: torch.searchsorted(t, v, side="right"), table, x)
    check(lambda t, v: torch.searchsorted(t, (v + 1)[..., ::2].contiguous()), table, x)


def test_what_is_not_in_order() -> None:
    """Bisection of torch, step by step: NaN anywhere, and tables that are not sorted."""
    table = torch.randn(101)
    table[::7] = NAN
    x = torch.cat([torch.randn(50), torch.tensor([NAN])])
    for right in (False, True):
        check(lambda t, v, r=right: torch.searchsorted(t, v, right=r), table, x)


def test_numbers() -> None:
    table = torch.randn(4, 29)
    check(lambda t: torch.searchsorted(t, 0.25), table[0].sort().values)
    check(lambda t: torch.bucketize(0.25, t, right=True), table[0].sort().values)


def test_is_one_kernel_with_what_surrounds_it() -> None:
    table, x = torch.randn(30).sort().values, torch.randn(40, 50)

    def binned(t: Tensor, v: Tensor) -> Tensor:
        return torch.bucketize(v * 2 + 1, t) * 3

    result, plan = compiled(binned, table, x)
    assert torch.equal(result, binned(table, x))
    assert len(plan.kernels) == 1


def test_nothing_to_search_stays_in_the_library() -> None:
    def search(t: Tensor, v: Tensor) -> Tensor:
        return torch.searchsorted(t, v)

    check(search, torch.randn(0), torch.randn(3), kernels=False)
    check(search, torch.randn(4), torch.randn(0), kernels=False)


def test_what_the_library_looks_at_is_its_own() -> None:
    """Positions to sort by may lie outside; tables of rows and odd sides are refused."""
    table, x = torch.randn(4, 29), torch.randn(4, 6)
    check(
        lambda t, v, s: torch.searchsorted(t, v, sorter=s), table, x, table.argsort(), kernels=False
    )
    for refused, said in (
        (lambda t, v: torch.searchsorted(t, v, sorter=t.argsort() + 1), "out of range"),
        (lambda t, v: torch.searchsorted(t, v, side="middle"), "can only be"),
        (lambda t, v: torch.bucketize(v, t), "must be 1 dimension"),
    ):
        with torch.no_grad(), pytest.raises(RuntimeError, match=said):
            irc.compile(refused)(table, x)
