"""Complex numbers are whole: results and gradients are eager's, whatever the op and the way in.

Each program holds many functions, so that one compile tries them all.
"""

# ruff: noqa: E501 - a case is a line
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import irc

Function = Callable[[torch.Tensor], Any]
COMPLEX = (torch.complex64, torch.complex128)


def _conjugated(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.conj()
    return y, y.resolve_conj(), y * 2, y @ x, y.imag, torch.view_as_real(y.resolve_conj()), y.mH


# fmt: off
UNARY: dict[str, Function] = {
    name: getattr(torch, name) for name in (
        "abs", "angle", "sgn", "neg", "positive", "reciprocal", "square", "exp", "exp2", "expm1",
        "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos",
        "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "real", "imag",
        "view_as_real", "conj_physical", "isnan", "isinf", "isfinite", "isreal", "logical_not",
        "sum", "mean", "prod", "var", "std", "count_nonzero", "any", "all", "norm", "clone",
        "zeros_like", "ones_like", "t", "fliplr", "triu", "diag",
    )
}
UNARY |= {
    "conj": _conjugated, "cumsum": lambda x: x.cumsum(0), "cumprod": lambda x: x.cumprod(1),
    "mean of a dim": lambda x: x.mean(1, keepdim=True),
    "var of a dim": lambda x: torch.var_mean(x, 0, correction=0),
    "std of a dim": lambda x: x.std(1, unbiased=True), "softsign": F.softsign,
    "norms": lambda x: (torch.linalg.vector_norm(x, 3), x.norm(dim=1), torch.linalg.norm(x)),
    "float": lambda x: (x.real + 1j * x.imag, torch.complex(x.real, x.imag)),
    "polar": lambda x: torch.polar(x.abs(), x.angle()), "pad": lambda x: F.pad(x, (1, 0), value=2),
    "modrelu": lambda x: torch.relu(x.abs() - 0.3) * torch.exp(1j * x.angle()),
    "views": lambda x: (x[1:, 0], x.reshape(-1), x.expand(2, 3, 3), x.flip(0), x.roll(1, 1), x.mT),
    "joins": lambda x: (torch.cat([x, x.abs()]), torch.stack([x, x.conj()]), x.repeat(2, 1)),
    "fft": lambda x: (torch.fft.fft(x), torch.fft.ifft2(x), torch.fft.irfft(x), torch.fft.rfft(x.real)),
    "spectrogram": lambda x: torch.stft(x.real.reshape(-1), 4, 2, window=torch.ones(4), return_complex=True).abs(),
    "linalg": lambda x: (torch.linalg.inv(x), torch.linalg.det(x), torch.linalg.svdvals(x), torch.linalg.solve(x, x[0])),
    "cast": lambda x: (x.to(torch.complex128), x.to(torch.bool)),
    "indexing": lambda x: (x[torch.tensor([0, 2])], x.gather(0, torch.tensor([[1, 0, 2]])), x.index_add(0, torch.tensor([1]), x[:1]), x.scatter_add(0, torch.tensor([[1, 0, 2]]), x[:1])),
}
BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "/": lambda x, y: x / y,
    "**": lambda x, y: x**y, "@": lambda x, y: x @ y, "==": lambda x, y: (x == y, x != x.conj()),
    "real and complex": lambda x, y: (x * y.real, y.abs() - x, x / (1 + y.imag**2), x.real**y),
    "matmuls": lambda x, y: (torch.addmm(x, x, y, alpha=0.5), torch.einsum("ij,kj->ik", x, y), F.linear(x, y, x[0]), torch.outer(x[0], y[1]), torch.bmm(x[None], y[None])),
    "dots": lambda x, y: (torch.vdot(x[0], y[0]), torch.dot(x[0], y[0]), torch.linalg.vecdot(x, y), torch.inner(x, y)),
    "where": lambda x, y: (torch.where(x.real > 0, x, y), x.masked_fill(y.imag > 0, 0.5), torch.where(x.real > 0, x, 2.0)),
    "lerp": lambda x, y: (torch.lerp(x, y, 0.3), torch.addcmul(x, x, y, value=0.5), torch.addcdiv(x, y, x, value=2)),
    "l1": lambda x, y: (F.l1_loss(x, y), (x - y).abs().square().mean(), torch.dist(x, y)),
    "conv": lambda x, y: F.conv1d(x[None], y[:, :, None]), "kron": lambda x, y: torch.kron(x, y),
}
# fmt: on


