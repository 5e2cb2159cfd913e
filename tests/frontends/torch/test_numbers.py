"""Python numbers beside tensors of every dtype mean what they mean in eager.

Each program holds many functions, so that one compile tries them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import irc
from irc.errors import IrcError

Function = Callable[[torch.Tensor], Any]

REAL = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
COMPLEX = (torch.complex64, torch.complex128)
NUMBERS = (0.5, -2, True, 3, -1.75, 300, 70000, 1e6, 1.5 - 0.5j, 1j, float("inf"), 2**40)
FEW = (0.5, -2, True, 300, 1.5 - 0.5j)

# fmt: off
# What a tensor and a number give.
LITERALS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "+": lambda x, n: (x + n, n + x), "-": lambda x, n: x - n, "- of": lambda x, n: n - x,
    "*": lambda x, n: (x * n, n * x), "/": lambda x, n: x / n, "/ of": lambda x, n: n / x,
    "**": lambda x, n: x ** n, "** of": lambda x, n: n ** x, "//": lambda x, n: x // n,
    "// of": lambda x, n: n // x, "%": lambda x, n: x % n, "% of": lambda x, n: n % x,
    "==": lambda x, n: (x == n, x != n), "<": lambda x, n: (x < n, x >= n),
    "&": lambda x, n: x & n, "fmod": lambda x, n: torch.fmod(x, n),
    "add": lambda x, n: torch.add(x, x, alpha=n), "sub": lambda x, n: torch.sub(x, x, alpha=n),
    "rsub": lambda x, n: torch.rsub(x, x, alpha=n), "lerp": lambda x, n: torch.lerp(x, x * x, n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "addcdiv": lambda x, n: torch.addcdiv(x, x, x, value=n),
    "where": lambda x, n: torch.where(x == x[0], x, n),
    "where of": lambda x, n: torch.where(x == x[0], n, x),
    "masked_fill": lambda x, n: x.masked_fill(x == x[0], n),
    "index_fill": lambda x, n: x.index_fill(0, torch.tensor([1]), n),
    "scatter": lambda x, n: x.scatter(0, torch.tensor([1, 2]), n),
    "full_like": lambda x, n: torch.full_like(x, n), "new_full": lambda x, n: x.new_full((2,), n),
    "full": lambda x, n: torch.full((2,), n, dtype=x.dtype) + x[0],
    "fill": lambda x, n: x.clone().fill_(n), "pad": lambda x, n: F.pad(x, (1, 2), value=n),
    "clamp": lambda x, n: (x.clamp(min=n), x.clamp(max=n)),
    "write": lambda x, n: _written(x, n),
    "div floor": lambda x, n: torch.div(x, n, rounding_mode="floor"),
    "div trunc": lambda x, n: torch.div(x, n, rounding_mode="trunc"),
    "copysign": lambda x, n: torch.copysign(x, n),
    "addmv": lambda x, n: torch.addmv(x, torch.outer(x, x), x, alpha=n, beta=n),
    "addmm": lambda x, n: torch.addmm(x, torch.outer(x, x), torch.outer(x, x), alpha=n, beta=n),
    "baddbmm": lambda x, n: torch.baddbmm(_square(x), _square(x), _square(x), alpha=n, beta=n),
    "leaky_relu": lambda x, n: F.leaky_relu(x, n), "elu": lambda x, n: F.elu(x, n),
    "threshold": lambda x, n: F.threshold(x, 1, n), "hardtanh": lambda x, n: F.hardtanh(x, -1, n),
    "softplus": lambda x, n: F.softplus(x, n), "nan_to_num": lambda x, n: x.nan_to_num(n, n, n),
}
# fmt: on


def _square(x: torch.Tensor) -> torch.Tensor:
    return torch.outer(x, x)[None]


def _written(x: torch.Tensor, number: Any) -> torch.Tensor:
    y = x.clone()
    y[1:3] = number
    return y


def values(dtype: torch.dtype) -> torch.Tensor:
    """Return some numbers of a dtype, none of them zero."""
    if dtype is torch.bool:
        return torch.tensor([True, False, True, True])
    if dtype.is_complex:
        return torch.tensor([1.5 - 0.5j, -2 + 1j, 0.25j, -1.0], dtype=dtype)
    numbers = torch.tensor([1.5, -2.0, 0.25, 3.0] if dtype.is_floating_point else [1, 2, 100, 3])
    return numbers.to(dtype)


def runs(function: Function, x: torch.Tensor) -> bool:
    """True where eager computes a function."""
    try:
        function(x)
    except Exception:  # whatever it says
        return False
    return True


def compare(functions: dict[str, Function], x: torch.Tensor) -> None:
    """Compile functions as one program, and hold each result against eager's."""

    def together(x: torch.Tensor) -> list[Any]:
        return [function(x) for function in functions.values()]

    with torch.no_grad():
        results = irc.compile(together)(x)
        for name, got, want in zip(functions, results, together(x), strict=True):
            _equal(name, got, want)


