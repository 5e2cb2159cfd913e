"""What the conditions of rules may ask, and arithmetic in their attributes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from xdsl.ir import SSAValue

from irc.dialects.flow import tensor
from irc.dialects.size import Size
from irc.errors import IrcError
from irc.rewrite.match import Found
from irc.rewrite.terms import Apply, Coalesce, Literal, Name, Number, Term, Text

CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "inf": math.inf}


class UnboundError(Exception):
    """A name that the match did not bind."""


def evaluate(term: Term, found: Found) -> Any:
    """Return what a term of a condition or an attribute is.

    Raises:
        UnboundError: where it has a name without a value.
        IrcError: ``rewrite-invalid``, where it compares what cannot be compared.
    """
    match term:
        case Number():
            return int(term.value) if term.value == int(term.value) else term.value
        case Text():
            return term.value
        case Literal():
            if term.name not in found.numbers:
                raise UnboundError(term.name)
            return found.numbers[term.name]
        case Name() if term.text in CONSTANTS:
            return CONSTANTS[term.text]
        case Name():
            if term.text not in found.values:
                raise UnboundError(term.text)
            return found.values[term.text]
        case Coalesce():
            return _first(term, found)
        case Apply():
            return _call(term, found)
        case _:
            raise AssertionError(f"{term} has no value")


def _first(term: Coalesce, found: Found) -> Any:
    for option in term.options:
        try:
            return evaluate(option, found)
        except UnboundError:
            continue
    raise UnboundError(str(term))


def holds(term: Term, found: Found) -> bool:
    """True where a condition holds; one about a name that is not bound does."""
    match term:
        case Apply(op="and"):
            return all(holds(each, found) for each in term.operands)
        case Apply(op="or"):
            return any(holds(each, found) for each in term.operands)
        case Apply(op="not"):
            return not holds(term.operands[0], found)
        case _:
            try:
                return bool(evaluate(term, found))
            except UnboundError:
                return True


def _call(term: Apply, found: Found) -> Any:
    function = FUNCTIONS[term.op]
    operands = [evaluate(each, found) for each in term.operands]
    try:
        return function(found, *operands)
    except (TypeError, AttributeError, IndexError, AssertionError, ZeroDivisionError) as error:
        raise IrcError(
            "rewrite-invalid", f"'{term}' has no answer", because=str(error),
            help="conditions are about values (rank, size, dtype, inside, fixed) and numbers",
        ) from error  # fmt: skip


def _rank(found: Found, value: SSAValue) -> int:
    return tensor(value).ndim


def _size(found: Found, value: SSAValue, dim: int) -> int | Size:
    return tensor(value).shape[dim]


def _dtype(found: Found, value: SSAValue) -> str:
    return tensor(value).dtype


def _inside(found: Found, value: SSAValue) -> bool:
    """True where only ops that the rule found read a value."""
    return all(use.operation in found.ops for use in value.uses)


def _fixed(found: Found, value: SSAValue) -> bool:
    """True for a weight, a literal, and what depends on those alone."""
    return found.fixed(value)


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    def inner(found: Found, *operands: Any) -> Any:
        return function(*operands)

    return inner


def _quotient(found: Found, left: float, right: float) -> float:
    return left / right


def _among(found: Found, word: str, words: str) -> bool:
    return word in words.split()


_ON_NUMBERS: Any = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg,
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "rank": _rank, "size": _size, "dtype": _dtype, "inside": _inside, "fixed": _fixed,
    "div": _quotient,
    "in": _among,
    **{name: _of_numbers(function) for name, function in _ON_NUMBERS.items()},
    "and": all, "or": any, "not": operator.not_,
}  # fmt: skip
"""The functions of conditions; each takes the match first. :func:`holds` has and, or, not."""