def _through(ways: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if ways == "irc.compile":
        return irc.compile(function)
    torch._dynamo.reset()
    return torch.compile(function, backend="irc")


def _equal(name: str, got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, equal_nan=True, msg=lambda text: f"{name}: {text}")


def _with_gradients(function: Callable[..., Any], *operands: torch.Tensor) -> list[Any]:
    """Return results, and the gradients of the operands for fixed gradients of the results."""
    operands = tuple(x.detach().clone().requires_grad_() for x in operands)
    results = torch.utils._pytree.tree_leaves(function(*operands))
    smooth = [y for y in results if y.requires_grad]
    generator = torch.Generator().manual_seed(1)
    seeds = [torch.randn(y.shape, dtype=y.dtype, generator=generator) for y in smooth]
    back = torch.autograd.grad(smooth, operands, seeds, allow_unused=True) if smooth else ()
    return [*results, *back]


def _complex(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(3, 3, dtype=dtype, generator=generator) for _ in range(2)]


def _together(functions: dict[str, Any]) -> Callable[..., Any]:
    return lambda *operands: [function(*operands) for function in functions.values()]


def _results(functions: dict[str, Any], way: str, *operands: torch.Tensor) -> None:
    """Compile functions as one, and hold each one's results against eager's."""
    together = _together(functions)
    with torch.no_grad():
        results = _through(way, together)(*operands)
        for name, got, want in zip(functions, results, together(*operands), strict=True):
            _equal(name, got, want)


def _gradients(functions: dict[str, Any], way: str, *operands: torch.Tensor) -> None:
    """Compile functions as one, and hold results and gradients against eager's."""
    together = _together(functions)
    results = _with_gradients(_through(way, together), *operands)
    wanted = _with_gradients(together, *operands)
    for index, (got, want) in enumerate(zip(results, wanted, strict=True)):
        _equal(f"result or gradient {index}", got, want)


def test_complex_numbers_are_whole() -> None:
    x, y = _complex(torch.complex64)
    _results(UNARY, "irc.compile", x)
    _results(BINARY, "irc.compile", x, y)


def test_gradients_of_complex_numbers_are_whole() -> None:
    x, y = _complex(torch.complex64)
    _gradients(UNARY, "torch.compile", x)
    _gradients(BINARY, "torch.compile", x, y)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("way", ["irc.compile", "torch.compile"])
def test_each_function_of_complex_numbers(way: str, dtype: torch.dtype) -> None:
    x, y = _complex(dtype)
    for try_one in (_results, _gradients):
        for name, function in UNARY.items():
            try_one({name: function}, way, x)
        for name, pair in BINARY.items():
            try_one({name: pair}, way, x, y)


@pytest.mark.parametrize("way", ["irc.compile", "torch.compile"])
def test_lazy_conjugates_and_negatives_as_operands(way: str) -> None:
    x, y = _complex(torch.complex64)
    with torch.no_grad():
        function = _through(way, lambda x, y, z: (x * 2, x + y, z * 2, z - y.imag, x @ y))
        for operands in ((x.conj(), y, x.conj().imag), (x, y.conj(), y.imag)):
            for got, want in zip(
                function(*operands),
                (
                    operands[0] * 2, operands[0] + operands[1], operands[2] * 2,
                    operands[2] - operands[1].imag, operands[0] @ operands[1],
                ),
                strict=True,
            ):  # fmt: skip
                torch.testing.assert_close(got, want)


@pytest.mark.parametrize("way", ["irc.compile", "torch.compile"])
@pytest.mark.parametrize("name", ["pinverse", "linalg.pinv"])
def test_the_first_call_computes_what_others_do(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AOTAutograd makes it under a mode, and there torch's own composite ops may be wrong."""
    monkeypatch.setenv("IRC_FIRST_TIMING", "off")
    x, _ = _complex(torch.complex64)
    function = torch.pinverse if name == "pinverse" else torch.linalg.pinv
    fast, plain = _through(way, lambda x: function(x)), lambda x: function(x)
    for _ in range(2):
        _equal("result", fast(x), plain(x))
        for got, want in zip(_with_gradients(fast, x), _with_gradients(plain, x), strict=True):
            _equal("result or gradient", got, want)
