"""What the conditions of rules may ask, and arithmetic in their attributes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias
from typing import Literal as OneOf

from xdsl.ir import SSAValue

from irc.dialects.flow import tensor
from irc.dialects.size import Size
from irc.errors import IrcError
from irc.rewrite.match import Found
from irc.rewrite.terms import Apply, Coalesce, Literal, Name, Number, Term, Text

CONSTANTS: Mapping[str, Any] = {"true": True, "false": False}
Kind: TypeAlias = OneOf["value", "number", "text", "truth"]
"""What a term of a condition is: a tensor of the program, or what is said of one."""


class UnboundError(Exception):
    """A name that the match did not bind."""

    def __str__(self) -> str:
        return f"nothing is bound to '{self.args[0]}' here"


def evaluate(term: Term, bindings: Found) -> Any:
    """Return what a term of a condition or an attribute is.

    Raises:
        UnboundError: where it has a name without a value.
        IrcError: ``rewrite-invalid``, where it compares what cannot be compared.
    """
    match term:
        case Number():
            return int(term.value) if term.value.is_integer() else term.value
        case Text():
            return term.value
        case Literal():
            if term.name not in bindings.numbers:
                raise UnboundError(f"${term.name}")
            return bindings.numbers[term.name]
        case Name() if term.text in CONSTANTS:
            return CONSTANTS[term.text]
        case Name():
            if term.text not in bindings.values:
                raise UnboundError(term.text)
            return bindings.values[term.text]
        case Coalesce():
            return _first(term, bindings)
        case Apply():
            return _call(term, bindings)
        case _:
            raise AssertionError(f"{term} has no value")


def _first(term: Coalesce, bindings: Found) -> Any:
    for option in term.options:
        try:
            return evaluate(option, bindings)
        except UnboundError:
            continue
    raise UnboundError(str(term))


def holds(term: Term, bindings: Found) -> bool:
    """True where a condition holds; one about a name that is not bound does."""
    match term:
        case Apply(op="and"):
            return all(holds(each, bindings) for each in term.operands)
        case Apply(op="or"):
            return any(holds(each, bindings) for each in term.operands)
        case Apply(op="not"):
            return not holds(term.operands[0], bindings)
        case _:
            try:
                return bool(evaluate(term, bindings))
            except UnboundError:
                return True


def _call(term: Apply, bindings: Found) -> Any:
    function = FUNCTIONS[term.op].call
    operands = [evaluate(each, bindings) for each in term.operands]
    try:
        return function(bindings, *operands)
    except (TypeError, ValueError, AttributeError, LookupError, AssertionError,
            ArithmeticError) as error:  # fmt: skip
        raise IrcError(
            "rewrite-invalid", f"'{term}' has no answer", because=str(error),
            help="conditions are about values (rank, size, dtype, inside, fixed) and numbers",
        ) from error  # fmt: skip


def _rank(bindings: Found, value: SSAValue) -> int:
    return tensor(value).ndim


def _size(bindings: Found, value: SSAValue, dim: int) -> int | Size:
    shape = tensor(value).shape
    if not -len(shape) <= dim < len(shape):
        raise IndexError(f"dim {dim} of a value of {len(shape)} dims")
    return shape[dim]


def _dtype(bindings: Found, value: SSAValue) -> str:
    return tensor(value).dtype


def _inside(bindings: Found, value: SSAValue) -> bool:
    """True where only ops that the rule found read a value."""
    return all(use.operation in bindings.ops for use in value.uses)


def _fixed(bindings: Found, value: SSAValue) -> bool:
    """True for a weight, a literal, and what depends on those alone."""
    return bindings.fixed(value)


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    def inner(bindings: Found, *operands: Any) -> Any:
        return function(*operands)

    return inner


def _among(bindings: Found, word: str, words: str) -> bool:
    return word in words.split()


def _quotient(left: float, right: float) -> float:
    return left / right


class Function(NamedTuple):
    """A function of conditions and attributes.

    Attributes:
        call: takes the match, then the operands.
        takes: the kinds of the operands; empty for any two of one kind.
        gives: the kind of the answer.
    """

    call: Callable[..., Any]
    takes: tuple[Kind, ...]
    gives: Kind


NAMED: Mapping[str, Function] = {
    "rank": Function(_rank, ("value",), "number"),
    "size": Function(_size, ("value", "number"), "number"),
    "dtype": Function(_dtype, ("value",), "text"),
    "inside": Function(_inside, ("value",), "truth"),
    "fixed": Function(_fixed, ("value",), "truth"),
}
"""The functions that a rule calls by name (``grammar/rewrite.lark`` says what they mean)."""

ARITHMETIC: Mapping[str, Function] = {
    name: Function(_of_numbers(call), ("number",) * count, "number")
    for name, call, count in (
        ("add", operator.add, 2), ("sub", operator.sub, 2), ("mul", operator.mul, 2),
        ("div", _quotient, 2), ("neg", operator.neg, 1),
    )
}  # fmt: skip

FUNCTIONS: Mapping[str, Function] = {
    **NAMED,
    **ARITHMETIC,
    "in": Function(_among, ("text", "text"), "truth"),
    "==": Function(_of_numbers(operator.eq), (), "truth"),
    "!=": Function(_of_numbers(operator.ne), (), "truth"),
    "<": Function(_of_numbers(operator.lt), ("number", "number"), "truth"),
    "<=": Function(_of_numbers(operator.le), ("number", "number"), "truth"),
    ">": Function(_of_numbers(operator.gt), ("number", "number"), "truth"),
    ">=": Function(_of_numbers(operator.ge), ("number", "number"), "truth"),
}
"""What conditions are made of, besides and, or, not, which :func:`holds` has."""
