"""Pools with indices, and gradients of pools, as kernels: equal to torch's, ties and all."""

# pyright: basic
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import irc
from irc.calls.compiled import dispatcher_of
from irc.frontends.torch.capture import capture
from irc.pipeline import Options, lower, make_plan
from irc.runtime.executors import executor_of
from irc.train import training_program

MAX = [
    ((2, 3, 9, 7), 3, 2, 1, 1), ((1, 4, 8, 8), 2, 2, 0, 1), ((2, 5, 11, 6), 3, 1, 1, 1),
    ((1, 2, 13, 12), 3, 2, 1, 2), ((1, 1, 5, 5), 2, 3, 0, 1), ((2, 3, 5, 6, 7), 2, 2, 0, 1),
]  # fmt: skip


class MaxPool(nn.Module):
    """A pool that gives its indices, and its derivative by them."""

    def __init__(self, ndim: int, *rest: Any) -> None:
        super().__init__()
        self.forward_op = getattr(torch.ops.aten, f"max_pool{ndim}d_with_indices")
        self.backward_op = getattr(torch.ops.aten, f"max_pool{ndim}d_with_indices_backward")
        self.rest = [[n] * ndim for n in rest]

    def forward(self, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, index = self.forward_op(x, *self.rest)
        return y, index, self.backward_op(g, x, *self.rest, False, index)


def libraries(module: Any) -> list[str]:
    dispatcher: Any = dispatcher_of(module)
    (version,) = dispatcher.versions
    return [step.op for step in version._executor.plan.actions if hasattr(step, "op")]


def same(module: nn.Module, *values: Tensor) -> None:
    fast = irc.compile(module)
    with torch.no_grad():
        output, wanted = fast(*values), module(*values)
    assert libraries(fast) == []
    torch.testing.assert_close(output, wanted, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_a_single_image_is_a_batch_of_one() -> None:
    torch.manual_seed(0)
    x = torch.randint(-2, 3, (3, 7, 6)).float()
    module = MaxPool(2, 3, 2, 1, 1)
    same(module, x, torch.randn(module.forward_op(x, *module.rest)[0].shape))
    rest: Any = ([2, 3], [2, 2], [1, 0], True, False, None)
    same(AvgPool(*rest), torch.randn(F.avg_pool2d(x, *rest).shape), x)


def test_all_taps_of_a_phase_share_its_places() -> None:
    """A library call of 9 taps was 240 ops, and judging their fusion most of its compilation."""
    x = torch.randn(1, 2, 6, 6)
    module = MaxPool(2, 3, 1, 1, 1)
    program = capture(module, (x, torch.randn(1, 2, 6, 6))).program
    counts: dict[str, int] = {}
    lower(
        program, Options(), lambda name, lowered: counts.update({name: str(lowered).count("iota")})
    )
    assert counts["lower-externs"] == 4  # rows and columns, of windows and of elements


@pytest.mark.parametrize(("shape", "window", "stride", "padding", "dilation"), MAX)
def test_maximum(
    shape: tuple[int, ...], window: int, stride: int, padding: int, dilation: int
) -> None:
    torch.manual_seed(0)
    module = MaxPool(len(shape) - 2, window, stride, padding, dilation)
    x = torch.randint(-2, 3, shape).float()  # with equal ones in most windows
    g = torch.randn(module.forward_op(x, *module.rest)[0].shape)
    same(module, x, g)


def test_nan_and_infinity_have_places_too() -> None:
    module = MaxPool(2, 3, 2, 1, 1)
    x = torch.full((1, 2, 7, 7), -torch.inf)
    x[0, 0, 2, 3] = x[0, 0, 3, 3] = torch.nan
    x[0, 1, 4, 4] = 1.0
    g = torch.ones(module.forward_op(x, *module.rest)[0].shape)
    same(module, x, g)


class AvgPool(nn.Module):
    """The derivative of an average pool."""

    def __init__(self, *rest: Any) -> None:
        super().__init__()
        self.rest = rest

    def forward(self, g: Tensor, x: Tensor) -> Tensor:
        return torch.ops.aten.avg_pool2d_backward(g, x, *self.rest)


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_average(data: st.DataObject) -> None:
    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    window, stride = (draw(1, 4), draw(1, 3)), (draw(1, 3), draw(1, 3))
    padding = tuple(draw(0, k // 2) for k in window)
    ceil, counts = data.draw(st.booleans()), data.draw(st.booleans())
    divisor = data.draw(st.sampled_from([None, 3]))
    sizes = [k + draw(0, 6) for k in window]
    x = torch.randn(draw(1, 2), draw(1, 5), *sizes)
    y = F.avg_pool2d(x, window, stride, padding, ceil, counts, divisor)
    rest = (list(window), list(stride), list(padding), ceil, counts, divisor)
    same(AvgPool(*rest), torch.randn(y.shape), x)


class Pooled(nn.Module):
    """A loss behind both pools."""

    def __init__(self, ceil: bool) -> None:
        super().__init__()
        self.up, self.ceil = nn.Conv2d(3, 8, 3, padding=1), ceil

    def forward(self, x: Tensor) -> Tensor:
        y = F.max_pool2d(self.up(x), 3, 2, 1, ceil_mode=self.ceil)
        z = F.avg_pool2d(y, 2, ceil_mode=self.ceil, count_include_pad=False)
        return (z * z).sum()


@pytest.mark.parametrize("ceil", [False, True])
def test_steps_of_training_call_no_library(ceil: bool) -> None:
    torch.manual_seed(0)
    module, x = Pooled(ceil), torch.randn(2, 3, 13, 10)
    program = training_program(capture(module, (x,)).program, optimizer=None)
    plan = make_plan(program, Options(), keep_ir=False)
    assert not [step for step in plan.plan.actions if hasattr(step, "op")]
    module(x).backward()
    _, *gradients = executor_of(plan, program.tensors)(x)
    for value, parameter in zip(gradients, module.parameters(), strict=True):
        torch.testing.assert_close(value, parameter.grad, rtol=1e-4, atol=1e-4)
