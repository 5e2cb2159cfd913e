"""Functions that torch takes apart into forms whose derivative is not that of eager.

``sinc`` and ``entr`` choose between a form and a number at 0, and the form that is not chosen has
an infinite slope there, which times 0 is NaN; ``xlogy`` of 0 loses the slope by its first operand.
So in what is trained each keeps the value of torch's form, and has the slope of eager's formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce, wraps
from typing import Any

import torch
from torch import Tensor

from irc.frontends.torch.detached_writes import DETACHED, WRITTEN
from irc.frontends.torch.own_backward import is_differentiated

aten: Any = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
MEAN, SUM = 1, 2
"""Reductions of a loss, by torch's numbers; 0 is none."""


def _sinc(x: Tensor) -> list[Tensor]:
    angle, square = x * math.pi, x * x * math.pi
    return [torch.where(square == 0, 0.0, (angle * angle.cos() - angle.sin()) / square)]


def _logit(x: Tensor, eps: float | None = None) -> list[Tensor]:
    low, high = (0.0, 1.0) if eps is None or eps < 0 else (eps, 1 - eps)
    is_out = (x < low) | (x > high)
    outside = math.nan if eps is None or eps < 0 else 0.0
    slope = torch.where((x == 0) | (x == 1), math.inf, 1 / (x * (1 - x)))
    return [torch.where(is_out, outside, slope)]


def _entr(x: Tensor) -> list[Tensor]:
    return [-(1 + x.log())]


def _xlogy(x: Any, y: Any) -> list[Tensor]:
    y = y if isinstance(y, Tensor) else torch.full_like(x, y)
    return [torch.where((x == 0) & (y <= 0), 0.0, y.log()), x / y]


def _xlog1py(x: Any, y: Any) -> list[Tensor]:
    y = y if isinstance(y, Tensor) else torch.full_like(x, y)
    return [torch.where((x == 0) & (y <= -1), 0.0, y.log1p()), x / (y + 1)]


def _smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = MEAN, beta: float = 1.0) -> Any:
    off = x - target
    slope = torch.where(off.abs() >= beta, off.sign(), off / beta)
    return [slope, -slope]


def _huber_loss(x: Tensor, target: Tensor, reduction: int = MEAN, delta: float = 1.0) -> Any:
    off = x - target
    slope = torch.where(off.abs() > delta, off.sign() * delta, off)
    return [slope, -slope]


SLOPES: Mapping[Any, Callable[..., Sequence[Tensor]]] = {
    aten.sinc.default: _sinc,
    aten.logit.default: _logit,
    aten.special_entr.default: _entr,
    aten.xlogy.Tensor: _xlogy,
    aten.xlogy.Scalar_Self: _xlogy,
    aten.xlogy.Scalar_Other: _xlogy,
    aten.special_xlog1py.default: _xlog1py,
    aten.special_xlog1py.self_scalar: _xlog1py,
    aten.special_xlog1py.other_scalar: _xlog1py,
    aten.smooth_l1_loss.default: _smooth_l1_loss,
    aten.huber_loss.default: _huber_loss,
}
"""The derivatives of functions by their operands, in order, before a reduction."""


def std_mean(x: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Return the deviation, whose gradient is 0 where it is, and the mean."""
    return aten.std(x, *args, **options), aten.var_mean(x, *args, **options)[1]


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return torch's form, which is an ELU: its curve of large numbers has no slope.

    Raises:
        RuntimeError: eager's, for no alpha.
    """
    if not alpha:
        raise RuntimeError("alpha cannot be 0 for CELU")
    return aten.elu(x, alpha, 1.0, 1 / alpha)


MASKED = frozenset(op for op in SLOPES if "xlog" in str(op))
"""Functions whose gradient is 0 where what comes in is, at their poles too: losses mask them so."""


WHOLE: Mapping[Any, Callable[..., Any]] = {
    aten.std_mean.correction: std_mean,
    aten.celu.default: celu,
}
"""Functions of other ops that have eager's slopes."""


def kinked(every: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return ways to take ops apart that have eager's slopes, for those of torch that do not.

    Args:
        every: torch's ways.
    """
    ways = {op: _sloped(every[op], slopes, op in MASKED) for op, slopes in SLOPES.items()}
    return {**ways, **{op: _where_trained(every[op], own) for op, own in WHOLE.items()}}


def _where_trained(how: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(how)
    def function(x: Tensor, *args: Any, **options: Any) -> Any:
        is_own = is_differentiated() and x.is_floating_point()
        return (own if is_own else how)(x, *args, **options)

    return function


def _times(x: Tensor, slope: Tensor, is_masked: bool) -> Tensor:
    """Return what has a slope; an endless one is the product of two numbers, which keeps 0."""
    if not is_masked:
        return x * DETACHED(slope)
    most = torch.finfo(slope.dtype).max
    again = torch.where(slope.isinf(), most, 1.0)
    return x * DETACHED(slope.clamp(-most, most)) * DETACHED(again)


def _sloped(
    how: Callable[..., Any], slopes: Callable[..., Sequence[Tensor]], is_masked: bool
) -> Callable[..., Any]:
    @wraps(how)
    def function(*args: Any, **options: Any) -> Any:
        value = how(*args, **options)
        if not is_differentiated() or not value.is_floating_point():
            return value
        operands = [x.float() if isinstance(x, Tensor) and x.dtype in HALVES else x for x in args]
        parts = [
            _times(x, slope, is_masked)
            for x, slope in zip(operands, slopes(*operands, **options), strict=False)
            if isinstance(x, Tensor) and x.is_floating_point()
        ]
        if not parts:
            return value
        before = reduce(torch.add, parts)
        if before.shape != value.shape:
            reduction = options.get("reduction", args[2] if len(args) > 2 else MEAN)
            before = before.mean() if reduction == MEAN else before.sum()
        return WRITTEN(before.to(value.dtype), value)

    return function
