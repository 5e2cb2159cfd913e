"""A meaning that computes: each op in float64, with the bound of its error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isfinite, prod
from typing import Any

import torch

from tests.fuzz import meaning
from tests.fuzz.bounded import (
    DTYPES,
    FLOATS,
    HALVES,
    Bounded,
    certain,
    growth,
    rounded,
    sampled,
    settled,
    summed,
    unit,
)

F = torch.nn.functional

# Function in float64, ulps that implementations may have, slope where it is not monotone.
# What the vector math of the CPU is held to lies in tests/numerics; here are all targets.
SAMPLED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, float]] = {
    "exp": (torch.exp, 4, 0), "exp2": (torch.exp2, 4, 0), "expm1": (torch.expm1, 4, 0),
    "log": (torch.log, 4, 0), "log1p": (torch.log1p, 4, 0), "log2": (torch.log2, 4, 0),
    "sqrt": (torch.sqrt, 2, 0), "rsqrt": (torch.rsqrt, 4, 0),
    "reciprocal": (torch.reciprocal, 2, 0),
    "tanh": (torch.tanh, 6, 0), "sigmoid": (torch.sigmoid, 6, 0), "erf": (torch.erf, 4, 0),
    "atan": (torch.atan, 4, 0), "asinh": (torch.asinh, 4, 0), "sinh": (torch.sinh, 6, 0),
    "sin": (torch.sin, 4, 1), "cos": (torch.cos, 4, 1), "abs": (torch.abs, 0, 1),
    "neg": (torch.neg, 0, 1), "relu": (torch.relu, 0, 0), "copy": (torch.clone, 0, 0),
    "floor": (torch.floor, 0, 0), "ceil": (torch.ceil, 0, 0), "round": (torch.round, 0, 0),
    "trunc": (torch.trunc, 0, 0), "sign": (torch.sign, 0, 0),
    "silu": (F.silu, 16, 1.1), "gelu": (F.gelu, 16, 1.13),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), 16, 1.13),
}  # fmt: skip
COMPARE = {"eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt,
           "ge": torch.ge}  # fmt: skip
WHOLE: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "neg": torch.neg, "abs": torch.abs,
    "maximum": torch.maximum, "minimum": torch.minimum, "bit_and": torch.bitwise_and,
    "bit_or": torch.bitwise_or, "bit_xor": torch.bitwise_xor, "bit_not": torch.bitwise_not,
    "shift_left": torch.bitwise_left_shift, "shift_right": torch.bitwise_right_shift,
    "floor_div": torch.floor_divide, "remainder": torch.remainder, "fmod": torch.fmod,
    "trunc_div": lambda x, y: torch.div(x, y, rounding_mode="trunc"), "sign": torch.sign,
    "logical_and": torch.logical_and, "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor, "logical_not": torch.logical_not, "relu": torch.relu,
}  # fmt: skip


class BoundMeaning:
    """Ops on :class:`Bounded` values."""

    def shape(self, x: Bounded) -> tuple[int, ...]:
        return x.shape

    def dtype(self, x: Bounded) -> str:
        return x.dtype

    # elementwise

    def fn(self, name: str, *xs: Bounded) -> Bounded:
        if name == "where":
            return _where(*xs)
        if name in COMPARE:
            return _compare(name, *xs)
        if not xs[0].is_float or name.startswith("logical_"):
            known = torch.broadcast_to(certain(*xs), torch.broadcast_shapes(*[x.shape for x in xs]))
            values = [x.value for x in xs]
            result = WHOLE[name](*values)
            return settled(result, "i1" if name.startswith("logical_") else xs[0].dtype, known)
        if name in SAMPLED:
            function, ulps, slope = SAMPLED[name]
            result = sampled(function, *xs, ulps=ulps, slope=slope)
            if name not in ("gelu", "gelu_tanh", "silu"):
                return result
            # Far below zero 1 + tanh cancels, or a relative error of 4e-5 is stated.
            vanishing = torch.where(xs[0].value < -2, 4e-5 * result.value.abs(), 0.0)
            held = "f32" if xs[0].dtype in HALVES else xs[0].dtype
            vanishing = vanishing + 2 * unit(held) * xs[0].value.abs()
            return Bounded(result.value, result.error + vanishing, result.dtype)
        return _binary(name, *xs)

    def cast(self, x: Bounded, dtype: str) -> Bounded:
        if dtype == x.dtype:
            return x
        if dtype == "i1":
            sure = torch.where(x.value != 0, x.value.abs() > x.error, x.error == 0)
            return settled(x.value != 0, dtype, sure & ~x.unknown)
        if dtype in FLOATS:
            return rounded(x.value.double(), x.error, dtype, known=~x.unknown)
        if x.is_float:
            low, high = ((x.value + s * x.error).trunc() for s in (-1, 1))
            limit = torch.iinfo(DTYPES[dtype])
            inside = (low >= limit.min) & (high <= min(limit.max, 2**53))
            whole = torch.nan_to_num(x.value, nan=0.0, posinf=0.0, neginf=0.0).clamp(
                -(2**53), 2**53
            )
            return settled(whole.to(DTYPES[dtype]), dtype, (low == high) & inside)
        return settled(x.value.to(DTYPES[dtype]), dtype, ~x.unknown)

    def constant(self, value: float, dtype: str) -> Bounded:
        held = Bounded.exact(torch.tensor(value, dtype=DTYPES[dtype]))
        if dtype not in HALVES or not isfinite(value):
            return held
        # Torch holds a number beside a half tensor in float32, flow in the tensor's dtype.
        apart = torch.tensor(abs(float(held.value) - value), dtype=torch.float64)
        return Bounded(held.value, apart, dtype)

    def iota(self, shape: Sequence[int], dim: int) -> Bounded:
        line = torch.arange(shape[dim]).reshape([-1 if i == dim else 1 for i in range(len(shape))])
        return Bounded.exact(line.expand(tuple(shape)).contiguous())

    # reductions

    def reduce(self, fn: str, x: Bounded, dims: Sequence[int], keep: bool = True) -> Bounded:
        dims = tuple(dims)
        unknown = x.unknown.double().sum(dims, keepdim=keep) > 0
        if fn in ("any", "all"):
            result = getattr(torch, fn)(x.value != 0, dim=dims, keepdim=keep)
            return settled(result, "i1", ~unknown)
        if fn in ("max", "min"):
            result = getattr(torch, f"a{fn}")(x.value, dims, keep)
            error = torch.amax(x.error, dims, keep)
            return Bounded(result, torch.where(torch.isfinite(error), error, inf), x.dtype)
        assert fn == "sum", fn
        if not x.is_float:
            return settled(x.value.sum(dims, keepdim=keep, dtype=x.value.dtype), x.dtype, ~unknown)
        return summed(x, dims, keep)

    def arg_reduce(self, fn: str, x: Bounded, dim: int) -> Bounded:
        value = x.value.double() if fn == "max" else -x.value.double()
        best, index = value.max(dim, keepdim=True)
        reach = torch.gather(x.error, dim, index)
        close = (value + x.error >= best - reach).sum(dim) > 1
        loose = torch.amax(x.error, dim) > 0
        result = getattr(torch, f"arg{fn}")(x.value, dim)
        return settled(result, "i64", ~(close & loose) & ~torch.isinf(torch.amax(x.error, dim)))

    def cumulative(self, fn: str, x: Bounded, dim: int) -> Bounded:
        assert fn == "sum", fn
        result = torch.cumsum(x.value, dim, dtype=x.value.dtype)
        if not x.is_float:
            return settled(result, x.dtype, torch.cumsum(x.unknown.double(), dim) == 0)
        error, weight = torch.cumsum(x.error, dim), torch.cumsum(x.value.abs(), dim)
        # A running sum of a half type may be rounded at each step, as torch's is.
        error = error + growth(x.shape[dim]) * unit(x.dtype) * (weight + error)
        return rounded(result, error, x.dtype, known=~torch.isinf(error))

    def contract(self, spec: str, a: Bounded, b: Bounded) -> Bounded:
        letters, result = spec.split("->")
        first, second = letters.split(",")
        sizes = dict(zip(first, a.shape, strict=True)) | dict(zip(second, b.shape, strict=True))
        terms = prod(n for letter, n in sizes.items() if letter not in result)

        def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.einsum(spec, x, y)

        if not a.is_float:
            return settled(product(a.value, b.value), a.dtype, torch.tensor(True))
        return self._product(product, a, b, terms, a.dtype)

    def _product(
        self,
        product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        a: Bounded,
        b: Bounded,
        terms: int,
        dtype: str,
    ) -> Bounded:
        """Return a bilinear function; products are exact or rounded once, then summed."""
        accumulator = "f32" if dtype in HALVES else dtype
        # What is unknown spoils what it reaches; infinity times 0 must not hide it.
        known = product(a.unknown.double(), torch.ones_like(b.error)) == 0
        known &= product(torch.ones_like(a.error), b.unknown.double()) == 0
        ea, eb = (torch.nan_to_num(x.error, posinf=0.0) for x in (a, b))
        error = product(a.value.abs(), eb) + product(ea, b.value.abs()) + product(ea, eb)
        weight = product(a.value.abs(), b.value.abs())
        error = error + (growth(terms) + 1) * unit(accumulator) * (weight + error)
        result = rounded(product(a.value, b.value), error, dtype, known=known)
        return Bounded(result.value, torch.where(known, result.error, inf), dtype)

    # places

    def reshape(self, x: Bounded, shape: Sequence[int]) -> Bounded:
        return x.moved(lambda t: t.reshape(tuple(shape)))

    def transpose(self, x: Bounded, perm: Sequence[int]) -> Bounded:
        return x.moved(lambda t: t.permute(tuple(perm)))

    def broadcast(self, x: Bounded, shape: Sequence[int]) -> Bounded:
        return x.moved(lambda t: t.expand(tuple(shape)))

    def slice(
        self, x: Bounded, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]
    ) -> Bounded:
        index = tuple(slice(a, b, c) for a, b, c in zip(starts, stops, steps, strict=True))
        return x.moved(lambda t: t[index])

    def concat(self, xs: Sequence[Bounded], dim: int) -> Bounded:
        value = torch.cat([x.value for x in xs], dim)
        return Bounded(value, torch.cat([x.error for x in xs], dim), xs[0].dtype)

    def pad(self, x: Bounded, low: Sequence[int], high: Sequence[int], value: float) -> Bounded:
        amounts = [n for pair in reversed(list(zip(low, high, strict=True))) for n in pair]
        held = torch.tensor(value, dtype=DTYPES[x.dtype]).item()
        return Bounded(F.pad(x.value, amounts, value=held), F.pad(x.error, amounts), x.dtype)

    def take(self, table: Bounded, index: Bounded, dim: int) -> Bounded:
        flat = index.value.reshape(-1)
        shape = (*table.shape[:dim], *index.shape, *table.shape[dim + 1 :])
        result = table.moved(lambda t: t.index_select(dim, flat).reshape(shape))
        return _spoiled(result, bool(index.unknown.any()))

    def gather(self, x: Bounded, index: Bounded, dim: int) -> Bounded:
        result = x.moved(lambda t: torch.gather(t, dim, index.value))
        return _spoiled(result, bool(index.unknown.any()))

    def scatter(self, x: Bounded, index: Bounded, source: Bounded, dim: int, fn: str) -> Bounded:
        def placed(t: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
            if fn == "set":
                return t.scatter(dim, index.value, s)
            return t.scatter_add(dim, index.value, s)

        value, error = placed(x.value, source.value), placed(x.error, source.error)
        if fn == "sum" and x.is_float:
            weight = placed(x.value.abs(), source.value.abs())
            terms = float(source.shape[dim] + 1) if source.shape else 2.0
            # Torch adds in the dtype itself, one by one.
            error = error + terms * unit(x.dtype) * (weight + error)
            result = rounded(value, error, x.dtype, known=~torch.isinf(error))
        else:
            result = Bounded(value, error, x.dtype)
        return _spoiled(result, bool(index.unknown.any()))

    # whole ops

    def attention(self, q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float) -> Bounded:
        return meaning.attention(self, q, k, v, mask, causal, scale)

    def convolution(
        self, x: Bounded, w: Bounded, bias: Any, stride: int, pad: int, dilation: int, groups: int
    ) -> Bounded:
        def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            conv = F.conv2d if a.ndim == 4 else F.conv1d
            return conv(a, b, None, stride, pad, dilation, groups)

        result = self._product(product, x, w, prod(w.shape[1:]), x.dtype)
        if bias is None:
            return result
        shape = (1, bias.shape[0], *[1] * (len(x.shape) - 2))
        return self.fn("add", result, bias.moved(lambda t: t.reshape(shape)))

    def pool(self, fn: str, x: Bounded, window: int, stride: int, pad: int) -> Bounded:
        if fn == "max":
            value = F.max_pool2d(x.value, window, stride, pad)
            error = F.max_pool2d(x.error, window, stride, pad)
            return Bounded(value, error, x.dtype)
        value, error, weight = (
            F.avg_pool2d(t, window, stride, pad) for t in (x.value, x.error, x.value.abs())
        )
        accumulator = "f32" if x.dtype in HALVES else x.dtype
        error = error + (growth(window**2) + 1) * unit(accumulator) * weight
        return rounded(value, error, x.dtype, known=~torch.isinf(error))


def _spoiled(result: Bounded, spoiled: bool) -> Bounded:
    """Claim nothing where an index was not known."""
    if not spoiled:
        return result
    return Bounded(result.value, torch.full_like(result.error, inf), result.dtype)


def _where(condition: Bounded, x: Bounded, y: Bounded) -> Bounded:
    value = torch.where(condition.value, x.value, y.value)
    error = torch.where(condition.value, x.error, y.error)
    error = torch.where(condition.unknown, inf, error)
    return Bounded(value, error.expand(value.shape).clone(), x.dtype)


def _compare(name: str, x: Bounded, y: Bounded) -> Bounded:
    result = COMPARE[name](x.value, y.value)
    reach = x.error + y.error
    apart = (x.value.double() - y.value.double()).abs()
    sure = (apart > reach) | (reach == 0) | torch.isnan(apart)
    return settled(result, "i1", (sure & certain(x, y)).expand(result.shape))


def _binary(name: str, x: Bounded, y: Bounded) -> Bounded:
    a, b, ea, eb = x.value, y.value, x.error, y.error
    known = certain(x, y)
    match name:
        case "add" | "sub":
            value, error = (a + b if name == "add" else a - b), ea + eb
        case "mul":
            value, error = a * b, a.abs() * eb + b.abs() * ea + ea * eb
        case "div":
            value = a / b
            rest = b.abs() - eb
            error = torch.where(rest > 0, (ea + value.abs() * eb) / rest, inf)
            error = torch.where((ea == 0) & (eb == 0), 0.0, error)
        case "maximum" | "minimum":
            value = getattr(torch, name)(a, b)
            return Bounded(value, torch.maximum(ea, eb).expand(value.shape).clone(), x.dtype)
        case _:
            raise KeyError(name)
    known = known.expand(value.shape)
    ulps = 2.0 if name == "div" and x.dtype == "f32" else 0.5
    result = rounded(value, error.expand(value.shape), x.dtype, ulps=ulps, known=known)
    return Bounded(result.value, torch.where(known, result.error, inf), x.dtype)


def is_usable(x: Bounded, *, most: float) -> bool:
    """True where enough is known of a value, and its numbers are neither huge nor all error."""
    if not x.value.numel():
        return True
    if float(x.unknown.double().mean()) > 0.2:
        return False
    if not x.is_float:
        return True
    finite = x.value[torch.isfinite(x.value) & ~x.unknown]
    if not finite.numel():
        return False
    largest = float(finite.abs().max())
    worst = float(x.error[torch.isfinite(x.value) & ~x.unknown].max())
    return isfinite(largest) and largest <= most and worst <= 0.1 * largest + 1e-3
