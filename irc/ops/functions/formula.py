"""Formulas of pointwise functions: arithmetic on operands, whatever computes it.

A formula is a function of :class:`Operands`. In ``lambda v: v.g * (v.a * v.a + 1).of("rsqrt")``,
``v.a`` is the operand and ``v.g`` the gradient of the result; what is done to them becomes ops of
flow where a program is differentiated, and instructions where a kernel is written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, Self, TypeAlias


class Expression(ABC):
    """A value in a formula."""

    @abstractmethod
    def of(self, fn: str, *others: Expression | float) -> Self:
        """Apply a pointwise function to this value and others."""

    @abstractmethod
    def number(self, value: float) -> Self:
        """Return a number of this value's dtype."""

    def terms(self, *others: Expression | float) -> list[Self]:
        """Return values of a formula, and numbers as values of this one's dtype."""
        terms: list[Self] = []
        for other in others:
            term = other if isinstance(other, Expression) else self.number(other)
            assert isinstance(term, type(self))
            terms.append(term)
        return terms

    def __add__(self, other: Expression | float) -> Self:
        return self.of("add", other)

    __radd__ = __add__

    def __mul__(self, other: Expression | float) -> Self:
        return self.of("mul", other)

    __rmul__ = __mul__

    def __sub__(self, other: Expression | float) -> Self:
        return self.of("sub", other)

    def __rsub__(self, other: float) -> Self:
        return self.number(other).of("sub", self)

    def __truediv__(self, other: Expression | float) -> Self:
        return self.of("div", other)

    def __rtruediv__(self, other: float) -> Self:
        return self.number(other).of("div", self)

    def __neg__(self) -> Self:
        return self.of("neg")

    def where(self, condition: Expression, other: Expression | float) -> Self:
        """Return this value where the condition holds, and the other elsewhere."""
        (other,) = self.terms(other)
        return self.terms(condition.of("where", self, other))[0]


class Operands(Protocol):
    """The names in a formula."""

    @property
    def g(self) -> Expression:
        """The gradient of the result."""
        ...

    @property
    def y(self) -> Expression:
        """The result."""
        ...

    @property
    def a(self) -> Expression:
        """The first operand."""
        ...

    @property
    def b(self) -> Expression:
        """The second operand."""
        ...

    @property
    def c(self) -> Expression:
        """The third operand."""
        ...


Formula: TypeAlias = Callable[[Operands], Expression]


class Arguments:
    """The operands of a formula that gives a function, which reads no result and no gradient."""

    def __init__(self, *terms: Expression) -> None:
        self._terms = terms

    @property
    def a(self) -> Expression:
        """The first operand."""
        return self._terms[0]

    @property
    def b(self) -> Expression:
        """The second operand."""
        return self._terms[1]

    @property
    def c(self) -> Expression:
        """The third operand."""
        return self._terms[2]

    @property
    def g(self) -> Expression:
        """None: only a derivative has the gradient of a result, and the result."""
        raise AttributeError("a formula of a function reads v.a, v.b and v.c alone")

    y = g
