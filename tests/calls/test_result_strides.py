"""Results lie in memory as eager's: channels last, transposed, in the columns of LAPACK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import irc


def backend(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile by way of Dynamo."""
    torch._dynamo.reset()
    return torch.compile(function, backend="irc")


IMAGE = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
BATCH = torch.randn(3, 4, 4)
POSITIVE = BATCH @ BATCH.mT + torch.eye(4)
TURNED = torch.randn(3, 4).t()


def laid(shape: tuple[int, ...], strides: tuple[int, ...]) -> Callable[..., torch.Tensor]:
    """Return what copies a tensor to memory of its own in which it has strides."""
    return lambda x: torch.empty_strided(shape, strides, dtype=x.dtype).copy_(x)


def resized(first: tuple[int, ...], then: tuple[int, ...]) -> Callable[..., torch.Tensor]:
    """Return what looks at the beginning of a copy's memory, channels last."""
    last = torch.channels_last
    return lambda x: (x + 1).reshape(first).resize_(then, memory_format=last) * 2


def resized_beside_a_view(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x + 1
    row = y[0]
    return y.resize_(1, 3, 2, 4, memory_format=torch.channels_last) * 2, row * 3


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "cholesky": (torch.linalg.cholesky, (POSITIVE,)),
    "cholesky_inverse": (torch.cholesky_inverse, (POSITIVE[0],)),
    "eigh": (lambda a: torch.linalg.eigh(a)[0], (POSITIVE[0],)),
    "inv": (torch.linalg.inv, (POSITIVE,)),
    "lu_factor": (torch.linalg.lu_factor, (BATCH,)),
    "qr": (torch.linalg.qr, (BATCH,)),
    "solve": (torch.linalg.solve, (POSITIVE, BATCH)),
    "solve one": (torch.linalg.solve, (POSITIVE[0], BATCH[0])),
    "svdvals": (torch.linalg.svdvals, (BATCH,)),
    "relu": (torch.relu, (IMAGE,)),
    "conv2d": (F.conv2d, (IMAGE, torch.randn(5, 3, 3, 3))),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (IMAGE,)),
    "max_unpool2d": (
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
        (IMAGE,),
    ),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2), (IMAGE,)),
    "to channels last": (
        lambda x: (x + 1).to(memory_format=torch.channels_last),
        (IMAGE.contiguous(),),
    ),
    "two of one": (lambda x: ((y := x.exp()), y.sum((2, 3)), y.mT + 1), (IMAGE,)),
    "exp": (torch.exp, (TURNED,)),
    "roll": (
        lambda x: (x.roll(1, 0), x.roll((1, -1), (2, 3)) * 2, x.roll(3), x.roll(-5, 1)),
        (IMAGE,),
    ),
    "roll by nothing": (
        lambda x: (x.roll(0, 0) + 1, x.roll((8, 1), (2, 3)), x.roll(2, 0)),
        (IMAGE,),
    ),
    "roll turned": (lambda x: (x.roll(1, 0), x.roll((1, 1), (0, 1))), (TURNED,)),
    "clone": (torch.clone, (TURNED,)),
    "plus row-major": (torch.add, (TURNED, torch.randn(4, 3))),
    "sort": (lambda x: x.sort(0), (TURNED,)),
    "product": (lambda x: (x @ x).mT.exp(), (BATCH,)),
    "permuted": (lambda x: x.permute(2, 0, 1) + 1, (BATCH,)),
    "rows with gaps": (laid((3, 4), (7, 1)), (BATCH[0, :3],)),
    "columns with gaps": (laid((4, 4), (1, 5)), (BATCH[0],)),
    "gaps in gaps": (laid((3, 4, 4), (3, 70, 13)), (BATCH,)),
    "every second": (laid((4,), (2,)), (BATCH[0, 0],)),
    "integers with gaps": (laid((4, 4), (5, 1)), (torch.arange(16).reshape(4, 4),)),
    "part with gaps": (lambda x: laid((4, 4), (5, 1))(x)[1:3, 1:], (BATCH[0],)),
    "three with gaps": (
        lambda x: ((y := laid((4, 4), (5, 1))(x)), y.t(), y[1:], y.exp()),
        (BATCH[0],),
    ),
    "no row": (laid((0, 3), (5, 1)), (torch.empty(0, 3),)),
    "resized rows": (resized((2, 3, 4, 4), (2, 3, 2, 4)), (IMAGE.contiguous(),)),
    "resized to other dims": (resized((6, 4, 2, 2), (1, 6, 3, 2)), (IMAGE.contiguous(),)),
    "resized images": (
        lambda x: (x + 1).resize_(2, 3, 2, 4, memory_format=torch.channels_last) * 2,
        (IMAGE,),
    ),
    "resized as images": (
        lambda x: (x * 2).contiguous().resize_as_(x[:1], memory_format=torch.channels_last) + 0,
        (IMAGE,),
    ),
    "one channel": (torch.relu, (IMAGE[:, :1].contiguous(memory_format=torch.channels_last),)),
}


