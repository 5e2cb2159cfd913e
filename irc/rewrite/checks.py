"""What may stand where in a rule: attributes that an op has, operands that a function takes.

A rule that cannot apply anywhere, or that would build an op that is none, is refused when it is
read, with its place: at an op of a program nobody could tell it from one that just does not fit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, StringAttr
from xdsl.irdl import OptPropertyDef, ParamAttrConstraint

from irc.dialects.flow import (
    BroadcastOp,
    ContractOp,
    FlowOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    TransposeOp,
)
from irc.dialects.types import DTYPES
from irc.errors import did_you_mean
from irc.ops.functions import POINTWISE
from irc.rewrite.conditions import CONSTANTS, FUNCTIONS, Kind
from irc.rewrite.operators import OPERATORS
from irc.rewrite.terms import (
    Apply,
    Coalesce,
    Let,
    Literal,
    Name,
    Number,
    Perhaps,
    Term,
    Text,
    heads,
)

SPEC = re.compile(r"\*?[a-z]*(,\*?[a-z]*)*->\*?[a-z]*")
UNSAID: Mapping[type[FlowOp], tuple[str, ...]] = {
    ReduceOp: ("fn", "dims"), ContractOp: ("spec",), ReshapeOp: ("pin",),
}  # fmt: skip
"""Attributes that are given without their names, or not by rules."""
LIST = "a list"
"""In place of a kind: an attribute that rules cannot write, only take over."""


class MistakeError(Exception):
    """What is wrong with a rule that has the right form.

    Attributes:
        because: in the words of the rule.
        advice: what to change.
        at: line and column, from 1; None until somebody knows.
    """

    def __init__(self, because: str, advice: str = "", at: tuple[int, int] | None = None) -> None:
        super().__init__(because)
        self.because, self.advice, self.at = because, advice, at


def kind_of(term: Term) -> Kind:
    """Return what a term of a condition or an attribute is.

    Raises:
        MistakeError: where a function is given what it does not take.
    """
    match term:
        case Number() | Literal():
            return "number"
        case Text():
            return "text"
        case Name():
            return "truth" if term.text in CONSTANTS else "value"
        case Coalesce():
            first, *others = map(kind_of, term.options)
            if other := next((kind for kind in others if kind != first), None):
                raise MistakeError(f"'{term}' is a {first} or a {other}")
            return first
        case Apply():
            return _answer(term)
        case _:
            raise MistakeError(f"'{term}' has no place in a condition or an attribute")


def _answer(term: Apply) -> Kind:
    function, kinds = FUNCTIONS[term.op], tuple(map(kind_of, term.operands))
    if term.attributes:
        raise MistakeError(f"'{term.op}' is a function here, and has no attributes")
    if function.takes:
        if len(kinds) != len(function.takes):
            raise MistakeError(
                f"'{term.op}' takes {len(function.takes)} operands, not {len(kinds)}"
            )
        for operand, kind, wanted in zip(term.operands, kinds, function.takes, strict=True):
            if kind != wanted:
                raise MistakeError(f"'{term.op}' takes a {wanted}, and '{operand}' is a {kind}")
    elif kinds[0] != kinds[1] or kinds[0] == "value":
        left, right = term.operands
        raise MistakeError(
            f"'{left} {term.op} {right}' compares a {kinds[0]} with a {kinds[1]}",
            "compare numbers with numbers, and texts with texts",
        )
    return function.gives


def check_found(term: Apply) -> None:
    """Check an op of a form that is to be found.

    Raises:
        MistakeError: where no op of a program can be so.
    """
    _check_operands(term)
    for key, value in term.attributes:
        if not isinstance(value, Number | Text) and not (
            isinstance(value, Name) and value.text in CONSTANTS
        ):
            raise MistakeError(
                f"an attribute that is found is a number, a text, true or false, not '{value}'"
            )
        if key:
            _check_named(term, key, kind_of(value))
    _check_main(term)


def check_put(term: Apply, lets: Mapping[str, Let]) -> None:
    """Check an op of a replacement; ``lets`` are the values that have a name and a form.

    Raises:
        MistakeError: where the op cannot be made so.
    """
    _check_operands(term)
    kind, own, attributes = OPERATORS[term.op], attribute_kinds(term.op), dict(term.attributes)
    if term.op == "pool":
        raise MistakeError("a replacement makes no 'pool': its result has no type of its own")
    for key, value in term.attributes:
        if key == "like":
            _check_like(term, value, lets)
        elif key:
            _check_named(term, key, kind_of(value))
    _check_main(term)
    main = [value for key, value in term.attributes if not key]
    if term.op == "cast" and not main:
        raise MistakeError("'cast' needs a dtype", 'write it as: cast["f32"](x)')
    if kind in (ContractOp, TransposeOp) and not main and "like" not in attributes:
        shown = "*sd,*td->*st" if kind is ContractOp else "*dt->*td"
        raise MistakeError(f"'{term.op}' needs its dims", f'write it as: {term.op}["{shown}"](...)')
    if kind in (ContractOp, TransposeOp, ReduceOp) or "like" in attributes:
        return
    optional = _optional(term.op)
    for key, wanted in own.items():
        if key not in attributes and key not in optional:
            shown = ", which rules cannot write" if wanted == LIST else ""
            raise MistakeError(
                f"'{term.op}' needs the attribute '{key}'{shown}",
                f"give it, or take all of an op over: {term.op}[like = y](...), where 'let y'"
                f" names one",
            )


def _check_operands(term: Apply) -> None:
    if term.op in POINTWISE:
        wanted = POINTWISE[term.op].arity
    elif OPERATORS[term.op] not in (ReduceOp, ReshapeOp, TransposeOp, BroadcastOp):
        return
    else:
        wanted = 1
    if wanted != len(term.operands):
        raise MistakeError(f"'{term.op}' takes {wanted} operands, not {len(term.operands)}")


def _check_like(term: Apply, value: Term, lets: Mapping[str, Let]) -> None:
    op = term.op
    if OPERATORS[op] in (PointwiseOp, ReduceOp, ReshapeOp, BroadcastOp):
        raise MistakeError(f"'{op}' takes over no attributes")
    let = lets.get(value.text) if isinstance(value, Name) else None
    if let is None or set(heads(let.form)) != {op}:
        raise MistakeError(
            f"'like' takes the name of an op '{op}', and '{value}' is none",
            f"name one: let y = {op}(...)",
        )


def _check_named(term: Apply, key: str, kind: Kind) -> None:
    own = attribute_kinds(term.op)
    if key not in own:
        raise MistakeError(
            f"'{term.op}' has no attribute '{key}'",
            did_you_mean(key, own) or f"'{term.op}' has no attributes with names",
        )
    if own[key] == LIST:
        raise MistakeError(
            f"the attribute '{key}' of '{term.op}' is a list, which rules do not write",
            f"take all of an op over: {term.op}[like = y](...), where 'let y' names one",
        )
    if own[key] != kind:
        raise MistakeError(f"the attribute '{key}' of '{term.op}' is a {own[key]}, not a {kind}")


def _check_main(term: Apply) -> None:
    """Check the attributes without a name: dims, a shape, a dtype, or how dims correspond."""
    op, kind = term.op, OPERATORS[term.op]
    main = [value for key, value in term.attributes if not key]
    if kind in (ContractOp, TransposeOp) or op == "cast":
        if len(main) > 1 or not all(isinstance(each, Text) for each in main):
            raise MistakeError(f"'{op}' takes one text, not '{', '.join(map(str, main))}'")
        for each in main:
            assert isinstance(each, Text)
            _check_text(term, each.value)
    elif kind in (ReduceOp, ReshapeOp, BroadcastOp):
        for each in main:
            if kind_of(each) != "number" or (
                isinstance(each, Number) and not each.value.is_integer()
            ):
                raise MistakeError(f"'{op}' takes whole numbers, not '{each}'")
    elif main:
        raise MistakeError(f"'{op}' has no attribute without a name, as '{main[0]}' is")


def _check_text(term: Apply, text: str) -> None:
    op, text = term.op, text.replace(" ", "")
    if op == "cast":
        if text not in DTYPES:
            raise MistakeError(f"'{text}' is no dtype", did_you_mean(text, DTYPES))
        return
    if not SPEC.fullmatch(text):
        raise MistakeError(
            f'"{text}" does not say how dims correspond',
            'write small letters, and * for the dims in front: "*sd,*td->*st"',
        )
    left, _, right = text.partition("->")
    operands = left.split(",")
    counted = not any(isinstance(each, Perhaps) for each in term.operands)
    if counted and len(operands) != len(term.operands):
        raise MistakeError(f'"{text}" is for {len(operands)} operands, not {len(term.operands)}')
    if made_up := sorted(set(right) - set(left)):
        raise MistakeError(f"'{made_up[0]}' of \"{text}\" is in no operand")
    if op == "transpose" and sorted(left) != sorted(right):
        raise MistakeError(f"\"{text}\" is no order of the dims '{left}'")


@cache
def attribute_kinds(op: str) -> Mapping[str, str]:
    """Return what the attributes of an op are, by name: a :data:`Kind`, or :data:`LIST`."""
    if OPERATORS[op] is PointwiseOp:
        return {}
    properties = OPERATORS[op].get_irdl_definition().properties
    kinds = {name: _kind_of_constraint(each.constr) for name, each in properties.items()}
    return {n: kind for n, kind in kinds.items() if n not in UNSAID.get(OPERATORS[op], ())}


def _kind_of_constraint(constraint: Any) -> str:
    if isinstance(constraint, ParamAttrConstraint):
        return "truth"
    of_class: dict[Any, str] = {IntegerAttr: "number", FloatAttr: "number", StringAttr: "text"}
    return of_class.get(getattr(constraint, "attr", None), LIST)


@cache
def floating_attributes(op: str) -> frozenset[str]:
    """Return the attributes of an op that are floating-point numbers."""
    properties = OPERATORS[op].get_irdl_definition().properties
    return frozenset(
        n for n, each in properties.items() if getattr(each.constr, "attr", None) is FloatAttr
    )  # fmt: skip


def _optional(op: str) -> frozenset[str]:
    properties = OPERATORS[op].get_irdl_definition().properties
    return frozenset(n for n, each in properties.items() if isinstance(each, OptPropertyDef))
