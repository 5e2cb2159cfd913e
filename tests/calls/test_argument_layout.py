"""Arguments of one shape may lie in memory in several ways; each call is what eager makes of it."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import irc
from irc.calls.compiled import statistics

LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: torch.arange(6.0).reshape(3, 2),
    "gaps": lambda: torch.arange(12.0).reshape(3, 4)[:, ::2],
    "turned": lambda: torch.arange(6.0).reshape(2, 3).t(),
    "late": lambda: torch.arange(12.0)[4:10].reshape(3, 2),
    "early": lambda: torch.arange(12.0)[2:8].reshape(3, 2),
}
ORDERS = ("gaps rows turned late early", "rows gaps")


def _branches(a: Tensor) -> Tensor:
    return a + 1 if a.is_contiguous() else a * 2


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "contiguous": lambda a: a.contiguous().add_(1),
    "contiguous, not returned": lambda a: a.contiguous().add_(1) * 2,
    "contiguous of a part": lambda a: a.chunk(2, 0)[0].contiguous().add_(1),
    "contiguous of more dims": lambda a: a.unflatten(0, (3, 1)).contiguous().add_(1),
    "reshape": lambda a: a.reshape(-1)[1:].add_(1).sum(),
    "ravel": lambda a: a.ravel().mul_(2).sum(),
    "to": lambda a: a.to(torch.float32, memory_format=torch.contiguous_format).mul_(2).sum(),
    "read after a write": lambda a: (a.reshape(-1), a.add_(1))[0] * 2,
    "is_contiguous": _branches,
    "stride": lambda a: a * a.stride(0),
    "storage_offset": lambda a: a + a.storage_offset(),
    "as_strided": lambda a: a.as_strided((2,), (1,), 2) + 1,
    "as_strided, named": lambda a: torch.as_strided(a, (2,), (1,), storage_offset=2),
    "as_strided, written": lambda a: a.as_strided((2,), (1,), 2).add_(1).sum(),
    "as_strided after a write": lambda a: (a.add_(1), a.as_strided((2,), (1,), 2) * 2)[1],
}


def _dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="irc")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("way", [irc.compile, _dynamo], ids=["irc.compile", "torch.compile"])
def test_strides_decide_as_in_eager(
    way: Callable[..., Any], kind: str, order: str, recwarn: pytest.WarningsRecorder
) -> None:
    """Strides decide what is written; the memory around an argument is written as well."""
    function = FUNCTIONS[kind]
    fast = way(function)
    with torch.no_grad():
        for layout in order.split():
            mine, eagers = LAYOUTS[layout](), LAYOUTS[layout]()
            got, wanted = fast(mine), function(eagers)
            assert torch.equal(got, wanted), layout
            assert torch.equal(_memory(mine), _memory(eagers)), layout
            assert _shares(got, mine) == _shares(wanted, eagers), layout
            assert (mine._version > 0) == (eagers._version > 0), layout


def _memory(tensor: Tensor) -> Tensor:
    whole = torch.empty(0)
    return whole.set_(tensor.untyped_storage())


def _shares(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def test_what_asks_nothing_runs_for_all_strides() -> None:
    """Gaps between rows change nothing for a sum: no version for each width."""
    fast = irc.compile(lambda a: a.sum(1))
    with torch.no_grad():
        for width in (4, 5, 6):
            fast(torch.randn(3, width)[:, :4])
    assert statistics(fast).compilations == 1


@torch.no_grad()
def test_an_argument_in_another_ones_memory_lies_as_it_does() -> None:
    """What is traced for arguments that lie over each other is traced for how they lie."""
    fast = irc.compile(lambda a, b: b.as_strided((3,), (1,)) + a.is_contiguous())
    wide = torch.arange(52.0).reshape(4, 13)
    for a in (wide[:, 1::2], wide[:, :6]):
        assert torch.equal(fast(a, a[::2]), a[::2].as_strided((3,), (1,)))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("way", [irc.compile, _dynamo], ids=["irc.compile", "torch.compile"])
def test_memory_around_arguments_that_share_it_may_vary(
    way: Callable[..., Any], grad: bool, recwarn: pytest.WarningsRecorder
) -> None:
    def run(a: Tensor, b: Tensor) -> Tensor:
        b.mul_(2)
        return a + 1

    fast = way(run)
    with torch.set_grad_enabled(grad):
        for n in (12, 20, 12):
            mine, eagers = torch.arange(float(n)), torch.arange(float(n))
            assert torch.equal(fast(mine[:8], mine[2:10]), run(eagers[:8], eagers[2:10]))
            assert torch.equal(mine, eagers)
