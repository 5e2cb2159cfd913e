"""Logarithms and powers in float32 vectors.

``log`` follows N. Juffa: ``x = 2**e m`` with m in [2/3, 4/3), then a polynomial of m - 1. Largest
errors in ulp, which the tests hold: log 1.1, log1p 1.6, log2 2.1, log10 3, erfinv 4, pow 1.1
(computed in float64).
"""

from __future__ import annotations

import math

from irc.backends.cpu.vector.builder import Builder, Operand, constant
from irc.backends.cpu.vector.exponentials import (
    absolute,
    at_least,
    at_most,
    exp2_of_rest,
    horner,
    scale_by,
)

LN2 = 0.6931471805599453
LOG1P_EVEN = (-0.249996200, -0.166846126, -0.121483512, -0.130310059)
LOG1P_ODD = (0.200120345, 0.139814854, 0.140869141)
# log2((1 + s) / (1 - s)) / s in s**2, relative error 2e-15.
LOG2_ATANH = (2.885390081777927, 0.9617966939229986, 0.5770780176887977, 0.4121983563058466,
              0.32061847201066646, 0.261400773105662, 0.24326204939945092)  # fmt: skip
# erfinv(x) / x in w - 2.5 and in sqrt(w) - 3, w = -log(1 - x**2).
ERFINV_NEAR = (1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087,
               -4.39150654e-06, -3.5233877e-06, 3.43273939e-07, 2.81022636e-08)  # fmt: skip
ERFINV_FAR = (2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773, -0.00367342844,
              0.00134934322, 0.000100950558, -0.000200214257)  # fmt: skip


def _log1p_of_rest(b: Builder, m: Operand) -> Operand:
    """Return log(1 + m) for m in [-1/3, 1/3]."""
    s = b.binary("fmul", m, m)
    r, t = horner(b, s, LOG1P_EVEN), horner(b, s, LOG1P_ODD)
    r = b.fma(t, m, r)
    r = b.fma(r, m, constant(m.type, 0.333331972))
    r = b.fma(r, m, constant(m.type, -0.5))
    return b.fma(r, s, m)


def _decompose(b: Builder, x: Operand) -> tuple[Operand, Operand]:
    """Return e (a float) and m - 1 of ``x = 2**e m`` for x > 0, denormal or not."""
    small = b.compare("fcmp olt", x, constant(x.type, 2.0**-126))
    scaled = b.binary("fmul", x, constant(x.type, 2.0**23))
    bits = b.convert("bitcast", b.select(small, scaled, x), "i32")
    exponent = _exponent(b, bits)
    m = b.convert("bitcast", b.binary("sub", bits, exponent), "float")
    e = b.convert("sitofp", b.binary("ashr", exponent, constant(bits.type, 23)), "float")
    shift = b.select(small, constant(x.type, -23.0), constant(x.type, 0.0))
    return b.binary("fadd", e, shift), b.binary("fsub", m, constant(x.type, 1.0))


def _exponent(b: Builder, bits: Operand) -> Operand:
    """Return e << 23 such that the mantissa lies in [2/3, 4/3)."""
    offset = b.binary("sub", bits, constant(bits.type, 0x3F2AAAAB))
    return b.binary("and", offset, constant(bits.type, -(1 << 23)))


def _special(b: Builder, x: Operand, zero: float, result: Operand) -> Operand:
    """Mend the logarithm of what is not positive and finite; ``zero`` maps to -inf."""
    kind = x.type
    nan = constant(kind, math.nan)
    positive = b.compare("fcmp ogt", x, constant(kind, zero))
    result = b.select(positive, result, nan)
    at_zero = b.compare("fcmp oeq", x, constant(kind, zero))
    result = b.select(at_zero, constant(kind, -math.inf), result)
    infinity = constant(kind, math.inf)
    return b.select(b.compare("fcmp oeq", x, infinity), infinity, result)


def log(b: Builder, x: Operand) -> Operand:
    """Return the natural logarithm."""
    e, m = _decompose(b, x)
    result = b.fma(e, constant(x.type, LN2), _log1p_of_rest(b, m))
    return _special(b, x, 0.0, result)


def log2(b: Builder, x: Operand) -> Operand:
    """Return the logarithm to base 2."""
    e, m = _decompose(b, x)
    result = b.fma(_log1p_of_rest(b, m), constant(x.type, 1 / LN2), e)
    return _special(b, x, 0.0, result)


def log10(b: Builder, x: Operand) -> Operand:
    """Return the logarithm to base 10."""
    e, m = _decompose(b, x)
    low = b.binary("fmul", _log1p_of_rest(b, m), constant(x.type, 1 / math.log(10)))
    return _special(b, x, 0.0, b.fma(e, constant(x.type, math.log10(2)), low))


