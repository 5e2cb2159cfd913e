"""Views of memory read what eager's memory holds, however a program lays its values out."""

# pyright: basic
from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import irc

Function = Callable[..., Any]
Shapes = Sequence[tuple[int, ...]]

CASES: dict[str, tuple[Function, Shapes]] = {
    "of a difference": (
        lambda x: ((3 - x).as_strided((2,), (1,)), x.transpose(1, 2) @ x),
        [(2, 16, 2)],
    ),
    "of a repeat": (lambda x: x.repeat(2, 2).as_strided((2, 6), (6, 1)) * 2, [(2, 3)]),
    "with an offset": (lambda x: (x.t() * 2).as_strided((3, 2), (2, 1), 1), [(4, 3)]),
    "transposed": (lambda x: (x.t() * 2).as_strided((3, 2), (2, 1)), [(4, 3)]),
    "transposed twice": (lambda x: (x.t() * 2).t().as_strided((3, 2), (2, 1)), [(4, 3)]),
    "in another order": (lambda x: (x * 2).as_strided((3, 4), (1, 3)).sin(), [(4, 3)]),
    "overlapping": (lambda x: (x * 2).as_strided((4, 3), (2, 1), 1) * 2, [(4, 3)]),
    "of one number": (lambda x: (x + 1).as_strided((2, 3), (0, 0), 5), [(4, 3)]),
    "of an expanded": (lambda x: (x * 2).expand(4, 3).as_strided((3,), (1,)), [(1, 3)]),
    "around a slice": (lambda x: (x * 2)[1:].as_strided((2, 2), (1, 4), 2), [(4, 3)]),
    "of a slice": (lambda x: (x * 2)[1:].as_strided((2, 2), (1, 4)), [(4, 3)]),
    "of a convolution": (
        lambda x, w: F.conv2d(x, w).as_strided((2, 3), (3, 1)),
        [(2, 3, 5, 5), (4, 3, 1, 1)],
    ),
    "channels last": (
        lambda x: (x.to(memory_format=torch.channels_last) * 2).as_strided((2, 3), (3, 1)),
        [(2, 3, 5, 5)],
    ),
    "empty": (lambda x: (x * 2).as_strided((0, 3), (3, 1), 12).sum() + x.sum(), [(4, 3)]),
    "copied": (
        lambda x: torch.as_strided_copy(x.t() * 2, (2, 2), (1, 2), 1) * 2,
        [(4, 3)],
    ),
    "written": (
        lambda x, y: (x * 2).as_strided_scatter(y, (2, 2), (1, 4)).sin(),
        [(4, 3), (2, 2)],
    ),
    "written as a piece": (
        lambda x, y: (x * 2).as_strided_scatter(y, (2, 2), (1, 2), 3).sin(),
        [(4, 3), (2, 2)],
    ),
}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def laid(x: Tensor, how: str) -> Tensor:
    """Return equal numbers that lie otherwise."""
    if how == "transposed" and x.ndim > 1:
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    return torch.cat([x + 9, x])[x.shape[0] :] if how == "behind others" else x


@pytest.mark.parametrize("entry", [irc.compile, lambda f: torch.compile(f, backend="irc")])
@pytest.mark.parametrize("name", CASES)
def test_with_gradients(name: str, entry: Any) -> None:
    torch._dynamo.reset()
    f, shapes = CASES[name]
    fast = entry(f)
    operands = [draw(*shape, seed=i) for i, shape in enumerate(shapes)]
    results: list[list[Tensor]] = []
    for run in (f, fast):
        leaves = [x.clone().requires_grad_() for x in operands]
        outputs = run(*leaves)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        total = torch.stack([(y * y).sum() for y in outputs]).sum()
        results.append([*outputs, *torch.autograd.grad(total, leaves)])
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("name", CASES)
def test_inputs_that_lie_otherwise(name: str) -> None:
    """One compiled function meets arguments in other strides, and tells them apart."""
    f, shapes = CASES[name]
    fast = irc.compile(f)
    operands = [draw(*shape, seed=i) for i, shape in enumerate(shapes)]
    checked = 0
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for how in ("plain", "transposed", "behind others", "plain"):
            inputs = [laid(x, how) for x in operands]
            try:
                wanted = f(*inputs)
            except RuntimeError:  # beyond its memory, in eager
                continue
            torch.testing.assert_close(fast(*inputs), wanted, check_stride=False)
            checked += 1
    assert checked >= 2


