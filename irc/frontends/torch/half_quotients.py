"""Quotients of half types that are rounded to whole numbers: rounded where eager rounds.

Eager divides tensors of a half type in float32, rounds that to the half type, and takes the whole
number of it: 2.999 becomes 3 first. Kernels hold float32 until they store, and would give 2. Where
a tensor is divided by one number eager holds float32 as well.
"""

from __future__ import annotations

import math

from xdsl.ir import SSAValue

from irc.dialects.flow import tensor
from irc.frontends.torch.lowering import Lowering, Operand

HALVES = ("f16", "bf16")


def rounds_first(t: Lowering, divisor: Operand) -> bool:
    """True for a quotient that eager rounds to a half type before it takes the whole number."""
    return (
        t.dtype in HALVES
        and isinstance(divisor, SSAValue)
        and any(size != 1 for size in tensor(divisor).shape)
    )


def truncated(t: Lowering, a: Operand, b: Operand) -> SSAValue:
    """Return the quotient of a half type towards zero."""
    half = _Half(t)
    return t.b.pointwise("trunc", t.b.cast(half("div", half.wide(a), half.wide(b)), t.dtype))


def floored(t: Lowering, a: Operand, b: Operand) -> SSAValue:
    """Return the quotient of a half type downwards, by the steps of torch's kernel."""
    half, p = _Half(t), t.b.pointwise
    a, b = half.wide(a), half.wide(b)
    zero, one, many = (t.value(number, "f32") for number in (0.0, 1.0, math.inf))
    quotient, rest = half("div", a, b), p("fmod", a, b)
    is_many = p("logical_and", p("eq", p("abs", quotient), many), p("ne", p("abs", a), many))
    whole = half("div", p("where", is_many, a, half("sub", a, rest)), b)
    is_below = p(
        "logical_and",
        p("ne", rest, zero),
        p("logical_xor", p("lt", b, zero), p("lt", rest, zero)),
    )
    whole = p("where", is_below, half("sub", whole, one), whole)
    floor = p("floor", whole)
    is_next = p("gt", half("sub", whole, floor), t.value(0.5, "f32"))
    floor_quotient = p("where", is_next, half("add", floor, one), floor)
    floor_quotient = p("where", p("eq", whole, zero), p("copysign", zero, quotient), floor_quotient)
    floor_quotient = p("where", p("eq", b, zero), quotient, floor_quotient)
    return p("detach", t.b.cast(floor_quotient, t.dtype))


class _Half:
    """Arithmetic in float32 that is rounded to a half type, step by step."""

    def __init__(self, t: Lowering) -> None:
        self._t = t

    def wide(self, x: Operand) -> SSAValue:
        """Return an operand in float32, as the half type has it."""
        return self._t.value(self._t.rounded(x), "f32")

    def __call__(self, fn: str, *operands: SSAValue) -> SSAValue:
        """Apply a function, and round."""
        b = self._t.b
        return b.cast(b.cast(b.pointwise(fn, *operands), self._t.dtype), "f32")
