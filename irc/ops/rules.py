"""The rules of flow ops: functions of attributes and of operand and result shapes.

An op with a record (:mod:`irc.ops.op_record`) has its rule there.

:func:`rule_of` gives the rule of one op. Data movement and windows have files of their own; what a
rule cannot say (a table split along its rows) is in :mod:`irc.ops.strategies`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from irc.dialects.items import is_float
from irc.errors import IrcError
from irc.ops.custom import declaration
from irc.ops.functions import POINTWISE
from irc.ops.infer import Attrs, Signature, parse_spec
from irc.ops.rule import DimTerm, Rule, RuleError, TensorTerm, parse_rule
from irc.ops.rules_layout import (
    broadcast_rule,
    concat_rule,
    pad_rule,
    reshape_rule,
    slice_rule,
    transpose_rule,
)
from irc.ops.rules_naming import align, letters

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from irc.dialects.flow import FlowOp

RuleFunction: TypeAlias = Callable[[Attrs, Sequence[Signature], Sequence[Signature]], Rule]

WIDER: Mapping[str, tuple[str, ...]] = {
    "f16": ("f16", "f32", "f64"),
    "bf16": ("bf16", "f32", "f64"),
    "f32": ("f32", "f64"),
    "f64": ("f64",),
}
"""Casts that lose nothing, so that a sum of casts is the cast of the sum."""

REDUCED_BY: Mapping[str, str] = {
    "sum": "sum",
    "max": "max",
    "min": "min",
    "any": "max",
    "all": "min",
}
"""How the ranks' results combine where a reduced dim is split; any and all are on bools."""


def rule_of(op: FlowOp) -> Rule:
    """Return the rule of an op.

    Raises:
        IrcError: ``rule-syntax``, where a ``flow.extern`` states a rule that does not fit it.
        KeyError: for ops that are not planned (fusion, yield).
    """
    operands, results = op_signatures(op)
    if op.RECORD is not None:
        return op.RECORD.rule(op.plain, operands, results)
    if op.name == "flow.extern" and (stated := _own_rule(op)):
        if isinstance(stated, str):
            return _stated(op, stated, operands, results)
        return stated(op.plain, operands, results)
    return RULES[op.name](op.plain, operands, results)


def op_signatures(op: FlowOp) -> tuple[list[Signature], list[Signature]]:
    """Return shape and dtype of the operands and results; opaque values count as scalars."""
    # Declarations of ops import this module, also where a plan runs without the IR's library.
    from irc.dialects.types import TensorType

    def each(values: Iterable[SSAValue]) -> list[Signature]:
        return [
            (kind.shape, kind.dtype) if type(kind := value.type) is TensorType else ((), "opaque")
            for value in values
        ]

    return each(op.operands), each(op.results)


def _own_rule(op: FlowOp) -> str | RuleFunction:
    """Return the rule that a library op carries, else that of its declaration."""
    if "rule" in op.plain:
        return op.plain["rule"]
    known = declaration(op.plain["target"])
    return known.rule if known else ""


def _stated(
    op: FlowOp, text: str, operands: Sequence[Signature], results: Sequence[Signature]
) -> Rule:
    from irc.dialects.flow import loc_of

    rule = parse_rule(text, where=loc_of(op))
    try:
        rule.factor_sizes([shape for shape, _ in operands], [shape for shape, _ in results])
    except RuleError as error:
        raise IrcError(
            "rule-syntax",
            f"the rule '{rule}' does not fit {op.plain['target']}",
            where=loc_of(op),
            because=str(error),
            help="give one term for each dim of each operand and result",
        ) from None
    return rule


def _pointwise(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
    row = POINTWISE[attrs["fn"]]
    shape, dtype = results[0]
    names = letters(shape)
    linear, monotone = row.linear, ((0,),) if row.monotone else ()
    source = operands[0][1]
    if attrs["fn"] == "div" and not is_float(dtype):
        linear = ()  # integer quotients round
    if attrs["fn"] == "cast":
        linear = ((0,),) if attrs.get("apart") or dtype in WIDER.get(source, ()) else ()
        monotone = ((0,),) if is_float(source) and is_float(dtype) else ()
    terms = tuple(align(operand, shape, names) for operand, _ in operands)
    return Rule(terms, (names,), linear=linear, monotone=monotone)


def _contract(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
    inputs, output = parse_spec(attrs["spec"])
    reduced = dict.fromkeys(letter for letter in chain(*inputs) if letter not in output)
    return Rule(
        tuple(tuple((letter,) for letter in operand) for operand in inputs),
        (tuple((letter,) for letter in output),),
        reduced=tuple((letter, "sum") for letter in reduced),
        # A product of sums: one partial operand at a time.
        linear=tuple((i,) for i in range(len(inputs))),
    )


def _reduce(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
    names, dims = letters(operands[0][0]), set[int](attrs["dims"])
    kept: list[DimTerm] = [
        () if i in dims else dim
        for i, dim in enumerate(names)
        if attrs["keep_dims"] or i not in dims
    ]
    gone = [name for i in sorted(dims) for name in names[i]]
    kind = REDUCED_BY.get(attrs["fn"])
    return Rule(
        (names,),
        (tuple(kept),),
        reduced=tuple((name, kind) for name in gone) if kind else (),  # type: ignore[misc]  # a literal
        whole=() if kind else tuple(gone),
        linear=((0,),) if attrs["fn"] == "sum" else (),
    )


def opaque(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
    """Replicate: nothing is known of the op, or its elements depend on their global place."""
    shapes = [shape for shape, _ in (*operands, *results)]
    names = letters(tuple(chain(*shapes)))
    terms: list[TensorTerm] = []
    for shape in shapes:
        terms.append(names[: len(shape)])
        names = names[len(shape) :]
    whole = tuple(chain(*chain(*terms)))
    return Rule(tuple(terms[: len(operands)]), tuple(terms[len(operands) :]), whole=whole)


RULES: Mapping[str, RuleFunction] = {
    "flow.pointwise": _pointwise,
    "flow.contract": _contract,
    "flow.reduce": _reduce,
    "flow.reshape": reshape_rule,
    "flow.transpose": transpose_rule,
    "flow.broadcast": broadcast_rule,
    "flow.slice": slice_rule,
    "flow.concat": concat_rule,
    "flow.pad": pad_rule,
    "flow.extern": opaque,
}
