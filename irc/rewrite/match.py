"""Finding the form of a rule in a program, and saying how far it got where it is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isclose
from typing import Any

from xdsl.ir import Operation, SSAValue

from irc.dialects.flow import (
    BroadcastOp,
    ContractOp,
    FlowOp,
    ReduceOp,
    ReshapeOp,
    TransposeOp,
    id_of,
    tensor,
)
from irc.dialects.literals import ConstantOp
from irc.rewrite.operators import COMMUTATIVE, dims_of, is_op, perm_of, spec_matches
from irc.rewrite.terms import Apply, Choice, Let, Literal, Name, Number, Rule, Term, Text

CLOSE = 1e-6
"""Relative difference of a literal from the number of a rule: literals were rounded to float32."""


@dataclass(frozen=True)
class Found:
    """What names stand for, and which ops the form covers.

    Attributes:
        values: by name; those of ``let`` in a pattern have the pattern's name in front.
        numbers: of literals.
        ops: in the order in which they were met, the root first.
        fixed: says of a value whether it is the same at every call.
    """

    fixed: Callable[[SSAValue], bool]
    values: Mapping[str, SSAValue] = field(default_factory=dict[str, SSAValue])
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])
    ops: tuple[Operation, ...] = ()

    def bind(self, name: str, value: SSAValue) -> Found | None:
        """Return the match with a name for a value; None where it stands for another."""
        known = self.values.get(name)
        if known is None:
            return replace(self, values={**self.values, name: value})
        return self if known is value else None


@dataclass
class Miss:
    """How far the best attempt got.

    Attributes:
        ops: how many ops fitted.
        wanted: the term that did not.
        value: what stood there.
    """

    ops: int = -1
    wanted: str = ""
    value: SSAValue | None = None

    def note(self, bindings: Found, wanted: Term | str, value: SSAValue) -> None:
        """Remember an attempt that got further than those before."""
        if len(bindings.ops) > self.ops:
            self.ops, self.wanted, self.value = len(bindings.ops), str(wanted), value

    def __str__(self) -> str:
        shown = "nothing" if self.value is None else describe(self.value)
        return f"{self.ops} ops fit; then '{self.wanted}' was wanted, and there is {shown}"


def describe(value: SSAValue) -> str:
    """Return what a value is: its op, id and type."""
    op = value.owner
    if not isinstance(op, FlowOp):
        return f"an argument of type {value.type}"
    kind = op.plain.get("fn", op.plain.get("spec", ""))
    return f"{op.name}{f' {kind}' if kind else ''} {id_of(op)} of type {value.type}"


def matches(
    rule: Rule, root: FlowOp, fixed: Callable[[SSAValue], bool], miss: Miss
) -> Iterator[Found]:
    """Yield the ways in which a rule's form fits the value that an op gives."""
    yield from _match(rule.find, root.outputs[0], Found(fixed), miss)


def _match(term: Term, value: SSAValue, bindings: Found, miss: Miss) -> Iterator[Found]:
    match term:
        case Name():
            bound = bindings.bind(term.text, value)
            if bound is None:
                miss.note(
                    bindings, f"{term}, which is {describe(bindings.values[term.text])}", value
                )
            else:
                yield bound
        case Let(name, form):
            if name in bindings.values:
                if bindings.values[name] is value:
                    yield bindings
                else:
                    miss.note(bindings, term, value)
                return
            for inner in _match(form, value, bindings, miss):
                if (bound := inner.bind(name, value)) is not None:
                    yield bound
        case Choice():
            for option in term.options:
                yield from _match(option, value, bindings, miss)
        case Number():
            number = literal(value)
            if number is not None and isclose(number, term.value, rel_tol=CLOSE):
                yield bindings
            else:
                miss.note(bindings, term, value)
        case Literal():
            yield from _literal(term, value, bindings, miss)
        case Apply():
            yield from _apply(term, value, bindings, miss)
        case _:
            raise AssertionError(f"{term} stands in no form")


def _literal(term: Literal, value: SSAValue, bindings: Found, miss: Miss) -> Iterator[Found]:
    number = literal(value)
    if number is None or bindings.numbers.get(term.name, number) != number:
        miss.note(bindings, term, value)
    else:
        yield replace(bindings, numbers={**bindings.numbers, term.name: number})


def literal(value: SSAValue) -> float | None:
    """Return the one number that all elements of a value are."""
    if isinstance(value.owner, ConstantOp) and len(values := value.owner.value) == 1:
        return float(values[0])
    return None


def _apply(term: Apply, value: SSAValue, bindings: Found, miss: Miss) -> Iterator[Found]:
    op = value.owner
    if not (isinstance(op, FlowOp) and len(op.outputs) == 1 and is_op(op, term.op)):
        miss.note(bindings, term, value)
        return
    inside = bindings if op in bindings.ops else replace(bindings, ops=(*bindings.ops, op))
    orders: list[tuple[SSAValue, ...]] = [tuple(op.inputs)]
    swaps = term.op in COMMUTATIVE or isinstance(op, ContractOp)
    if swaps and len(set(op.inputs)) == len(op.inputs) == 2:
        orders.append(tuple(reversed(op.inputs)))
    for number, operands in enumerate(orders):
        if len(operands) != len(term.operands) or not _has_attributes(term, op, swapped=number > 0):
            miss.note(inside, f"{term} with these attributes and operands", value)
            continue
        yield from _operands(term.operands, operands, inside, miss)


def _operands(
    terms: tuple[Term, ...], values: tuple[SSAValue, ...], bindings: Found, miss: Miss
) -> Iterator[Found]:
    if not terms:
        yield bindings
        return
    for inner in _match(terms[0], values[0], bindings, miss):
        yield from _operands(terms[1:], values[1:], inner, miss)


def _has_attributes(term: Apply, op: FlowOp, *, swapped: bool) -> bool:
    attributes = op.plain
    for key, wanted in term.attributes:
        if key:
            if attributes.get(key) != _plain(wanted):
                return False
        elif isinstance(op, ContractOp):
            assert isinstance(wanted, Text)
            if not spec_matches(wanted.value, _spec(attributes["spec"], swapped=swapped)):
                return False
        elif isinstance(op, TransposeOp):
            assert isinstance(wanted, Text)
            if not _is_perm(wanted.value, attributes["perm"]):
                return False
        elif isinstance(op, ReduceOp):
            if dims_of(_numbers(term), tensor(op.x).ndim) != tuple(sorted(attributes["dims"])):
                return False
        elif isinstance(op, ReshapeOp | BroadcastOp):
            if tensor(op.outputs[0]).shape != tuple(_numbers(term)):
                return False
        elif tensor(op.outputs[0]).dtype != _plain(wanted):  # of a cast
            return False
    return True


def _numbers(term: Apply) -> list[int]:
    return [int(_plain(value)) for key, value in term.attributes if not key]


def _spec(spec: str, *, swapped: bool) -> str:
    if not swapped:
        return spec
    inputs, _, result = spec.partition("->")
    left, right = inputs.split(",")
    return f"{right},{left}->{result}"


def _is_perm(pattern: str, perm: tuple[int, ...]) -> bool:
    try:
        return perm_of(pattern, len(perm)) == perm
    except ValueError:
        return False


def _plain(term: Term) -> Any:
    match term:
        case Number():
            return term.value
        case Text():
            return term.value
        case Name(text="true"):
            return True
        case Name(text="false"):
            return False
        case _:
            return None
