"""The error of every pointwise function in ulp, over dense samples of its range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mpmath
import numpy as np
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block

from irc.backends.cpu import Features, KernelCall, emit, load_segment
from irc.dialects.builder import argument_attrs, finish_function
from irc.dialects.task import KernelOp
from irc.dialects.types import TensorType
from irc.ops.functions import POINTWISE
from irc.pipeline import Options, default_pipeline, run_passes
from tests.fuzz.flow import FlowMeaning

ACCURACY = {name: row.accuracy for name, row in POINTWISE.items() if row.accuracy}
FEW, MANY, DOUBLES = 20_011, 1_000_003, 401
DIGITS = 60


@dataclass(frozen=True)
class Error:
    """The largest error of a function, and where it is."""

    ulps: float
    at: float


def evaluate(
    names: list[str], x: torch.Tensor, dtype: str, features: Features | None = None
) -> dict[str, torch.Tensor]:
    """Compute functions by the CPU backend, each in a kernel of its own."""
    kernels: list[KernelOp] = []
    for name in names:
        block = Block(arg_types=[TensorType.of(x.shape, dtype)])
        value = FlowMeaning(block).fn(name, block.args[0])
        func = finish_function("forward", block, [value], arg_attrs=[argument_attrs("input", "x")])
        module = ModuleOp([func])
        run_passes(module, default_pipeline(Options()))
        kernels += [op for op in module.body.block.ops if isinstance(op, KernelOp)]
    results = [torch.empty_like(x) for _ in names]
    calls = [KernelCall(i, ((0, 0), (i + 1, 0))) for i in range(len(names))]
    segment = load_segment([emit(k, features) for k in kernels], calls, 1, features)
    segment.run_pointers([x.data_ptr(), *[r.data_ptr() for r in results]])
    return dict(zip(names, results, strict=True))


def singles(low: float, high: float, count: int = FEW) -> torch.Tensor:
    """Return float32 numbers of a range, evenly among all that there are."""
    first, last = (_ordinal(np.float32(x)) for x in (low, high))
    ordinals = np.linspace(first, last, count).astype(np.int64)
    bits = np.where(ordinals < 0, 0x80000000 - ordinals, ordinals).astype(np.uint32)
    numbers = bits.view(np.float32)
    return torch.from_numpy(numbers[(numbers >= low) & (numbers <= high)].copy())


def doubles(low: float, high: float) -> torch.Tensor:
    """Return float64 numbers: of all magnitudes, and evenly spaced."""
    coarse = singles(low, high).double()
    coarse = coarse[:: max(1, len(coarse) // DOUBLES)]
    bits = torch.linspace(0.001, 0.999, len(coarse), dtype=torch.float64) * 2.0**-23
    near = max(low, -30.0), min(high, 30.0)
    even = torch.linspace(*near, DOUBLES, dtype=torch.float64)
    numbers = torch.cat([coarse * (1 + bits), even])
    return numbers[(numbers >= low) & (numbers <= high)]


def _ordinal(x: np.float32) -> int:
    bits = int(np.asarray(x, np.float32).view(np.uint32))
    return 0x80000000 - bits if bits >> 31 else bits


def error_of_singles(name: str, x: torch.Tensor, results: torch.Tensor) -> Error:
    """Compare float32 results with float64 (whose own error is below 1e-8 ulp of float32)."""
    exact = WIDE[name](x.double())
    ulp = torch.ldexp(torch.ones_like(exact), (torch.frexp(exact).exponent - 24).clamp_min(-149))
    apart = (results.double() - exact).abs() / ulp
    apart = torch.where(results.double() == exact, 0.0, apart)
    # Beyond the largest number infinity is right.
    apart = torch.where((exact.abs() > 3.4028e38) & torch.isinf(results), 0.0, apart)
    worst = int(apart.nan_to_num(nan=1e9).argmax())
    return Error(float(apart.nan_to_num(nan=1e9)[worst]), float(x[worst]))


def error_of_doubles(name: str, x: torch.Tensor, results: torch.Tensor) -> Error:
    """Compare float64 results with mpmath's of 60 digits."""
    worst = Error(0.0, 0.0)
    with mpmath.workdps(DIGITS):
        for at, value in zip(x.tolist(), results.tolist(), strict=True):
            exact = mpmath.re(EXACT[name](mpmath.mpf(at)))
            if mpmath.isinf(exact) or exact == 0 or abs(exact) < 1e-300:
                continue
            _, exponent = mpmath.frexp(exact)
            ulps = float(abs(mpmath.mpf(value) - exact) / mpmath.ldexp(1, exponent - 53))
            if ulps > worst.ulps or ulps != ulps:
                worst = Error(ulps if ulps == ulps else 1e9, at)
    return worst


def _gelu(x: mpmath.mpf) -> mpmath.mpf:
    return x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def _gelu_tanh(x: mpmath.mpf) -> mpmath.mpf:
    u = mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3)
    return x / (1 + mpmath.exp(-2 * u))


def _wide_gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """As x sigmoid(2u): the form with tanh cancels in float64, too."""
    return x * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))


def _wide_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.special.erfc(-x / 2**0.5) / 2


_NAMES = tuple(name for name in ACCURACY if hasattr(torch, name))
WIDE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name: getattr(torch, name) for name in _NAMES},
    "silu": lambda x: x * torch.sigmoid(x),
    "gelu": _wide_gelu,
    "gelu_tanh": _wide_gelu_tanh,
}
EXACT: dict[str, Callable[[mpmath.mpf], mpmath.mpf]] = {
    **{n: getattr(mpmath, n) for n in _NAMES if hasattr(mpmath, n)},
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "lgamma": lambda x: mpmath.loggamma(x) if x else mpmath.inf,
    "erfinv": lambda x: mpmath.erfinv(x) if abs(x) < 1 else mpmath.inf,
    "reciprocal": lambda x: 1 / x if x else mpmath.inf,
    "exp2": lambda x: mpmath.mpf(2) ** x,
    "log": lambda x: mpmath.log(x) if x else -mpmath.inf,
    "log2": lambda x: mpmath.log(x, 2) if x else -mpmath.inf,
    "log10": lambda x: mpmath.log10(x) if x else -mpmath.inf,
    "log1p": lambda x: mpmath.log1p(x) if x > -1 else -mpmath.inf,
    "atanh": lambda x: mpmath.atanh(x) if abs(x) < 1 else mpmath.inf,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "silu": lambda x: x / (1 + mpmath.exp(-x)),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}
