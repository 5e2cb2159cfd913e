"""Derivatives of the pointwise functions: one row each, one formula for each operand.

In a formula ``v.g`` is the gradient of the result, ``v.y`` the result, ``v.a``, ``v.b`` and ``v.c``
the operands. Formulas prefer the result where both would do: it is one value less to keep.
At kinks they take the side that torch takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import tensor
from irc.dialects.types import is_float
from irc.ops.derivative import Adjoint


class Term:
    """A value in a formula: arithmetic on it appends pointwise ops."""

    def __init__(self, b: FlowBuilder, value: SSAValue) -> None:
        self.b, self.value = b, value

    def of(self, fn: str, *others: Term | float) -> Term:
        """Apply a pointwise function to this value and others."""
        dtype = tensor(self.value).dtype
        values = [o.value if isinstance(o, Term) else self.b.scalar(o, dtype) for o in others]
        return Term(self.b, self.b.pointwise(fn, self.value, *values))

    def number(self, value: float) -> Term:
        """Return a number of this value's dtype."""
        return Term(self.b, self.b.scalar(value, tensor(self.value).dtype))

    def __add__(self, other: Term | float) -> Term:
        return self.of("add", other)

    __radd__ = __add__

    def __mul__(self, other: Term | float) -> Term:
        return self.of("mul", other)

    __rmul__ = __mul__

    def __sub__(self, other: Term | float) -> Term:
        return self.of("sub", other)

    def __rsub__(self, other: float) -> Term:
        return self.number(other).of("sub", self)

    def __truediv__(self, other: Term | float) -> Term:
        return self.of("div", other)

    def __neg__(self) -> Term:
        return self.of("neg")

    def where(self, condition: Term, other: Term | float) -> Term:
        """Return this value where the condition holds, and the other elsewhere."""
        other = other if isinstance(other, Term) else self.number(other)
        return Term(self.b, self.b.pointwise("where", condition.value, self.value, other.value))


class Values:
    """The names in a formula."""

    def __init__(self, at: Adjoint) -> None:
        self._at = at

    def _operand(self, index: int) -> Term:
        return Term(self._at.b, self._at.inputs[index])

    @property
    def g(self) -> Term:
        """The gradient of the result."""
        return Term(self._at.b, self._at.g)

    @property
    def y(self) -> Term:
        """The result."""
        return Term(self._at.b, self._at.y)

    @property
    def a(self) -> Term:
        """The first operand."""
        return self._operand(0)

    @property
    def b(self) -> Term:
        """The second operand."""
        return self._operand(1)

    @property
    def c(self) -> Term:
        """The third operand."""
        return self._operand(2)


Formula: TypeAlias = Callable[[Values], Term]


def _larger(g: Term, a: Term, b: Term) -> Term:
    """Give the gradient to the larger operand, half to each of equals (as torch does)."""
    return (g * 0.5).where(a.of("eq", b), g.where(a.of("gt", b), 0))


def _smaller(g: Term, a: Term, b: Term) -> Term:
    return (g * 0.5).where(a.of("eq", b), g.where(a.of("lt", b), 0))


def _gelu(v: Values) -> Term:
    chance = 0.5 * (1 + (v.a * math.sqrt(0.5)).of("erf"))
    density = (v.a * v.a * -0.5).of("exp") * (1 / math.sqrt(2 * math.pi))
    return v.g * (chance + v.a * density)


def _gelu_tanh(v: Values) -> Term:
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    square = v.a * v.a
    t = (scale * v.a * (1 + cubic * square)).of("tanh")
    slope = scale * (1 + 3 * cubic * square)
    return v.g * 0.5 * ((1 + t) + v.a * (1 - t * t) * slope)


def _silu(v: Values) -> Term:
    s = v.a.of("sigmoid")
    return v.g * s * (1 + v.a * (1 - s))


def _pow_base(v: Values) -> Term:
    found = v.g * (v.b * v.a.of("pow", v.b - 1))
    return found.number(0).where(v.b.of("eq", 0), found)


def _pow_exponent(v: Values) -> Term:
    # 0 ** b is flat for b >= 0, though the logarithm of 0 is infinite.
    flat = v.a.of("eq", 0).of("logical_and", v.b.of("ge", 0))
    found = v.g * v.y * v.a.of("log")
    return found.number(0).where(flat, found)


