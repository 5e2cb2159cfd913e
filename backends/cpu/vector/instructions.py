"""Pointwise functions of floats that are a few instructions, written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from irc.backends.cpu.vector import logarithms, trigonometry
from irc.backends.cpu.vector.builder import Builder, Operand, constant

Unary: TypeAlias = Callable[[Builder, Operand], Operand]
Binary: TypeAlias = Callable[[Builder, Operand, Operand], Operand]


def extremum(b: Builder, opcode: str, x: Operand, y: Operand) -> Operand:
    """Return the larger (``ogt``) or smaller (``olt``) of two floats; NaN wins."""
    if y.literal is not None and not math.isnan(y.literal):
        # One instruction: where x is NaN the comparison fails and x is taken.
        return b.select(b.compare(f"fcmp {opcode}", y, x), y, x)
    result = b.select(b.compare(f"fcmp {opcode}", x, y), x, y)
    return b.select(b.compare("fcmp uno", x, x), x, result)


def _binary(opcode: str) -> Binary:
    return lambda b, x, y: b.binary(opcode, x, y)


def _remainder(b: Builder, x: Operand, y: Operand) -> Operand:
    """Python's modulo: the result has the sign of y."""
    rest = trigonometry.libm(b, "fmod", x, y)
    return b.select(_opposite(b, rest, y), b.binary("fadd", rest, y), rest)


def _opposite(b: Builder, rest: Operand, y: Operand) -> Operand:
    zero = constant(y.type, 0.0)
    sign = b.binary("xor", b.compare("fcmp olt", rest, zero), b.compare("fcmp olt", y, zero))
    return b.binary("and", b.compare("fcmp une", rest, zero), sign)


def _floor_div(b: Builder, x: Operand, y: Operand) -> Operand:
    """As torch: from fmod, so that the quotient is exact; x / y where y is 0."""
    kind = x.type
    plain = b.binary("fdiv", x, y)
    rest = trigonometry.libm(b, "fmod", x, y)
    quotient = b.binary("fdiv", b.binary("fsub", x, rest), y)
    lower = b.binary("fsub", quotient, constant(kind, 1.0))
    quotient = b.select(_opposite(b, rest, y), lower, quotient)
    floor = b.intrinsic("floor", quotient)
    above = b.compare("fcmp ogt", b.binary("fsub", quotient, floor), constant(kind, 0.5))
    rounded = b.select(above, b.binary("fadd", floor, constant(kind, 1.0)), floor)
    zero = constant(kind, 0.0)
    signed = b.with_sign(zero, plain)
    rounded = b.select(b.compare("fcmp oeq", quotient, zero), signed, rounded)
    return b.select(b.compare("fcmp oeq", y, zero), plain, rounded)


def _power(b: Builder, x: Operand, y: Operand) -> Operand:
    """Exponents that torch expands are expanded; float64 calls libm."""
    one = constant(x.type, 1.0)
    match y.literal:
        case 0.5:
            return b.intrinsic("sqrt", x)
        case -0.5:
            return b.binary("fdiv", one, b.intrinsic("sqrt", x))
        case 1:
            return x
        case 2:
            return b.binary("fmul", x, x)
        case 3:
            return b.binary("fmul", b.binary("fmul", x, x), x)
        case -1:
            return b.binary("fdiv", one, x)
        case -2:
            return b.binary("fdiv", one, b.binary("fmul", x, x))
        case _:
            if x.type.element == "double":
                return trigonometry.libm(b, "pow", x, y)
            return logarithms.power(b, x, y)


def _sign(b: Builder, x: Operand) -> Operand:
    zero = constant(x.type, 0.0)
    above, below = b.compare("fcmp ogt", x, zero), b.compare("fcmp olt", x, zero)
    low = b.select(below, constant(x.type, -1.0), zero)
    return b.select(above, constant(x.type, 1.0), low)


def _relu(b: Builder, x: Operand) -> Operand:
    zero = constant(x.type, 0.0)
    return b.select(b.compare("fcmp olt", x, zero), zero, x)


def _inverse(b: Builder, x: Operand) -> Operand:
    return b.binary("fdiv", constant(x.type, 1.0), x)


def _sigmoid_double(b: Builder, x: Operand) -> Operand:
    e = trigonometry.libm(b, "exp", b.emit(x.type, f"fneg {x}"))
    return _inverse(b, b.binary("fadd", e, constant(x.type, 1.0)))


def _gelu_double(b: Builder, x: Operand) -> Operand:
    # erfc, as 1 + erf cancels for negative x.
    inner = b.binary("fmul", x, constant(x.type, -math.sqrt(0.5)))
    phi = b.binary("fmul", trigonometry.libm(b, "erfc", inner), constant(x.type, 0.5))
    return b.binary("fmul", x, phi)


def _gelu_tanh_double(b: Builder, x: Operand) -> Operand:
    scale = 2 * math.sqrt(2 / math.pi)
    square = b.binary("fmul", x, x)
    slope = b.fma(square, constant(x.type, scale * 0.044715), constant(x.type, scale))
    return b.binary("fmul", x, _sigmoid_double(b, b.binary("fmul", x, slope)))


def _silu_double(b: Builder, x: Operand) -> Operand:
    return b.binary("fmul", x, _sigmoid_double(b, x))


BINARY: Mapping[str, Binary] = {
    "add": _binary("fadd"),
    "sub": _binary("fsub"),
    "mul": _binary("fmul"),
    "div": _binary("fdiv"),
    "floor_div": _floor_div,
    "trunc_div": lambda b, x, y: b.intrinsic("trunc", b.binary("fdiv", x, y)),
    "remainder": _remainder,
    "pow": _power,
    "copysign": lambda b, size, x: b.with_sign(size, x),
    "maximum": lambda b, x, y: extremum(b, "ogt", x, y),
    "minimum": lambda b, x, y: extremum(b, "olt", x, y),
}
UNARY: Mapping[str, Unary] = {
    "neg": lambda b, x: b.emit(x.type, f"fneg {x}"),
    "sign": _sign,
    "reciprocal": _inverse,
    "rsqrt": lambda b, x: _inverse(b, b.intrinsic("sqrt", x)),
    "relu": _relu,
    "is_nan": lambda b, x: b.compare("fcmp uno", x, x),
    "is_inf": lambda b, x: b.compare(
        "fcmp oeq", b.intrinsic("fabs", x), constant(x.type, math.inf)
    ),
}
DOUBLE: Mapping[str, Unary] = {
    "sigmoid": _sigmoid_double,
    "silu": _silu_double,
    "gelu": _gelu_double,
    "gelu_tanh": _gelu_tanh_double,
}
"""Functions of float64 that the C library does not have."""
