"""Concat and pad as kernels: alone, fused, of computed pieces, nested; through the CPU backend."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import irc
from irc.plan.schema import Library
from irc.runtime.executor import Executor

Fn = Callable[..., Tensor]


class Wrapped(nn.Module):
    """A function as a module."""

    def __init__(self, fn: Fn) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *x: Tensor) -> Tensor:
        return self.fn(*x)


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The library ops of the plans that are made while a test runs."""
    ops: list[str] = []
    original = Executor.__init__

    def spy(self: Executor, loaded, *args, **options) -> None:
        ops.extend(a.op for a in loaded.plan.actions if isinstance(a, Library))
        original(self, loaded, *args, **options)

    monkeypatch.setattr(Executor, "__init__", spy)
    return ops


def rotate(x: Tensor, cut: int) -> Tensor:
    return torch.cat([-x[..., cut:], x[..., :cut]], -1) * x + x.sin()


pad = nn.functional.pad
CASES: dict[str, Fn] = {
    "equal": lambda a, b, c: torch.cat([a, b], -1),
    "unequal, computed": lambda a, b, c: torch.cat([a, c[..., :1], c * 2, a.exp()], -1),
    "rotary": lambda a, b, c: rotate(a, 4),
    "rotary, uneven": lambda a, b, c: rotate(a, 3),
    "under a reduction": lambda a, b, c: torch.cat([a, b], 1).transpose(1, 2).softmax(-1),
    "dims of two strides": lambda a, b, c: (
        torch.cat([a.transpose(0, 1).reshape(5, 24), c.transpose(0, 1).reshape(5, 9)], 1) + 1
    ),
    "with a literal": lambda a, b, c: torch.cat([a, torch.ones(3, 5, 2)], -1),
    "of reductions": lambda a, b, c: torch.cat([a[:, :2].softmax(-1), a[:, 3:]], 1),
    "of positions": lambda a, b, c: torch.cat([torch.arange(8) * a[0, 0], a[0, 1, 2:]]),
    "stacked inside": lambda a, b, c: torch.stack([a, b], -1).flatten(-2),
    "of many small ones": lambda a, b, c: torch.cat([a + i for i in range(9)], 1),
    "pad": lambda a, b, c: pad(a, (1, 2, 0, 3), value=2.5),
    "pad and crop": lambda a, b, c: pad(a, (1, -2, -1, 3), value=2.5).relu().sum(-1),
    "crop to one, all padding": lambda a, b, c: pad(a[..., :3], (1, -3), value=4.0) + 1,
    "nested": lambda a, b, c: pad(pad(a, (1, 2)) * 2, (2, 1, 1, 0), value=5),
    "pad of bools": lambda a, b, c: pad(a > 0, (3, 2), value=True),
    "pad of halves": lambda a, b, c: pad(a.bfloat16(), (3, 0), value=-1.5),
    "pad of integers": lambda a, b, c: pad((a * 9).long(), (0, 1, 2, 0), value=-7),
}


@pytest.mark.parametrize("fn", CASES.values(), ids=CASES)
def test_pieces_equal_torch_without_a_library(fn: Fn, libraries: list[str]) -> None:
    torch.manual_seed(0)
    operands = torch.randn(3, 5, 8), torch.randn(3, 5, 8), torch.randn(3, 5, 3)
    want, output = fn(*operands), irc.compile(Wrapped(fn))(*operands)
    assert output.shape == want.shape and output.dtype == want.dtype
    assert torch.allclose(output.double(), want.double(), atol=1e-6)
    assert not libraries


def test_a_concat_of_many_large_tensors_is_the_librarys(libraries: list[str]) -> None:
    x = torch.randn(64, 1000)
    fn: Fn = lambda x: torch.cat([x * i for i in range(6)], 1)  # noqa: E731
    assert torch.equal(irc.compile(Wrapped(fn))(x), fn(x))
    assert libraries == ["flow.concat"]
