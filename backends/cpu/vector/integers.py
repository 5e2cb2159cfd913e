"""Integer and bool functions, with torch's meaning of division, remainder and shifts.

Where torch raises (division by zero) the result is 0: a kernel cannot raise, and must not trap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from irc.backends.cpu.vector.builder import Builder, Operand, constant

Unary: TypeAlias = Callable[[Builder, bool, Operand], Operand]
Binary: TypeAlias = Callable[[Builder, bool, Operand, Operand], Operand]

_ORDER = ("lt", "le", "gt", "ge")
_LOGIC = {
    "add": "or", "mul": "and", "maximum": "or", "minimum": "and", "bit_and": "and",
    "bit_or": "or", "bit_xor": "xor", "sub": "xor",
}  # fmt: skip
_SAME = ("floor", "ceil", "round", "trunc")


def apply(b: Builder, fn: str, args: Sequence[Operand], *, unsigned: bool) -> Operand:
    """Append a function of integers (or of i1, which is unsigned)."""
    kind = args[0].type
    if fn in ("eq", "ne"):
        return b.compare(f"icmp {fn}", args[0], args[1])
    if fn in _ORDER:
        return b.compare(f"icmp {'u' if unsigned else 's'}{fn}", args[0], args[1])
    if fn in ("is_nan", "is_inf"):
        return constant(kind.of("i1"), 0)
    if fn in _SAME:
        return args[0]
    if kind.element == "i1" and fn in _LOGIC:
        return b.binary(_LOGIC[fn], args[0], args[1])
    if unsigned and fn in ("abs", "relu"):
        return args[0]
    if len(args) == 1:
        return _UNARY[fn](b, unsigned, args[0])
    return _BINARY[fn](b, unsigned, args[0], args[1])


def extremum(b: Builder, name: str, unsigned: bool, x: Operand, y: Operand) -> Operand:
    """Return the ``max`` or ``min`` of two integers."""
    return b.intrinsic(f"{'u' if unsigned else 's'}{name}", x, y)


def _quotient(b: Builder, unsigned: bool, x: Operand, y: Operand) -> Operand:
    """Truncate x / y; 0 where y is 0, and wrapping for the smallest integer over -1."""
    kind = x.type
    zero, one = constant(kind, 0), constant(kind, 1)
    if y.literal is not None and y.literal not in (0, -1):
        return b.binary("udiv" if unsigned else "sdiv", x, y)
    at_zero = b.compare("icmp eq", y, zero)
    safe = b.select(at_zero, one, y)
    if unsigned:
        return b.select(at_zero, zero, _divide(b, x, safe, unsigned=True))
    minus = b.compare("icmp eq", y, constant(kind, -1))
    safe = b.select(minus, one, safe)
    result = _divide(b, x, safe, unsigned=False)
    result = b.select(minus, b.binary("sub", zero, x), result)
    return b.select(at_zero, zero, result)


def _divide(b: Builder, x: Operand, y: Operand, *, unsigned: bool) -> Operand:
    # float64 holds both operands and its rounded quotient truncates to the right integer,
    # and there is no vector instruction for integer division.
    if x.type.bits > 32 or x.type.lanes == 1:
        return b.binary("udiv" if unsigned else "sdiv", x, y)
    wide = [b.convert("uitofp" if unsigned else "sitofp", v, "double") for v in (x, y)]
    result = b.binary("fdiv", *wide)
    return b.convert("trunc", b.convert("fptosi", result, "i32"), x.type.element)


def _fmod(b: Builder, unsigned: bool, x: Operand, y: Operand) -> Operand:
    rest = b.binary("sub", x, b.binary("mul", _quotient(b, unsigned, x, y), y))
    return b.select(b.compare("icmp eq", y, constant(y.type, 0)), constant(y.type, 0), rest)


def _crosses(b: Builder, rest: Operand, y: Operand) -> Operand:
    """Return where a truncated remainder has the wrong sign for floor division."""
    zero = constant(y.type, 0)
    sign = b.compare("icmp slt", b.binary("xor", rest, y), zero)
    return b.binary("and", b.compare("icmp ne", rest, zero), sign)


def _remainder(b: Builder, unsigned: bool, x: Operand, y: Operand) -> Operand:
    rest = _fmod(b, unsigned, x, y)
    if unsigned:
        return rest
    return b.select(_crosses(b, rest, y), b.binary("add", rest, y), rest)


def _floor_div(b: Builder, unsigned: bool, x: Operand, y: Operand) -> Operand:
    quotient = _quotient(b, unsigned, x, y)
    if unsigned:
        return quotient
    rest = b.binary("sub", x, b.binary("mul", quotient, y))
    lower = b.binary("sub", quotient, constant(x.type, 1))
    at_zero = b.compare("icmp eq", y, constant(y.type, 0))
    return b.select(at_zero, quotient, b.select(_crosses(b, rest, y), lower, quotient))


def _power(b: Builder, unsigned: bool, x: Operand, y: Operand) -> Operand:
    """Square and multiply; a negative exponent gives 1, -1 or 0 as 1 / x**-y truncated."""
    kind = x.type
    one, zero = constant(kind, 1), constant(kind, 0)
    if y.literal is not None and 0 <= y.literal <= 4:
        result = one
        for _ in range(int(y.literal)):
            result = b.binary("mul", result, x)
        return result

    # Exponents wrap odd bases through all their bits; a loop keeps the code short.
    def step(_: Operand, carried: list[Operand]) -> list[Operand]:
        result, base, rest = carried
        odd = b.compare("icmp ne", b.binary("and", rest, one), zero)
        return [
            b.select(odd, b.binary("mul", result, base), result),
            b.binary("mul", base, base),
            b.binary("lshr", rest, one),
        ]

    result = b.loop(b.i64(0), b.i64(kind.bits), 1, [one, x, y], step)[0]
    if unsigned:
        return result
    parity = b.compare("icmp eq", b.binary("and", y, one), zero)
    minus = constant(kind, -1)
    below = b.select(b.compare("icmp eq", x, minus), b.select(parity, one, minus), zero)
    below = b.select(b.compare("icmp eq", x, one), one, below)
    return b.select(b.compare("icmp slt", y, zero), below, result)


def _shift(opcode: str) -> Binary:
    def emit(b: Builder, unsigned: bool, x: Operand, y: Operand) -> Operand:
        kind = x.type
        inside = b.compare("icmp ult", y, constant(kind, kind.bits))
        zero = constant(kind, 0)
        if opcode == "shl" or unsigned:
            count = b.select(inside, y, zero)
            shifted = b.binary("lshr" if opcode == "shr" else "shl", x, count)
            return b.select(inside, shifted, zero)
        return b.binary("ashr", x, b.select(inside, y, constant(kind, kind.bits - 1)))

    return emit


def _sign(b: Builder, unsigned: bool, x: Operand) -> Operand:
    zero = constant(x.type, 0)
    above = b.convert("zext", b.compare(f"icmp {'ne' if unsigned else 'sgt'}", x, zero), "i8")
    result = b.convert("zext", above, x.type.element) if x.type.bits > 8 else above
    if unsigned:
        return result
    below = b.select(b.compare("icmp slt", x, zero), constant(x.type, -1), zero)
    return b.binary("or", result, below)


def _not(b: Builder, unsigned: bool, x: Operand) -> Operand:
    return b.binary("xor", x, constant(x.type, -1 if x.type.bits > 1 else 1))


def _abs(b: Builder, unsigned: bool, x: Operand) -> Operand:
    minus = b.binary("sub", constant(x.type, 0), x)
    return b.select(b.compare("icmp slt", x, constant(x.type, 0)), minus, x)


def _plain(opcode: str) -> Binary:
    return lambda b, unsigned, x, y: b.binary(opcode, x, y)


_UNARY: Mapping[str, Unary] = {
    "neg": lambda b, unsigned, x: b.binary("sub", constant(x.type, 0), x),
    "abs": _abs,
    "sign": _sign,
    "relu": lambda b, unsigned, x: extremum(b, "max", unsigned, x, constant(x.type, 0)),
    "bit_not": _not,
}

_BINARY: Mapping[str, Binary] = {
    "add": _plain("add"),
    "sub": _plain("sub"),
    "mul": _plain("mul"),
    "div": _quotient,
    "trunc_div": _quotient,
    "floor_div": _floor_div,
    "remainder": _remainder,
    "fmod": _fmod,
    "pow": _power,
    "maximum": lambda b, unsigned, x, y: extremum(b, "max", unsigned, x, y),
    "minimum": lambda b, unsigned, x, y: extremum(b, "min", unsigned, x, y),
    "bit_and": _plain("and"),
    "bit_or": _plain("or"),
    "bit_xor": _plain("xor"),
    "shift_left": _shift("shl"),
    "shift_right": _shift("shr"),
}
