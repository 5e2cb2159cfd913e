"""Derivatives of the pointwise functions: the formulas of their records, as ops of flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import tensor
from irc.dialects.types import is_float
from irc.ops.derivative import Adjoint
from irc.ops.functions import POINTWISE
from irc.ops.functions.formula import Expression, Formula, Operands

DERIVATIVES: Mapping[str, tuple[Formula | None, ...]] = {
    name: function.derivative for name, function in POINTWISE.items() if function.derivative
}
FLAT = frozenset(name for name, function in POINTWISE.items() if function.flat)


class Term(Expression):
    """A value of flow in a formula: arithmetic on it appends pointwise ops."""

    def __init__(self, b: FlowBuilder, value: SSAValue) -> None:
        self.b, self.value = b, value

    def of(self, fn: str, *others: Expression | float) -> Self:
        """Apply a pointwise function to this value and others."""
        values = [term.value for term in self.terms(*others)]
        return type(self)(self.b, self.b.pointwise(fn, self.value, *values))

    def number(self, value: float) -> Self:
        """Return a number of this value's dtype."""
        return type(self)(self.b, self.b.scalar(value, tensor(self.value).dtype))


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


def pointwise(at: Adjoint, operand: int) -> SSAValue | None:
    """Apply the formula of an operand, and add up what broadcasting stretched."""
    kind, fn = at.kind(operand), at.attrs["fn"]
    if fn == "cast":
        return at.b.cast(at.g, kind.dtype) if is_float(kind.dtype) else None
    formula = DERIVATIVES[fn][operand]
    if formula is None:
        return None
    return at.reduced_to(_appended(formula, Values(at)), kind.shape)


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


def _appended(formula: Formula, values: Operands) -> SSAValue:
    term = formula(values)
    assert isinstance(term, Term)
    return term.value


def slope(b: FlowBuilder, fn: str, a: SSAValue, g: SSAValue) -> SSAValue:
    """Append the gradient of ``a`` from that of ``fn(a)``, a function of one operand."""
    (formula,) = DERIVATIVES[fn]
    assert formula is not None, fn
    return _appended(formula, _OfOne(b, g, a, b.pointwise(fn, a)))
