"""``torch.compile(backend="irc")``: arguments that share memory in some of the calls."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from irc.torch_backend.counts import counters


def _added(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.add_(1)
    return b * 2


def _set(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a[1:] = 7
    return b + 1


def _arguments() -> list[tuple[torch.Tensor, torch.Tensor]]:
    x, y, z, w = (torch.arange(6.0) for _ in range(4))
    u, v = (torch.arange(6.0).reshape(3, 2) for _ in range(2))
    return [
        (x[:3], y[:3]), (z[:3], z[1:4]), (w[:3], w[:3]), (x[:3], x[3:]), (y[2:5], y[:3]),
        (u[:, 0], v[:, 1]), (u[:, 0], u[:, 1]), (v[:, 0], v[:, 0]),
    ]  # fmt: skip


@pytest.mark.parametrize("function", [_added, _set])
@pytest.mark.parametrize("turned", [False, True], ids=["apart first", "apart last"])
@pytest.mark.parametrize("gradients", [False, True])
def test_reads_what_was_written(
    function: Callable[..., torch.Tensor], turned: bool, gradients: bool
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="irc")
    ours, eager = _arguments(), _arguments()
    step = -1 if turned else 1
    with torch.set_grad_enabled(gradients):
        for own, other in zip(ours[::step], eager[::step], strict=True):
            torch.testing.assert_close(compiled(*own), function(*other), rtol=0, atol=0)
            torch.testing.assert_close(own, other, rtol=0, atol=0)


def test_columns_of_one_memory_are_apart() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(_added, backend="irc")
    both = [torch.arange(12.0).reshape(3, 2, 2) for _ in range(2)]
    compiled(both[0][:, 0], both[1][:, 1])
    before, kv = counters["graphs run by torch"], torch.arange(12.0).reshape(3, 2, 2)
    torch.testing.assert_close(compiled(kv[:, 0], kv[:, 1]), both[1][:, 1] * 2, rtol=0, atol=0)
    torch.testing.assert_close(kv[:, 0], both[1][:, 0] + 1, rtol=0, atol=0)
    assert counters["graphs run by torch"] == before


def test_gradients_of_a_written_view() -> None:
    def scaled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.mul_(3)
        return (b * b).sum()

    torch._dynamo.reset()
    results = []
    for call in (scaled, torch.compile(scaled, backend="irc")):
        call((torch.ones(3) + 0).clone(), torch.ones(3, requires_grad=True) * 2)
        x = torch.arange(4.0, requires_grad=True)
        y = x * 1
        call(y[:3].detach(), (x * 2)[:3])
        call(y[:2], y[1:])
        results.append(y)
    torch.testing.assert_close(*results)
