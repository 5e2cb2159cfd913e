"""Gradients lie in memory as eager's: views of what comes in, columns, and rows where eager has."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import irc


def backend(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile by way of Dynamo."""
    torch._dynamo.reset()
    return torch.compile(function, backend="irc")


X, Y = torch.randn(3, 4), torch.randn(3, 2)
SQUARE = torch.randn(4, 4) + 5 * torch.eye(4)
IMAGE = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
COMPLEX = torch.randn(3, 4, dtype=torch.complex64)

CASES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "hstack": (lambda x, y: torch.hstack([x, y]), (X, Y)),
    "stack": (lambda x, y: torch.stack([x, y], -1).sin(), (X, X + 1)),
    "sum": (torch.sum, (X,)),
    "sum of rows": (lambda x: x.sum(1), (X,)),
    "transposed": (lambda x: x.mT * 2, (X,)),
    "columns": (torch.exp, (X.mT.contiguous().mT,)),
    "fft": (lambda x: torch.fft.fft(x).abs(), (X,)),
    "solve": (torch.linalg.solve, (SQUARE, X.mT.contiguous())),
    "cholesky": (lambda x: torch.linalg.cholesky(x @ x.mT), (SQUARE,)),
    "parts of complex": (torch.complex, (X, X + 1)),
    "complex of parts": (lambda x: torch.view_as_complex(x) * 1.0, (torch.randn(3, 2),)),
    "einsum": (lambda x, w: torch.einsum("sd,dhk->shk", x, w), (X, torch.randn(4, 2, 3))),
    "linear": (F.linear, (X, torch.randn(5, 4), torch.randn(5))),
    "channels last": (lambda x: F.max_pool2d(x, 2), (IMAGE,)),
    "half": (lambda x: x.half().t(), (X,)),
}


def gradients(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...]
) -> tuple[list[Tensor], list[tuple[bool, int]]]:
    """Return gradients, and where each lies in the memory of the one that comes in, if it does."""
    inputs = tuple(x.detach().requires_grad_() for x in inputs)
    result = function(*inputs)
    torch.manual_seed(0)
    # AOTAutograd lays them as the result: so they lie here.
    weights = torch.empty_like(result).copy_(torch.randn(result.shape, dtype=torch.float64))
    input_gradients = torch.autograd.grad(result, inputs, weights)
    memory = weights.untyped_storage().data_ptr()
    places = [
        (x.untyped_storage().data_ptr() == memory, int(x.storage_offset())) for x in input_gradients
    ]
    return list(input_gradients), places


@pytest.mark.parametrize("compiler", [irc.compile, backend], ids=["irc.compile", "torch.compile"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_lie_as_those_of_eager(name: str, compiler: Callable[..., Any]) -> None:
    function, inputs = CASES[name]
    (want, wanted), (got, places) = (gradients(f, inputs) for f in (function, compiler(function)))
    torch.testing.assert_close(got, want, check_stride=True, rtol=1e-4, atol=1e-4)
    assert places == wanted


def test_parts_of_a_conjugate_have_its_signs() -> None:
    """A conjugate may be one by name only: its memory has the other signs."""
    parts = [x.requires_grad_() for x in torch.randn(2, 3)]
    conjugate = COMPLEX[:, 0].conj()
    real, imaginary = torch.autograd.grad(backend(torch.complex)(*parts), parts, conjugate)
    torch.testing.assert_close(torch.complex(real, imaginary), conjugate.resolve_conj())


OPEN = ("hstack", "sum of rows")


@pytest.mark.filterwarnings("ignore::irc.calls.recompiles.RecompileWarning")
@pytest.mark.parametrize("name", OPEN)
def test_gradients_of_open_sizes(name: str) -> None:
    torch._dynamo.reset()
    function, inputs = CASES[name]
    compiled = torch.compile(function, backend="irc", dynamic=True)
    for times in (1, 2, 3):
        more = tuple(x.repeat(times, 1) for x in inputs)
        got, want = gradients(compiled, more), gradients(function, more)
        torch.testing.assert_close(got[0], want[0], check_stride=True)
        assert got[1] == want[1]


SHARING: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "one view": (lambda x, y: (x + y).flatten(), (X, X + 1)),
    "one more dim": (lambda x, y: (x + y)[None], (X, X + 1)),
    "itself and a view": (lambda x, y: x.flatten() + y, (X, torch.randn(12))),
    "parts that overlap": (lambda x, y: torch.cat([x[:2] + y, x[2:]]), (X, X[:2] + 1)),
    "a view of what is computed": (lambda x, y: (x + y).mT.sin().flatten(), (X, X + 1)),
}


@pytest.mark.parametrize("compiler", [irc.compile, backend], ids=["irc.compile", "torch.compile"])
@pytest.mark.parametrize("name", SHARING)
def test_gradients_are_added_to_apart(name: str, compiler: Callable[..., Any]) -> None:
    function, inputs = SHARING[name]
    compiled = compiler(function)
    wanted = [x.detach().requires_grad_() for x in inputs]
    leaves = [x.detach().requires_grad_() for x in inputs]
    weights = torch.randn(function(*inputs).shape)
    for call, own in ((function, wanted), (compiled, leaves)):
        for _ in range(3):
            (call(*own) * weights).sum().backward()
    torch.testing.assert_close([x.grad for x in leaves], [x.grad for x in wanted])
    first, second = leaves
    assert first.grad is not None
    assert second.grad is not None
    before = second.grad.clone()
    first.grad.mul_(2)
    assert torch.equal(second.grad, before)


@pytest.mark.parametrize("compiler", [irc.compile, backend], ids=["irc.compile", "torch.compile"])
def test_gradients_in_two_shapes_are_added_to_apart(compiler: Callable[..., Any]) -> None:
    """Eager itself keeps both as views of one memory, and adds what comes to either to both."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return x.flatten() + y.flatten()

    compiled = compiler(function)
    leaves = [torch.randn(3, 4).requires_grad_(), torch.randn(4, 3).requires_grad_()]
    weights = torch.randn(12)
    for _ in range(3):
        (compiled(*leaves) * weights).sum().backward()
    for x in leaves:
        assert x.grad is not None
        torch.testing.assert_close(x.grad.flatten(), 3 * weights)


DETERMINANTS: dict[str, Any] = {
    "det": torch.linalg.det,
    "slogdet": lambda x: torch.linalg.slogdet(x)[1],
    "logdet": lambda x: torch.logdet(x @ x.mT),
    "turned": lambda x: torch.linalg.det((x * 2).mT),
    "several": lambda x: torch.linalg.det(torch.stack([x, 2 * x]).mT).sum(),
    "complex": lambda x: torch.linalg.det(torch.complex(x, x.mT)).abs(),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", DETERMINANTS)
def test_gradients_of_determinants_of_what_lies_by_columns(name: str, dynamic: bool) -> None:
    """Torch factors a matrix or its transpose, as it lies, and the gradient reads which."""
    torch._dynamo.reset()
    function = DETERMINANTS[name]
    fast = irc.compile(function, dynamic=dynamic)
    for n in (3, 4):
        x = torch.randn(n, n, generator=torch.Generator().manual_seed(n)) + 2 * torch.eye(n)
        for rows in (x, x.t()):
            matrix = rows.detach().requires_grad_()
            (mine,) = torch.autograd.grad(fast(matrix), matrix)
            (theirs,) = torch.autograd.grad(function(matrix), matrix)
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
