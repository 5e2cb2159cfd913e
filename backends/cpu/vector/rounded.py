"""Functions of float32 whose results are rounded to bfloat16, on AVX-512.

Relative errors are under 3e-4, of which half a unit in the last place of bfloat16 is 2e-3 to 4e-3:
a result above 2e-36 is within 0.55 ulp (the tests hold it). Quotients are approximate reciprocals
(vrcp14ps, 2**-14), polynomials are short; coefficients are minimax for the relative error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from irc.backends.cpu.vector.builder import Builder, Operand, Type, constant
from irc.backends.cpu.vector.exponentials import (
    EXP2_HALF,
    LOG2E,
    absolute,
    at_least,
    at_most,
    exp2_of_rest,
    horner,
    scaled,
    scales_at_once,
    times_phi,
)

# Phi(-t) exp(t**2 / 2) in 1 / (t + 3.5), t from 0 to 14.2: relative error 1.2e-4.
TAIL_START = 3.5
TAIL = (0.0010411644752080635, 0.34860472779851703, 2.3147419872088557, -3.358263762477411,
        43.3208512618822)  # fmt: skip


def rounded_form(b: Builder, fn: str, x: Operand, result: str) -> Operand | None:
    """Return ``fn(x)`` to be rounded to ``result``; None where it is to be computed in full."""
    form = FORMS.get(fn)
    if form is None or result != "bf16" or x.type.element != "float" or not scales_at_once(b, x):
        return None
    return form(b, x)


def _inverse(b: Builder, x: Operand) -> Operand:
    """Return 1 / x to 2**-14, for x from 2**-126 on; 0 from 2**126 on."""
    every = Operand(Type("i16"), "-1", -1)
    return b.call(x.type, "llvm.x86.avx512.rcp14.ps.512", x, x, every)


def _power_of_two(b: Builder, x: Operand) -> Operand:
    """Return 2**x for finite x."""
    n = b.intrinsic("rint", x)
    return scaled(b, exp2_of_rest(b, b.binary("fsub", x, n), EXP2_HALF), n)


def _exp(b: Builder, x: Operand) -> Operand:
    x = at_most(b, at_least(b, x, -104.0), 89.0)
    return _power_of_two(b, b.binary("fmul", x, constant(x.type, LOG2E)))


def _share(b: Builder, v: Operand, scale: float) -> Operand:
    """Return ``1 / (1 + e**(-scale v))``."""
    power = b.binary("fmul", v, constant(v.type, -scale * LOG2E))
    e = _power_of_two(b, at_most(b, at_least(b, power, -150.0), 129.0))
    return _inverse(b, b.binary("fadd", e, constant(e.type, 1.0)))


def _sigmoid(b: Builder, x: Operand) -> Operand:
    return _share(b, x, 1.0)


def _silu(b: Builder, x: Operand) -> Operand:
    return b.binary("fmul", x, _share(b, x, 1.0))


def _gelu_tanh(b: Builder, x: Operand) -> Operand:
    slope = b.fma(b.binary("fmul", x, x), constant(x.type, 0.044715), constant(x.type, 1.0))
    return b.binary("fmul", x, _share(b, b.binary("fmul", x, slope), 1.5957691216057308))


def _gelu(b: Builder, x: Operand) -> Operand:
    t = at_most(b, absolute(b, x), 14.2)
    h = horner(b, _inverse(b, b.binary("fadd", t, constant(t.type, TAIL_START))), TAIL)
    power = _power_of_two(b, b.binary("fmul", b.binary("fmul", t, t), constant(t.type, -LOG2E / 2)))
    return times_phi(b, x, b.binary("fmul", power, h))


FORMS: Mapping[str, Callable[[Builder, Operand], Operand]] = {
    "exp": _exp,
    "sigmoid": _sigmoid,
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}