@pytest.mark.parametrize("compiler", [irc.compile, backend], ids=["irc.compile", "torch.compile"])
@pytest.mark.parametrize("name", CASES)
def test_strides_are_those_of_eager(name: str, compiler: Callable[..., Any]) -> None:
    function, args = CASES[name]
    compiled = compiler(function)
    with torch.no_grad():
        want = function(*args)
        for _ in range(2):  # the second call goes the short way
            got = compiled(*args)
            torch.testing.assert_close(got, want, check_stride=True)
            assert memory(got) == memory(want)


@pytest.mark.filterwarnings("ignore::irc.calls.left.LeftToTorchWarning")
def test_a_view_of_what_is_resized_stays_as_it_was() -> None:
    with torch.no_grad():
        want = resized_beside_a_view(IMAGE)
        got = irc.compile(resized_beside_a_view)(IMAGE)
    torch.testing.assert_close(got, want, check_stride=True)


OPEN: dict[str, Callable[[torch.Tensor], Any]] = {
    "as the argument": lambda x: torch.empty_strided(x.size(), x.stride()).copy_(x + x),
    "two more": lambda x: laid(x.shape, (x.shape[1] + 2, 1))(x),
    "columns": lambda x: (lambda y: (y, y.t(), y[1:]))(laid(x.shape, (1, x.shape[0] * 2))(x)),
    "turned": lambda x: laid((3, *x.shape), (1, x.shape[1] * 5 + 1, 4))(x),
}


@pytest.mark.filterwarnings("ignore::irc.calls.recompiles.RecompileWarning")
@pytest.mark.parametrize("compiler", [irc.compile, torch.compile], ids=["irc", "torch"])
@pytest.mark.parametrize("name", OPEN)
def test_gaps_of_open_sizes(name: str, compiler: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    function = OPEN[name]
    options = {"backend": "irc"} if compiler is torch.compile else {}
    compiled = compiler(function, dynamic=True, **options)
    with torch.no_grad():
        for shape, strides in (
            ((16, 8), (16, 1)),
            ((17, 8), (20, 1)),
            ((5, 16), (16, 1)),
            ((4, 3), (1, 9)),
            ((16, 8), (16, 1)),
        ):
            x = torch.empty_strided(shape, strides).normal_()
            got, want = compiled(x), function(x)
            torch.testing.assert_close(got, want, check_stride=True)
            assert memory(got) == memory(want)


def memory(results: Any) -> list[tuple[int, int]]:
    """Say of tensors where each starts in which memory, by the first that lies in it."""
    tensors = [results] if isinstance(results, torch.Tensor) else list(results)
    storages = [x.untyped_storage().data_ptr() for x in tensors]
    return [(x.storage_offset(), storages.index(s)) for x, s in zip(tensors, storages, strict=True)]


@pytest.mark.parametrize("way", [irc.compile, backend], ids=["compile", "backend"])
@pytest.mark.parametrize(
    "write",
    [
        lambda x, out: torch.mul(x, 2, out=out),
        lambda x, out: torch.exp(x, out=out),
        lambda x, out: torch.sum(x[None].expand(3, 4, 5), 0, out=out),
        lambda x, out: torch.add(x, x, alpha=2, out=out),
    ],
    ids=["mul", "exp", "sum", "add"],
)
@pytest.mark.parametrize(
    "new",
    [
        lambda: torch.empty(5, 4).t(),
        lambda: torch.empty(5, 4, dtype=torch.float64).t(),
        lambda: torch.empty(4, 10)[:, ::2],
        lambda: torch.empty(4, 5),
    ],
    ids=["turned", "wider", "with gaps", "rows"],
)
def test_what_is_made_of_an_out_lies_as_it_does(
    new: Callable[[], torch.Tensor], write: Any, way: Any
) -> None:
    def call(x: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return write(x, out) + 1, out.exp()

    x, mine, theirs = torch.randn(4, 5), new(), new()
    results, wanted = way(call)(x, mine), call(x, theirs)
    for got, want in zip((*results, mine), (*wanted, theirs), strict=True):
        assert torch.allclose(got, want)
        assert (got.stride(), got.dtype) == (want.stride(), want.dtype)


@pytest.mark.filterwarnings("error::irc.calls.left.LeftToTorchWarning")
@pytest.mark.parametrize("dims", [(), (0,), (1,), (1, 0)])
def test_open_sizes_are_rolled(dims: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    rolled = torch.compile(
        lambda x: x.roll((3,) * max(len(dims), 1), dims) * 2, backend="irc", dynamic=True
    )
    for rows in (4, 5, 7):
        x = torch.randn(rows, 3)
        assert torch.equal(rolled(x), x.roll((3,) * max(len(dims), 1), dims) * 2)