LAST = torch.channels_last

RESIZED: dict[str, Function] = {
    "shorter": lambda x: torch.ops.aten.resize(x, (2, 3)),
    "channels last": lambda x: torch.ops.aten.resize(x, (1, 3, 2, 2), memory_format=LAST),
    "of a result": lambda x: torch.ops.aten.resize((x + 1).mT, (3, 2, 2)),
    "integers": lambda x: torch.ops.aten.resize((x * 10).int(), (2, 3, 1, 2), memory_format=LAST),
    "as another": lambda x: torch.ops.aten.resize_as(
        x, x.new_ones(1, 3, 2, 2).to(memory_format=LAST), memory_format=torch.preserve_format
    ),
    "of an expanded": lambda x: torch.ops.aten.resize((x + 1)[:1].expand(3, -1), (5,)),
}


@pytest.mark.parametrize("entry", [irc.compile, lambda f: torch.compile(f, backend="irc")])
@pytest.mark.parametrize("name", RESIZED)
def test_resized(name: str, entry: Any) -> None:
    """Resizing looks at memory: in another format the same numbers are at other places."""
    torch._dynamo.reset()
    f = RESIZED[name]
    fast = entry(f)
    with torch.no_grad():
        for how in ("plain", "transposed", "plain"):
            x = laid(draw(4, 6), how)
            torch.testing.assert_close(fast(x), f(x), check_stride=True)


def test_resized_to_more() -> None:
    """What is behind the memory of the operand is filled, as torch does where it is asked to."""
    x = torch.arange(3.0)
    more = irc.compile(lambda x: torch.ops.aten.resize(x, (2, 3)))(x)
    assert torch.equal(more[0], x)
    assert more[1].isnan().all()
    more = irc.compile(lambda x: torch.ops.aten.resize(x.int(), (2, 2)))(x)
    assert more.tolist() == [[0, 1], [2, torch.iinfo(torch.int32).max]]


def test_open_sizes() -> None:
    """What a view reads is told by the numbers of the sizes that are open."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        turned = (x + 1).mT
        return (
            torch.ops.aten.resize(x, (1, 3, 2, x.shape[0]), memory_format=LAST),
            turned.as_strided((x.shape[0], 3), (2, 3), 1) * 2,
        )

    fast = irc.compile(f, dynamic={"x": {0: "n"}}, fullgraph=True)
    with torch.no_grad():
        for size in (4, 5, 9):
            x = draw(size, 6)
            torch.testing.assert_close(fast(x), f(x), check_stride=True)


def test_memory_around_an_argument() -> None:
    """It is not the program's to read, but torch's; what lies inside the argument is."""
    big = torch.arange(20.0).reshape(5, 4)
    inside = irc.compile(lambda x: x.as_strided((3,), (2,), 8) * 2)
    assert inside(big[2:4]).tolist() == [16.0, 20.0, 24.0]
    around = irc.compile(lambda x: x.as_strided((3,), (2,), 0) * 2)
    assert around(big[2:4]).tolist() == [0.0, 4.0, 8.0]


@pytest.mark.parametrize("part", [slice(3, 2), slice(3, 1, 2), slice(-1, -3), slice(0, 0)])
@pytest.mark.parametrize("entry", [irc.compile, lambda f: torch.compile(f, backend="irc")])
def test_gradients_of_empty_slices(part: slice, entry: Any) -> None:
    """A slice may end before it starts; its gradient is zeros of the whole."""
    torch._dynamo.reset()
    x = draw(4, 3).requires_grad_()
    y = entry(lambda x: x[part] * 2)(x)
    assert y.shape == (0, 3)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, torch.zeros(4, 3, dtype=torch.float64))
    both = entry(lambda x: (x[:, part].sum(), x.sin()))(x)
    (gradient,) = torch.autograd.grad(both[0] + both[1].sum(), x)
    torch.testing.assert_close(gradient, x.cos())


@pytest.mark.parametrize("source", [(0, 3), (4, 0)])
def test_an_empty_source_is_written(source: tuple[int, int]) -> None:
    x, y = draw(4, 3), draw(*source)
    dim = source.index(0)
    f: Function = lambda x, y: x.slice_scatter(y, dim, 3, 2) * 2  # noqa: E731
    assert torch.equal(irc.compile(f)(x, y), f(x, y))
