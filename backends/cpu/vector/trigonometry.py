"""sin, cos and tan in float32 vectors, and libm lane by lane for the rest.

The argument is reduced in float64 by pi/2 in three parts, exact up to 2**20; a vector with a larger
argument goes to libm. Largest errors in ulp, which the tests hold: sin 1.5, cos 1.5, tan 3.
"""

from __future__ import annotations

from collections.abc import Callable

from irc.backends.cpu.vector.builder import PTR, Builder, Operand, Type, constant
from irc.backends.cpu.vector.exponentials import absolute, horner

LARGEST = 2.0**20
HALF_PI = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21)
SIN = (-1.66666672e-1, 8.33338592e-3, -1.98559923e-4, 2.86567956e-6)
COS = (1.0, -5.00000000e-1, 4.16666567e-2, -1.38877297e-3, 2.44677067e-5)


def _reduced(b: Builder, x: Operand) -> tuple[Operand, Operand, Operand]:
    """Return sin r, cos r and n of ``x = n pi/2 + r``."""
    wide = b.convert("fpext", x, "double")
    kind = wide.type
    magic = constant(kind, 1.5 * 2.0**52)
    shifted = b.fma(wide, constant(kind, 0.6366197723675814), magic)
    n = b.convert("trunc", b.convert("bitcast", shifted, "i64"), "i32")
    turns = b.binary("fsub", shifted, magic)
    for part in HALF_PI:
        wide = b.fma(turns, constant(kind, -part), wide)
    r = b.convert("fptrunc", wide, "float")
    s = b.binary("fmul", r, r)
    sine = b.fma(horner(b, s, SIN), b.binary("fmul", s, r), r)
    return sine, horner(b, s, COS), n


def _bit(b: Builder, n: Operand, bit: int) -> Operand:
    masked = b.binary("and", n, constant(n.type, bit))
    return b.compare("icmp ne", masked, constant(n.type, 0))


def _negate_if(b: Builder, condition: Operand, x: Operand) -> Operand:
    return b.select(condition, b.emit(x.type, f"fneg {x}"), x)


def _sin(b: Builder, x: Operand) -> Operand:
    sine, cosine, n = _reduced(b, x)
    result = _negate_if(b, _bit(b, n, 2), b.select(_bit(b, n, 1), cosine, sine))
    # sin(-0) is -0, which the reduction loses.
    return b.select(b.compare("fcmp oeq", x, constant(x.type, 0.0)), x, result)


def _cos(b: Builder, x: Operand) -> Operand:
    sine, cosine, n = _reduced(b, x)
    flipped = _bit(b, b.binary("add", n, constant(n.type, 1)), 2)
    return _negate_if(b, flipped, b.select(_bit(b, n, 1), sine, cosine))


def _tan(b: Builder, x: Operand) -> Operand:
    sine, cosine, n = _reduced(b, x)
    odd = _bit(b, n, 1)
    below = b.select(odd, sine, cosine)
    above = b.select(odd, b.emit(x.type, f"fneg {cosine}"), sine)
    result = b.binary("fdiv", above, below)
    return b.select(b.compare("fcmp oeq", x, constant(x.type, 0.0)), x, result)


def sin(b: Builder, x: Operand) -> Operand:
    """Return the sine."""
    return with_rare(b, x, "sin", _is_large, _sin)


def cos(b: Builder, x: Operand) -> Operand:
    """Return the cosine."""
    return with_rare(b, x, "cos", _is_large, _cos)


def tan(b: Builder, x: Operand) -> Operand:
    """Return the tangent."""
    return with_rare(b, x, "tan", _is_large, _tan)


def _is_large(b: Builder, x: Operand) -> Operand:
    return b.compare("fcmp oge", absolute(b, x), constant(x.type, LARGEST))


def with_rare(
    b: Builder,
    x: Operand,
    name: str,
    is_rare: Callable[[Builder, Operand], Operand],
    usual: Callable[[Builder, Operand], Operand],
) -> Operand:
    """Call a helper that takes ``usual`` unless some lane is rare; libm then has them all."""
    kind = x.type
    symbol = f"irc.{name}.{kind.mangled}"
    if symbol not in b.functions:
        inner = b.child()
        argument = Operand(kind, "%x")
        large = is_rare(inner, argument)
        if kind.lanes > 1:
            large = inner.call(Type("i1"), f"llvm.vector.reduce.or.{large.type.mangled}", large)
        inner.do(f"br {large}, label %large, label %small")
        inner.label("small")
        inner.do(f"ret {usual(inner, argument)}")
        inner.label("large")
        inner.do(f"ret {libm(inner, name, argument)}")
        b.functions[symbol] = inner.function(f"define linkonce_odr {kind} @{symbol}({kind} %x)")
    return b.emit(kind, f"call {kind} @{symbol}({x})")


def libm(b: Builder, name: str, *args: Operand) -> Operand:
    """Call the C library's function on each lane."""
    kind = args[0].type
    scalar = Type(kind.element)
    function = name if kind.element == "double" else f"{name}f"
    if kind.lanes == 1:
        return b.call(kind, function, *args)
    symbol = f"irc.lanes.{function}.v{kind.lanes}"
    if symbol not in b.functions:
        inner = b.child()
        names = [Operand(kind, f"%x{i}") for i in range(len(args))]
        slots = [inner.emit(PTR, f"alloca {kind}, align 64") for _ in names]
        for value, slot in zip(names, slots, strict=True):
            inner.store(value, slot, 64)

        def lane(i: Operand, _: list[Operand]) -> list[Operand]:
            at = [inner.address(slot, kind.element, i) for slot in slots]
            result = inner.call(scalar, function, *(inner.load(scalar, p) for p in at))
            inner.store(result, at[0])
            return []

        inner.loop(inner.i64(0), inner.i64(kind.lanes), 1, [], lane)
        inner.do(f"ret {inner.load(kind, slots[0], 64)}")
        header = ", ".join(map(str, names))
        b.functions[symbol] = inner.function(f"define linkonce_odr {kind} @{symbol}({header})")
    return b.emit(kind, f"call {kind} @{symbol}({', '.join(map(str, args))})")
