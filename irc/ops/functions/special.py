"""Special functions: those of probability and of integrals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from irc.ops.functions.formula import Expression, Operands
from irc.ops.functions.record import Accuracy, Pointwise

BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
"""Of even order, from 2 on: they are the coefficients of series for large arguments."""
SHIFTS = 10
"""From where on these series hold; arguments below take as many steps of a recurrence."""


def _polynomial(x: Expression, coefficients: Sequence[float]) -> Expression:
    """Return a polynomial by Horner's rule, the constant first."""
    total = x.number(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def _erfinv(v: Operands) -> Expression:
    """Two steps of Newton's from rational approximations, those of torch.

    Where y is large a step compares erfc(x) with 1 - y, which loses nothing where erf rounds to 1.
    """
    y = v.a.of("abs")
    square, rest = y * y, 1 - y
    near = (
        y
        * _polynomial(square, (0.886226899, -1.645349621, 0.914624893, -0.140543331))
        / _polynomial(square, (1, -2.118377725, 1.442710462, -0.329097515, 0.012229801))
    )
    z = (-(rest * 0.5).of("log")).of("sqrt")
    far = _polynomial(z, (-1.970840454, -1.624906493, 3.429567803, 1.641345311)) / _polynomial(
        z, (1, 3.543889200, 1.637067800)
    )
    is_near = y.of("le", 0.7)
    x = near.where(is_near, far)
    for _ in range(2):
        missing = (y - x.of("erf")).where(is_near, x.of("erfc") - rest)
        x = x + missing * (x * x).of("exp") * (math.sqrt(math.pi) / 2)
    return x.number(math.inf).where(y.of("eq", 1), x).of("copysign", v.a)


def _reflected(x: Expression) -> tuple[Expression, Expression, Expression]:
    """Return where x is negative, 1 - x there and x elsewhere, and x less a whole number."""
    below = x.of("lt", 0)
    return below, (1 - x).where(below, x), x - x.of("round")


def _digamma(v: Operands) -> Expression:
    """The slope of lgamma: ``psi(x) = psi(x + 1) - 1 / x``, and its series for large x.

    Below 0 it is ``psi(1 - x) - pi / tan(pi x)``.
    """
    below, x, rest = _reflected(v.a)
    total = x.number(0)
    for _ in range(SHIFTS):
        small = x.of("lt", SHIFTS)
        total = total - x.of("reciprocal").where(small, 0)
        x = (x + 1).where(small, x)
    square = (x * x).of("reciprocal")
    series = [b / (2 * k) for k, b in enumerate(BERNOULLI, 1)]
    total = total + x.of("log") - 0.5 / x - _polynomial(square, series) * square
    mirrored = total - math.pi / (rest * math.pi).of("tan")
    mirrored = mirrored.number(math.nan).where(rest.of("eq", 0), mirrored)
    return mirrored.where(below, total)


def _trigamma(v: Operands) -> Expression:
    """The slope of digamma, by the same recurrence.

    Below 0 it is ``(pi / sin(pi x)) ** 2 - psi'(1 - x)``.
    """
    below, x, rest = _reflected(v.a)
    total = x.number(0)
    for _ in range(SHIFTS):
        total = total + (x * x).of("reciprocal")
        x = x + 1
    inverse = x.of("reciprocal")
    square = inverse * inverse
    series = _polynomial(square, BERNOULLI) * square * inverse
    total = total + inverse + square * 0.5 + series
    wave = math.pi / (rest * math.pi).of("sin")
    return (wave * wave - total).where(below, total)


FUNCTIONS = (
    Pointwise(
        "erf",
        monotone=True,
        flops=15,
        derivative=(lambda v: v.g * ((v.a * v.a * -1).of("exp") * (2 / math.sqrt(math.pi))),),
        torch="erf",
        onnx="Erf",
        libm="erf",
        triton="tl.erf({0})",
        cuda="erf{f}({0})",
        accuracy=Accuracy(1.2, 1.0, -6.0, 6.0),
    ),
    Pointwise(
        "erfc",
        flops=20,
        derivative=(lambda v: v.g * ((v.a * v.a * -1).of("exp") * (-2 / math.sqrt(math.pi))),),
        torch="erfc special_erfc",
        libm="erfc",
        triton="libdevice.erfc({0})",
        cuda="erfc{f}({0})",
        accuracy=Accuracy(6.0, 2.0, -6.0, 9.0),
    ),
    Pointwise(
        "erfinv",
        flops=120,
        derivative=(lambda v: v.g * ((v.y * v.y).of("exp") * (math.sqrt(math.pi) / 2)),),
        torch="erfinv special_erfinv",
        composed=_erfinv,
        triton="libdevice.erfinv({0})",
        accuracy=Accuracy(4.0, 2.0, -1.0, 1.0),
    ),
    Pointwise(
        "lgamma",
        flops=60,
        derivative=(lambda v: v.g * v.a.of("digamma"),),
        torch="lgamma special_gammaln",
        libm="lgamma",
        triton="libdevice.lgamma({0})",
        cuda="lgamma{f}({0})",
        accuracy=Accuracy(2.5, 2.5, 1e-30, 1e30),
    ),
    Pointwise(
        "digamma",
        flops=80,
        derivative=(lambda v: v.g * _trigamma(v),),
        torch="digamma special_digamma special_psi",
        composed=_digamma,
        accuracy=Accuracy(16.0, 8.0, 2.0, 1e30),
    ),
)