# fmt: off
DERIVATIVES: Mapping[str, tuple[Formula | None, ...]] = {
    # arithmetic
    "add":         (lambda v: v.g, lambda v: v.g),
    "sub":         (lambda v: v.g, lambda v: -v.g),
    "mul":         (lambda v: v.g * v.b, lambda v: v.g * v.a),
    "div":         (lambda v: v.g / v.b, lambda v: -v.g * (v.y / v.b)),
    "remainder":   (lambda v: v.g, lambda v: -v.g * v.a.of("floor_div", v.b)),
    "fmod":        (lambda v: v.g, lambda v: -v.g * v.a.of("trunc_div", v.b)),
    "pow":         (_pow_base, _pow_exponent),
    "maximum":     (lambda v: _larger(v.g, v.a, v.b), lambda v: _larger(v.g, v.b, v.a)),
    "minimum":     (lambda v: _smaller(v.g, v.a, v.b), lambda v: _smaller(v.g, v.b, v.a)),
    "atan2":       (lambda v: v.g * v.b / (v.a * v.a + v.b * v.b),
                    lambda v: -v.g * v.a / (v.a * v.a + v.b * v.b)),
    "neg":         (lambda v: -v.g,),
    "abs":         (lambda v: v.g * v.a.of("sign"),),
    "reciprocal":  (lambda v: -v.g * (v.y * v.y),),
    # exponentials
    "exp":         (lambda v: v.g * v.y,),
    "exp2":        (lambda v: v.g * v.y * math.log(2),),
    "expm1":       (lambda v: v.g * (v.y + 1),),
    "log":         (lambda v: v.g / v.a,),
    "log2":        (lambda v: v.g / (v.a * math.log(2)),),
    "log10":       (lambda v: v.g / (v.a * math.log(10)),),
    "log1p":       (lambda v: v.g / (v.a + 1),),
    "sqrt":        (lambda v: v.g / (v.y * 2),),
    "rsqrt":       (lambda v: v.g * -0.5 * (v.y * v.y * v.y),),
    # trigonometry
    "sin":         (lambda v: v.g * v.a.of("cos"),),
    "cos":         (lambda v: -v.g * v.a.of("sin"),),
    "tan":         (lambda v: v.g * (1 + v.y * v.y),),
    "asin":        (lambda v: v.g * (1 - v.a * v.a).of("rsqrt"),),
    "acos":        (lambda v: -v.g * (1 - v.a * v.a).of("rsqrt"),),
    "atan":        (lambda v: v.g / (v.a * v.a + 1),),
    "sinh":        (lambda v: v.g * v.a.of("cosh"),),
    "cosh":        (lambda v: v.g * v.a.of("sinh"),),
    "tanh":        (lambda v: v.g * (1 - v.y * v.y),),
    "asinh":       (lambda v: v.g * (v.a * v.a + 1).of("rsqrt"),),
    "acosh":       (lambda v: v.g * (v.a * v.a - 1).of("rsqrt"),),
    "atanh":       (lambda v: v.g / (1 - v.a * v.a),),
    "erf":         (lambda v: v.g * ((v.a * v.a * -1).of("exp") * (2 / math.sqrt(math.pi))),),
    # activations
    "relu":        (lambda v: v.g.where(v.y.of("gt", 0), 0),),
    "sigmoid":     (lambda v: v.g * (v.y * (1 - v.y)),),
    "silu":        (_silu,),
    "gelu":        (_gelu,),
    "gelu_tanh":   (_gelu_tanh,),
    # selection
    "where":       (None, lambda v: v.g.where(v.a, 0),
                    lambda v: v.g.where(v.a.of("logical_not"), 0)),
    "copy":        (lambda v: v.g,),
}
# fmt: on

FLAT = frozenset({
    "floor_div", "trunc_div", "sign", "floor", "ceil", "round", "trunc",
    "bit_and", "bit_or", "bit_xor", "bit_not", "shift_left", "shift_right", "detach",
})  # fmt: skip
"""Functions of numbers whose derivative is 0 wherever it exists, or is to be taken for that."""


def pointwise(at: Adjoint, operand: int) -> SSAValue | None:
    """Apply the formula of an operand, and add up what broadcasting stretched."""
    kind, fn = at.kind(operand), at.attrs["fn"]
    if fn == "cast":
        return at.b.cast(at.g, kind.dtype) if is_float(kind.dtype) else None
    formula = DERIVATIVES[fn][operand]
    if formula is None:
        return None
    return at.reduced_to(formula(Values(at)).value, kind.shape)


class _OfOne(Values):
    """The names in the formula of a function of one operand, outside of a derivative's sweep."""

    def __init__(self, b: FlowBuilder, g: SSAValue, a: SSAValue, y: SSAValue) -> None:
        self._values = Term(b, g), Term(b, a), Term(b, y)

    @property
    def g(self) -> Term:
        return self._values[0]

    @property
    def a(self) -> Term:
        return self._values[1]

    @property
    def y(self) -> Term:
        return self._values[2]


def slope(b: FlowBuilder, fn: str, a: SSAValue, g: SSAValue) -> SSAValue:
    """Append the gradient of ``a`` from that of ``fn(a)``, a function of one operand."""
    (formula,) = DERIVATIVES[fn]
    assert formula is not None, fn
    return formula(_OfOne(b, g, a, b.pointwise(fn, a))).value
