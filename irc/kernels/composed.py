"""Formulas of pointwise functions as helper functions in the language of a target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from irc.kernels.arithmetic import rounded
from irc.ops.functions import POINTWISE
from irc.ops.functions.formula import Arguments, Expression
from irc.ops.functions.record import Pointwise

PARAMETERS = ("a", "b", "c")


@dataclass(frozen=True)
class Language:
    """How a target says what a helper function is made of.

    Attributes:
        call: a function by name of operands by name, whose dtype and that of the result follow.
        define: a statement that names a text of a dtype.
        number: a float of a dtype.
    """

    call: Callable[[str, list[str], str, str], str]
    define: Callable[[str, str, str], str]
    number: Callable[[float, str], str]


@dataclass
class Body:
    """The statements of a helper function, as they are written."""

    language: Language
    statements: list[str] = field(default_factory=list[str])
    numbers: dict[str, _Named] = field(default_factory=dict[str, "_Named"])

    def named(self, text: str, dtype: str) -> _Named:
        """Append a statement that names a text."""
        name = f"v{len(self.statements)}"
        self.statements.append(self.language.define(name, dtype, text))
        return _Named(self, name, dtype)

    def number(self, value: float, dtype: str) -> _Named:
        """Return a number, which has one name."""
        text = self.language.number(rounded(value, dtype), dtype)
        if text not in self.numbers:
            self.numbers[text] = self.named(text, dtype)
        return self.numbers[text]


class _Named(Expression):
    """A value that has a name there."""

    def __init__(self, body: Body, name: str, dtype: str) -> None:
        self.body, self.name, self.dtype = body, name, dtype

    def of(self, fn: str, *others: Expression | float) -> Self:
        """Append a pointwise function."""
        terms = [self, *self.terms(*others)]
        operand = terms[-1].dtype
        result = "i1" if POINTWISE[fn].result == "bool" else operand
        text = self.body.language.call(fn, [term.name for term in terms], operand, result)
        return self.terms(self.body.named(text, result))[0]

    def number(self, value: float) -> Self:
        """Append a number."""
        return self.terms(self.body.number(value, self.dtype))[0]


def written(function: Pointwise, dtype: str, language: Language) -> tuple[list[str], str]:
    """Return the statements of a function that is a formula, and the name of its result.

    Its parameters are ``a``, ``b`` and ``c``.
    """
    assert function.composed is not None, function.name
    body = Body(language)
    parameters = [_Named(body, name, dtype) for name in PARAMETERS[: function.arity]]
    result = function.composed(Arguments(*parameters))
    assert isinstance(result, _Named)
    return body.statements, result.name