def _equal(name: str, got: Any, want: Any) -> None:
    def message(text: str) -> str:
        return f"{name}: {text}"

    torch.testing.assert_close(got, want, equal_nan=True, msg=message)


def with_number(function: Callable[[torch.Tensor, Any], Any], number: Any) -> Function:
    """Return a function of a tensor alone."""
    return lambda x: function(x, number)


def literals(dtype: torch.dtype, numbers: Sequence[Any]) -> None:
    """Try all functions with all numbers on one dtype."""
    x = values(dtype)
    functions = {
        f"{name} of {number}": with_number(function, number)
        for name, function in LITERALS.items()
        for number in numbers
        if not _is_lost_in_the_trace(name, number, dtype)
    }
    compare({name: f for name, f in functions.items() if runs(f, x)}, x)


def _is_lost_in_the_trace(name: str, number: Any, dtype: torch.dtype) -> bool:
    """True where torch.export itself gives another dtype than eager, or refuses."""
    if dtype is not torch.bool:
        return False
    return name == "**" or (name == "masked_fill" and isinstance(number, complex))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float16, torch.uint8], ids=str)
def test_a_python_number_is_what_it_is_in_eager(dtype: torch.dtype) -> None:
    literals(dtype, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [*COMPLEX, *REAL, *WHOLE], ids=str)
def test_all_python_numbers_are_what_they_are_in_eager(dtype: torch.dtype) -> None:
    literals(dtype, NUMBERS)


REFUSED: dict[str, tuple[Function, torch.dtype]] = {
    "full of uint8": (lambda x: torch.full_like(x, 300), torch.uint8),
    "masked_fill of int8": (lambda x: x.masked_fill(x == 1, 200), torch.int8),
    "where of float32": (lambda x: torch.where(x > 0, x, 1e39), torch.float32),
    "full of float16": (lambda x: torch.full_like(x, 1e6), torch.float16),
    "full of infinity": (lambda x: torch.full_like(x, float("inf")), torch.int64),
    "an order of complex numbers": (lambda x: x < 2, torch.complex64),
    "integers to negative powers": (lambda x: x**-1, torch.int64),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_number_that_eager_refuses_is_refused(name: str) -> None:
    function, dtype = REFUSED[name]
    x = values(dtype)
    assert not runs(function, x)
    with pytest.raises((RuntimeError, IrcError)):
        irc.compile(function)(x)


def test_the_spread_of_values_far_from_zero_is_that_of_eager() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 256) * 0.02 + 1e4
    for dim in (0, 1):
        with torch.no_grad():
            spread = irc.compile(lambda x, dim=dim: x.var(dim))(x)
        torch.testing.assert_close(spread, x.var(dim), rtol=1e-5, atol=0)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("through", ["irc.compile", "torch.compile"])
def test_powers_of_negative_numbers(through: str, grad: bool) -> None:
    def of_literal(x: torch.Tensor, n: int) -> list[torch.Tensor]:
        return [(-2.0) ** x, x * n**2, (-0.0) ** x, (-1.5) ** (x * 2)]

    run = irc.compile(of_literal) if through == "irc.compile" else None
    run = run or torch.compile(of_literal, backend="irc")
    for rows, n in ((2, 3), (2, 2), (5, -2)):
        x = (torch.arange(rows) + 1.0).requires_grad_(grad)
        torch.testing.assert_close(run(x, n), of_literal(x, n))


SPACED = [(-3, 3, 50), (0, 1, 7), (0.1, 0.7, 33), (2, -5, 17), (1, 9, 999), (0, 1, 2), (4, 9, 1),
          (0.3, 10.1, 4096), (-7.3, 8.25, 123), (1e-3, 3e-3, 31)]  # fmt: skip
STEPPED = [(0.1, 10, 0.1), (0.0, 2.0, 0.25), (0, 3000, 1), (5, -5, -0.3), (1.0, 600.0, 3.0)]
NUMBERS = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.uint8)


@pytest.mark.parametrize(
    "way", [irc.compile, lambda f: torch.compile(f, backend="irc")], ids=["compile", "backend"]
)
@pytest.mark.parametrize("dtype", NUMBERS)
def test_evenly_spaced_numbers_are_those_of_eager(dtype: torch.dtype, way: Any) -> None:
    """Bit for bit: they are bounds of buckets and places of interpolation."""
    if not torch.backends.cpu.get_cpu_capability().startswith(("AVX2", "AVX512")):
        pytest.skip("torch rounds float32 twice on such a processor")

    def spaced(zero: torch.Tensor) -> list[torch.Tensor]:
        bounds = [n for n in SPACED if min(n) >= 0 or dtype != torch.uint8]
        numbers = [torch.linspace(*n, dtype=dtype) for n in bounds]
        if dtype.is_floating_point:
            numbers += [torch.arange(*n, dtype=dtype) for n in STEPPED]
        return [zero + each for each in numbers]

    torch._dynamo.reset()
    zero = torch.zeros((), dtype=dtype)
    for mine, theirs in zip(way(spaced)(zero), spaced(zero), strict=True):
        assert torch.equal(mine, theirs)
