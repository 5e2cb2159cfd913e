"""Numbers with a proven bound on their error: the reference that every target is held against.

A value is what exact arithmetic gives (float64 stands for it) and, for each element, how far a
correct program of the stated dtypes may be from it: the standard model of rounding, ``fl(x op y) =
(x op y)(1 + d)``, ``|d| <= u`` (Higham, Accuracy and Stability of Numerical Algorithms, 2.2),
carried through each op. A sum of n terms may be formed in any order: ``n u sum |x|``, and for long
ones ``8 sqrt(n) u sum |x|`` (Higham and Mary 2019: fails with probability below 1e-12). Where
rounding may decide a comparison, an index or an overflow, the bound is infinite: nothing is claimed
there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, prod, sqrt

import torch

DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
    "u8": torch.uint8, "i1": torch.bool,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
HALVES = ("f16", "bf16")
FLOATS = ("f64", "f32", *HALVES)


@dataclass(frozen=True)
class Bounded:
    """What a value is, and how far a correct program may be from it.

    Attributes:
        value: float64 for float dtypes, else of the dtype itself.
        error: float64, of the same shape; 0 is exact, infinity claims nothing.
        dtype: irc's name of the dtype in which programs hold it.
    """

    value: torch.Tensor
    error: torch.Tensor
    dtype: str

    @staticmethod
    def exact(tensor: torch.Tensor) -> Bounded:
        """Return a tensor as a value without error."""
        wide = tensor.double() if tensor.is_floating_point() else tensor.clone()
        return Bounded(wide, torch.zeros(tensor.shape, dtype=torch.float64), NAMES[tensor.dtype])

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes."""
        return tuple(self.value.shape)

    @property
    def is_float(self) -> bool:
        """True for a float dtype."""
        return self.dtype in FLOATS

    @property
    def unknown(self) -> torch.Tensor:
        """Where nothing is claimed."""
        return torch.isinf(self.error)

    def moved(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Bounded:
        """Apply a change of place to value and error alike."""
        return Bounded(change(self.value), change(self.error), self.dtype)


def unit(dtype: str) -> float:
    """Return half the distance from 1 to the next number: what one rounding may do."""
    return torch.finfo(DTYPES[dtype]).eps / 2


def growth(terms: int) -> float:
    """Return how many roundings a sum of so many terms may add up to."""
    return float(terms) if terms <= 64 else 8 * sqrt(terms)


def rounded(
    value: torch.Tensor,
    error: torch.Tensor,
    dtype: str,
    *,
    ulps: float = 0.5,
    known: torch.Tensor | None = None,
) -> Bounded:
    """Add what rounding a result to a dtype may add.

    Args:
        value: the exact result.
        error: how far a program's unrounded result may be from it.
        dtype: of the result.
        ulps: how good the operation is; 0.5 is correct rounding.
        known: where all operands are known, for results that are not finite.
    """
    info = torch.finfo(DTYPES[dtype])
    tiny = info.smallest_normal * info.eps
    total = error + 2 * ulps * unit(dtype) * (value.abs() + error) + tiny
    total = torch.nan_to_num(total, nan=inf, posinf=inf)
    total = torch.where(value.abs() + total >= info.max, inf, total)
    settled = torch.zeros_like(total) if known is None else torch.where(known, 0.0, inf)
    return Bounded(value, torch.where(torch.isfinite(value), total, settled), dtype)


def certain(*values: Bounded) -> torch.Tensor:
    """Return where every operand is known, broadcast together."""
    known = torch.tensor(True)
    for each in values:
        known = known & ~each.unknown
    return known


def settled(value: torch.Tensor, dtype: str, known: torch.Tensor) -> Bounded:
    """Return an integer or bool that is exact where it is known."""
    error = torch.where(known, 0.0, inf).to(torch.float64)
    return Bounded(value, error.expand(value.shape).clone(), dtype)


def summed(value: Bounded, dims: Sequence[int], keep: bool) -> Bounded:
    """Return a sum; half types accumulate in float32."""
    terms = prod(value.shape[d] for d in dims)
    accumulator = "f32" if value.dtype in HALVES else value.dtype
    total = value.value.sum(tuple(dims), keepdim=keep)
    error = value.error.sum(tuple(dims), keepdim=keep)
    weight = value.value.abs().sum(tuple(dims), keepdim=keep)
    known = ~torch.isinf(error)
    error = error + growth(terms) * unit(accumulator) * (weight + error)
    return rounded(total, error, value.dtype, known=known)


def misses(result: torch.Tensor, wanted: Bounded, slack: float = 1.0) -> torch.Tensor:
    """Return where a result lies outside its bound; NaN must meet NaN, infinity infinity."""
    if not wanted.is_float:
        return (result != wanted.value) & ~wanted.unknown
    wide = result.double()
    finite = torch.isfinite(wanted.value)
    apart = (wide - wanted.value).abs()
    # The reference rounds as well, where it is no wider than what it judges.
    slack *= 2.0 if wanted.dtype == "f64" else 1.0
    outside = ~(apart <= slack * wanted.error)
    nan = torch.isnan(wanted.value)
    strange = torch.where(nan, ~torch.isnan(wide), wide != wanted.value)
    return torch.where(finite, outside, strange) & ~wanted.unknown


def sampled(
    fn: Callable[[torch.Tensor], torch.Tensor], x: Bounded, *, ulps: float, slope: float = 0.0
) -> Bounded:
    """Return a function of one operand.

    Args:
        fn: in float64.
        x: the operand.
        ulps: how good implementations are.
        slope: the largest slope of a function that is not monotone (else both ends bound it).
    """
    value = fn(x.value)
    # Half types are computed in float32: what is left of its ulps is little.
    ulps = min(ulps, 0.51) if x.dtype in HALVES else ulps
    if slope:
        error = slope * x.error
    else:
        ends = [(fn(x.value + sign * x.error) - value).abs() for sign in (1.0, -1.0)]
        error = torch.maximum(*ends)
        error = torch.where(x.error == 0, 0.0, torch.nan_to_num(error, nan=inf, posinf=inf))
    return rounded(value, error, x.dtype, ulps=ulps, known=~x.unknown)