def log1p(b: Builder, x: Operand) -> Operand:
    """Return log(1 + x): 1 + x gives the exponent only, x itself is scaled."""
    kind = x.type
    big = b.compare("fcmp ogt", x, constant(kind, 2.0**60))
    y = b.select(big, b.binary("fmul", x, constant(kind, 2.0**-64)), x)
    one = b.select(big, constant(kind, 0.0), constant(kind, 1.0))
    bits = b.convert("bitcast", b.binary("fadd", y, one), "i32")
    exponent = _exponent(b, bits)
    inverse = b.binary("sub", constant(bits.type, 0x3F800000), exponent)
    scale = b.convert("bitcast", inverse, "float")
    m = b.fma(y, scale, b.fma(one, scale, constant(kind, -1.0)))
    e = b.convert("sitofp", b.binary("ashr", exponent, constant(bits.type, 23)), "float")
    e = b.binary("fadd", e, b.select(big, constant(kind, 64.0), constant(kind, 0.0)))
    result = b.fma(e, constant(kind, LN2), _log1p_of_rest(b, m))
    result = _special(b, x, -1.0, result)
    return b.select(b.compare("fcmp oeq", x, constant(kind, 0.0)), x, result)


def log2_double(b: Builder, x: Operand) -> Operand:
    """Return log2 of a positive double, to 2**-44."""
    bits = b.convert("bitcast", x, "i64")
    offset = b.binary("sub", bits, constant(bits.type, 0x3FE6A09E667F3BCD))
    exponent = b.binary("and", offset, constant(bits.type, -(1 << 52)))
    m = b.convert("bitcast", b.binary("sub", bits, exponent), "double")
    e = b.convert("trunc", b.binary("ashr", exponent, constant(bits.type, 52)), "i32")
    e = b.convert("sitofp", e, "double")
    one = constant(m.type, 1.0)
    s = b.binary("fdiv", b.binary("fsub", m, one), b.binary("fadd", m, one))
    return b.fma(horner(b, b.binary("fmul", s, s), LOG2_ATANH), s, e)


def _magnitude(b: Builder, base: Operand, y: Operand) -> Operand:
    """Return base**y for base >= 0, in float64 inside."""
    wide = b.convert("fpext", base, "double")
    logarithm = log2_double(b, wide)
    infinity, zero = constant(wide.type, math.inf), constant(wide.type, 0.0)
    logarithm = b.select(b.compare("fcmp oeq", wide, infinity), infinity, logarithm)
    minus = constant(wide.type, -math.inf)
    logarithm = b.select(b.compare("fcmp oeq", wide, zero), minus, logarithm)
    t = b.binary("fmul", b.convert("fpext", y, "double"), logarithm)
    t = at_most(b, at_least(b, t, -200.0), 200.0)
    magic = constant(t.type, 1.5 * 2.0**52)
    shifted = b.binary("fadd", t, magic)
    whole = b.convert("trunc", b.convert("bitcast", shifted, "i64"), "i32")
    n = b.binary("fsub", shifted, magic)
    r = b.convert("fptrunc", b.binary("fsub", t, n), "float")
    return scale_by(b, exp2_of_rest(b, r), (b.convert("fptrunc", n, "float"), whole))


def power(b: Builder, x: Operand, y: Operand) -> Operand:
    """Return x**y with the special cases of C."""
    kind = x.type
    one, infinity = constant(kind, 1.0), constant(kind, math.inf)
    base = absolute(b, x)
    result = _magnitude(b, base, y)
    huge = b.compare("fcmp oeq", absolute(b, y), infinity)
    unit = b.compare("fcmp oeq", base, one)
    result = b.select(b.binary("and", huge, unit), one, result)
    whole = b.compare("fcmp oeq", b.intrinsic("trunc", y), y)
    half = b.binary("fmul", y, constant(kind, 0.5))
    halves = b.compare("fcmp une", b.intrinsic("trunc", half), half)
    odd = b.binary("and", whole, halves)
    signed = b.with_sign(result, x)
    result = b.select(odd, signed, result)
    negative = b.compare("fcmp olt", x, constant(kind, 0.0))
    finite = b.compare("fcmp one", base, infinity)
    broken = b.binary("and", negative, b.binary("and", finite, _not(b, whole)))
    result = b.select(broken, constant(kind, math.nan), result)
    nan = b.compare("fcmp uno", x, y)
    result = b.select(nan, constant(kind, math.nan), result)
    trivial = b.compare("fcmp oeq", x, one)
    trivial = b.binary("or", trivial, b.compare("fcmp oeq", y, constant(kind, 0.0)))
    return b.select(trivial, one, result)


def _not(b: Builder, mask: Operand) -> Operand:
    return b.binary("xor", mask, constant(mask.type, 1))


def erfinv(b: Builder, x: Operand) -> Operand:
    """Return the inverse of erf, by polynomials in ``-log(1 - x**2)`` (M. Giles 2010)."""
    kind = x.type
    one = constant(kind, 1.0)
    rest = b.binary("fmul", b.binary("fsub", one, x), b.binary("fadd", one, x))
    w = b.emit(kind, f"fneg {log(b, rest)}")
    near = horner(b, b.binary("fsub", w, constant(kind, 2.5)), ERFINV_NEAR)
    far = b.binary("fsub", b.intrinsic("sqrt", w), constant(kind, 3.0))
    is_near = b.compare("fcmp olt", w, constant(kind, 5.0))
    result = b.binary("fmul", x, b.select(is_near, near, horner(b, far, ERFINV_FAR)))
    ends = b.compare("fcmp oeq", b.intrinsic("fabs", x), one)
    infinity = b.with_sign(constant(kind, math.inf), x)
    return b.select(ends, infinity, result)
