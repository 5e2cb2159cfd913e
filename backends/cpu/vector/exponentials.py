"""exp and what is made of it, in float32 vectors: relative error at most a few ulp everywhere.

Arguments are split as ``x = n ln2 + r``, ``|r| <= ln2 / 2``, with n rounded by adding 1.5 * 2**23,
whose low bits then hold n as an integer; e**r is a minimax polynomial and 2**n is multiplied in two
steps, so that results underflow and overflow gradually. Largest errors in ulp, which the tests
hold: exp 1, exp2 1.1, expm1 1.5, sigmoid 2.2, tanh 2.6, erf 1.2, erfc 6; silu 3 above -80; gelu 9
above -10; gelu_tanh 6 above -2. Below those, where results vanish, the relative error of the three
is under 3e-5. Without FMA instructions errors are up to 1.4 times as large, and gelu's figure holds
above -4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from irc.backends.cpu.vector.builder import Builder, Operand, Type, constant

ROUND = 12582912.0
LOG2E, LN2_HI, LN2_LO = 1.4426950408889634, 0.693145751953125, 1.428606765330187e-06
# (e**r - 1 - r) / r**2 and (2**r - 1) / r, minimax on the reduced range.
EXP = (0.5, 0.1666666716337204, 0.04166625440120697, 0.008333262987434864, 0.0013947224942967296,
       0.00019919380429200828)  # fmt: skip
EXP2 = (0.6931471824645996, 0.24022650718688965, 0.05550410971045494, 0.009618036448955536,
        0.0013333430979400873, 0.0001546710991533473, 1.531494672235567e-05)  # fmt: skip
# The same, for what is rounded to bfloat16: relative error 3e-6.
EXP2_HALF = (0.6931241750717163, 0.24024099111557007, 0.055906426161527634, 0.009582852944731712)
# Phi(-t) exp(t**2 / 2) in z = (t - 3) / (t + 3), t from 0 to 14.6.
NORMAL_TAIL = (
    0.12151394784450531, -0.20640261471271515, 0.12322504073381424, -0.04621325805783272,
    0.006131916306912899, 0.0029043524991720915, -0.000983195030130446, -0.000338917801855132,
    0.00011491039185784757, 5.306189996190369e-05,
)  # fmt: skip
# erf by N. Juffa: a polynomial near 0, 1 - exp(polynomial) beyond 475/512.
ERF_NEAR = (1.28379166e-1, -3.76125336e-1, 1.12819925e-1, -2.67681349e-2, 4.99119423e-3,
            -5.96761703e-4)  # fmt: skip
ERF_FAR = (-1.28717512e-1, -6.34846687e-1, -1.06777877e-1, 2.42546219e-2, -3.88396438e-3,
           3.83197126e-4, -1.72853470e-5)  # fmt: skip


def horner(b: Builder, x: Operand, coefficients: Sequence[float]) -> Operand:
    """Evaluate a polynomial, lowest coefficient first."""
    total = constant(x.type, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = b.fma(total, x, constant(x.type, coefficient))
    return total


def at_least(b: Builder, x: Operand, low: float) -> Operand:
    """Clamp from below; NaN passes."""
    bound = constant(x.type, low)
    return b.select(b.compare("fcmp olt", x, bound), bound, x)


def at_most(b: Builder, x: Operand, high: float) -> Operand:
    """Clamp from above; NaN passes."""
    bound = constant(x.type, high)
    return b.select(b.compare("fcmp ogt", x, bound), bound, x)


def absolute(b: Builder, x: Operand) -> Operand:
    """Return |x|."""
    return b.intrinsic("fabs", x)


def _round_scaled(b: Builder, x: Operand, scale: float) -> tuple[Operand, Operand]:
    """Return ``rint(x * scale)`` as a float and as an integer."""
    magic = constant(x.type, ROUND)
    shifted = b.fma(x, constant(x.type, scale), magic)
    bits = b.convert("bitcast", shifted, "i32")
    whole = b.binary("sub", bits, b.convert("bitcast", magic, "i32"))
    return b.binary("fsub", shifted, magic), whole


def _split(
    b: Builder, x: Operand, low: Operand | None = None
) -> tuple[Operand, tuple[Operand, Operand]]:
    """Return r and n of ``x (+ low) = n ln2 + r``, n as a float and as an integer."""
    n, whole = _round_scaled(b, x, LOG2E)
    r = b.fma(n, constant(x.type, -LN2_HI), x)
    r = b.fma(n, constant(x.type, -LN2_LO), r)
    return (r if low is None else b.binary("fadd", r, low)), (n, whole)


def power_of_two(b: Builder, n: Operand) -> Operand:
    """Return 2**n for an integer n in [-126, 127]."""
    biased = b.binary("add", n, constant(n.type, 127))
    bits = b.binary("shl", biased, constant(n.type, 23))
    return b.convert("bitcast", bits, "float")


def scales_at_once(b: Builder, x: Operand) -> bool:
    """True for vectors of AVX-512, which has an instruction to scale by powers of two."""
    return b.wide_unit and x.type.lanes == 16


def scaled(b: Builder, x: Operand, n: Operand) -> Operand:
    """Return ``x * 2**floor(n)`` for any float n, underflowing gradually (vscalefps)."""
    every, nearest = Operand(Type("i16"), "-1", -1), Operand(Type("i32"), "4", 4)
    return b.call(x.type, "llvm.x86.avx512.mask.scalef.ps.512", x, n, x, every, nearest)


def scale_by(b: Builder, x: Operand, n: tuple[Operand, Operand]) -> Operand:
    """Return ``x * 2**n`` for n in [-252, 254], underflowing gradually.

    ``n`` is given as a float and as an integer: machines scale by one or the other.
    """
    number, whole = n
    if scales_at_once(b, x):
        return scaled(b, x, number)
    half = b.binary("ashr", whole, constant(whole.type, 1))
    rest = b.binary("sub", whole, half)
    return b.binary("fmul", b.binary("fmul", x, power_of_two(b, half)), power_of_two(b, rest))


def _exp_of_rest(b: Builder, r: Operand) -> Operand:
    square = b.binary("fmul", r, r)
    tail = b.fma(horner(b, r, EXP), square, r)
    return b.binary("fadd", tail, constant(r.type, 1.0))


def exp(b: Builder, x: Operand, low: Operand | None = None) -> Operand:
    """Return e**(x + low), where low is a small correction of x."""
    x = at_most(b, at_least(b, x, -104.0), 89.0)
    r, n = _split(b, x, low)
    return scale_by(b, _exp_of_rest(b, r), n)


def exp2(b: Builder, x: Operand) -> Operand:
    """Return 2**x."""
    x = at_most(b, at_least(b, x, -151.0), 129.0)
    n, whole = _round_scaled(b, x, 1.0)
    return scale_by(b, exp2_of_rest(b, b.binary("fsub", x, n)), (n, whole))


def exp2_of_rest(b: Builder, r: Operand, coefficients: Sequence[float] = EXP2) -> Operand:
    """Return 2**r for |r| <= 1/2."""
    return b.fma(horner(b, r, coefficients), r, constant(r.type, 1.0))


def expm1(b: Builder, x: Operand) -> Operand:
    """Return e**x - 1, exact near 0."""
    clamped = at_most(b, at_least(b, x, -18.0), 89.0)
    r, (_, n) = _split(b, clamped)
    p = b.fma(horner(b, r, EXP), b.binary("fmul", r, r), r)
    # Half of 2**n, doubled at the end: 2**128 is no float.
    s = power_of_two(b, b.binary("sub", n, constant(n.type, 1)))
    result = b.fma(s, p, b.binary("fsub", s, constant(s.type, 0.5)))
    result = b.binary("fadd", result, result)
    return b.select(b.compare("fcmp oeq", x, constant(x.type, 0.0)), x, result)


def tanh(b: Builder, x: Operand) -> Operand:
    """Return ``-t / (2 + t)`` with ``t = expm1(-2 |x|)`` and the sign of x."""
    y = at_least(b, b.binary("fmul", absolute(b, x), constant(x.type, -2.0)), -20.0)
    r, (_, n) = _split(b, y)
    p = b.fma(horner(b, r, EXP), b.binary("fmul", r, r), r)
    s = power_of_two(b, n)
    t = b.fma(s, p, b.binary("fsub", s, constant(s.type, 1.0)))
    ratio = b.binary("fdiv", t, b.binary("fadd", t, constant(t.type, 2.0)))
    return b.with_sign(ratio, x)


def _logistic(b: Builder, x: Operand, v: Operand, low: Operand | None = None) -> Operand:
    """Return ``x / (1 + e**-v)`` without overflow or cancellation."""
    minus = b.emit(v.type, f"fneg {absolute(b, v)}")
    if low is not None:
        flipped = b.emit(low.type, f"fneg {low}")
        low = b.select(b.compare("fcmp olt", v, constant(v.type, 0.0)), low, flipped)
    z = exp(b, minus, low)
    numerator = b.binary("fmul", x, z)
    numerator = b.select(b.compare("fcmp olt", v, constant(v.type, 0.0)), numerator, x)
    return b.binary("fdiv", numerator, b.binary("fadd", z, constant(z.type, 1.0)))


def sigmoid(b: Builder, x: Operand) -> Operand:
    """Return ``1 / (1 + e**-x)``."""
    return _logistic(b, constant(x.type, 1.0), x)


def silu(b: Builder, x: Operand) -> Operand:
    """Return ``x / (1 + e**-x)``."""
    return _logistic(b, x, x)


def gelu_tanh(b: Builder, x: Operand) -> Operand:
    """Return ``x / (1 + e**-2u)``, ``u = sqrt(2/pi) (x + 0.044715 x**3)``: gelu by tanh."""
    scale = 1.5957691216057308
    square = b.binary("fmul", x, x)
    slope = b.fma(square, constant(x.type, scale * 0.044715), constant(x.type, scale))
    v = at_most(b, at_least(b, b.binary("fmul", x, slope), -200.0), 200.0)
    return _logistic(b, x, v)


def gelu(b: Builder, x: Operand) -> Operand:
    """Return ``x Phi(x)`` from ``Phi(-t) = e**(-t**2/2) h(t)``: no cancellation in the tail."""
    t = at_most(b, absolute(b, x), 14.5)
    three = constant(x.type, 3.0)
    z = b.binary("fdiv", b.binary("fsub", t, three), b.binary("fadd", t, three))
    h = horner(b, z, NORMAL_TAIL)
    y = b.binary("fmul", t, constant(t.type, -0.5))
    square = b.binary("fmul", y, t)
    low = b.fma(y, t, b.emit(square.type, f"fneg {square}")) if b.fma_unit else None
    tail = b.binary("fmul", exp(b, square, low), h)
    return times_phi(b, x, tail)


def times_phi(b: Builder, x: Operand, tail: Operand) -> Operand:
    """Return ``x Phi(x)`` from the tail ``Phi(-|x|)``."""
    other = b.binary("fsub", constant(x.type, 1.0), tail)
    phi = b.select(b.compare("fcmp olt", x, constant(x.type, 0.0)), tail, other)
    return b.binary("fmul", x, phi)


def erf(b: Builder, x: Operand) -> Operand:
    """Return the error function."""
    t = absolute(b, x)
    # Neither sum sees a smaller number, and arithmetic on denormals is microcode.
    u = at_least(b, t, 2.0**-30)
    square = b.binary("fmul", u, u)
    near = b.fma(horner(b, square, ERF_NEAR), x, x)
    u = at_most(b, u, 4.0)
    grown = exp(b, b.fma(horner(b, u, ERF_FAR), u, b.emit(u.type, f"fneg {u}")))
    far = b.binary("fsub", constant(x.type, 1.0), grown)
    far = b.with_sign(far, x)
    return b.select(b.compare("fcmp ogt", t, constant(t.type, 0.927734375)), far, near)


def _rounded_off(b: Builder, y: Operand, square: Operand) -> Operand:
    """Return what ``square``, the rounded ``y * y``, lacks: without FMA from halves of y."""
    if b.fma_unit:
        return b.fma(y, y, b.emit(y.type, f"fneg {square}"))
    bits = b.convert("bitcast", y, "i32")
    high = b.convert("bitcast", b.binary("and", bits, constant(bits.type, -4096)), "float")
    low = b.binary("fsub", y, high)
    rest = b.binary("fsub", b.binary("fmul", high, high), square)
    mixed = b.binary("fmul", b.binary("fadd", high, high), low)
    return b.binary("fadd", b.binary("fadd", rest, mixed), b.binary("fmul", low, low))


def erfc(b: Builder, x: Operand) -> Operand:
    """Return ``1 - erf(x)`` as ``2 Phi(-sqrt(2) x)``: no cancellation in the tail."""
    y = at_most(b, absolute(b, x), 10.25)
    t = b.binary("fmul", y, constant(y.type, math.sqrt(2)))
    three = constant(x.type, 3.0)
    z = b.binary("fdiv", b.binary("fsub", t, three), b.binary("fadd", t, three))
    square = b.binary("fmul", y, y)
    low = _rounded_off(b, y, square)
    power = exp(b, b.emit(y.type, f"fneg {square}"), b.emit(y.type, f"fneg {low}"))
    tail = b.binary("fmul", power, horner(b, z, [2 * c for c in NORMAL_TAIL]))
    other = b.binary("fsub", constant(x.type, 2.0), tail)
    return b.select(b.compare("fcmp olt", x, constant(x.type, 0.0)), other, tail)
