"""The first position of an extreme: ties, NaN, every dtype, fused with what makes the values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import irc
from irc.plan.schema import Kernels, Library, Plan


def plan_of(compiled: Any) -> Plan:
    plan: Plan = compiled._irc_dispatcher.versions[-1].plan
    return plan


def several(x: Tensor) -> tuple[Tensor, ...]:
    return (x.argmax(-1), x.argmin(0, keepdim=True), *x.max(0), *x.min(-1, keepdim=True))


@pytest.mark.parametrize("shape", [(1, 1), (7, 1), (5, 7), (3, 129), (40, 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_the_first_extreme_wins_and_nan_before_all(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x = (torch.randn(shape) * 2).round().to(dtype)
    if dtype.is_floating_point and x.numel() > 30:
        x.view(-1)[[3, 8, 30]] = torch.nan
        x[-1] = -torch.inf
    fast = irc.compile(several)
    for output, want in zip(fast(x), several(x), strict=True):
        assert output.dtype == want.dtype
        torch.testing.assert_close(output, want, rtol=0, atol=0, equal_nan=True)
    assert not any(isinstance(action, Library) for action in plan_of(fast).actions)


def test_what_makes_the_values_is_one_kernel_with_the_search() -> None:
    def likeliest(x: Tensor, bias: Tensor) -> Tensor:
        return ((x + bias) * 3).argmax(-1)

    x, bias = torch.randn(60, 50), torch.randn(50)
    fast = irc.compile(likeliest)
    assert torch.equal(fast(x, bias), likeliest(x, bias))
    (segment,) = plan_of(fast).actions
    assert isinstance(segment, Kernels)
    assert len(segment.calls) == 1
