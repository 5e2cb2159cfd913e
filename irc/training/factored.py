"""Adafactor as a formula: of a matrix it keeps a mean of each row and column instead of moments."""

from __future__ import annotations

import math
from dataclasses import replace

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import tensor
from irc.ops.derivatives_pointwise import Term
from irc.training.adaptive import in_dtype
from irc.training.settings import Settings, Shared

ROWS, COLUMNS = "row_var", "col_var"
EPSILON = {"bf16": 2.0**-7, "f16": 2.0**-10, "f32": 2.0**-23, "f64": 2.0**-52}
"""How far 1 is from the next number."""


def with_epsilon(settings: Settings, dtype: str) -> Settings:
    """Return settings whose ``eps1`` is a number, that of a dtype where they say so.

    >>> with_epsilon(Settings(), "bf16").eps1, with_epsilon(Settings(eps1=1e-3), "bf16").eps1
    (0.0078125, 0.001)
    """
    return replace(settings, eps1=EPSILON[dtype]) if settings.eps1 < 0 else settings


def adafactor(
    b: FlowBuilder,
    settings: Settings,
    by: Shared,
    parameter: SSAValue,
    gradient: SSAValue,
    moments: list[SSAValue],
) -> list[SSAValue]:
    """Shazeer and Stern 2018 (arXiv:1804.04235), as torch's Adafactor has it.

    With G the gradient, r its share of new in a mean and RMS the root of a mean of squares::

        R = R + r (mean over columns of G^2 - R)        C = C + r (mean over rows of G^2 - C)
        V = R C / max(mean of R, eps1)                  U = G / sqrt(max(V, eps1^2))
        p = p (1 - lr decay) - rate max(eps2, RMS(p)) U / max(1, RMS(U) / d)

    Of what is no matrix V is a mean of squares itself. Sums over a dim that ranks hold in parts
    are partial ones, which the ranks add up. The settings have a number for eps1
    (:func:`with_epsilon`).
    """
    p, g = Term(b, parameter), Term(b, gradient)
    kind = tensor(parameter)
    assert by.scale is not None
    assert by.root is not None
    new, rate = (in_dtype(b, number, p) for number in (by.root, by.scale))
    size = _root_mean_square(p).of("maximum", settings.eps2)
    if settings.weight_decay:
        p = p * (1 - in_dtype(b, by.lr, p) * settings.weight_decay)
    square, last = g * g, kind.ndim - 1
    if len(moments) == 1:
        means = [_moved(Term(b, moments[0]), square, new)]
        spread = means[0]
    else:
        rows, columns = (
            _moved(Term(b, moment), _mean(square, dim), new)
            for moment, dim in zip(moments, (last, last - 1), strict=True)
        )
        means = [rows, columns]
        spread = rows * columns / _mean(rows, last - 1).of("maximum", settings.eps1)
    change = g * spread.of("maximum", settings.eps1 * settings.eps1).of("rsqrt")
    excess = (_root_mean_square(change) / settings.d).of("maximum", 1.0)
    p = p - change * (rate * size / excess)
    return [p.value, *(mean.value for mean in means)]


def _moved(mean: Term, value: Term, new: Term) -> Term:
    return mean + (value - mean) * new


def _mean(value: Term, dim: int) -> Term:
    """Return means along a dim, which keeps size 1."""
    count = float(tensor(value.value).static_shape()[dim])
    return Term(value.b, value.b.reduce("sum", value.value, [dim], keep_dims=True)) / count


def _root_mean_square(value: Term) -> Term:
    kind, square = tensor(value.value), value * value
    total = value.b.reduce("sum", square.value, range(kind.ndim), keep_dims=False)
    return Term(value.b, total).of("sqrt") / math.sqrt(math.prod(kind.static_shape()))
