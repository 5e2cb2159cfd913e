"""Putting the replacement of a rule into a program."""

from __future__ import annotations

from typing import Any

from xdsl.ir import SSAValue
from xdsl.utils.exceptions import VerifyException

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import (
    BroadcastOp,
    ContractOp,
    FlowOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    TransposeOp,
    tensor,
)
from irc.dialects.types import TensorType, is_float
from irc.ops.infer import ShapeError
from irc.rewrite.checks import floating_attributes
from irc.rewrite.conditions import UnboundError, evaluate
from irc.rewrite.match import Found
from irc.rewrite.operators import OPERATORS, dims_of, perm_of, spec_of
from irc.rewrite.terms import Apply, Coalesce, Literal, Name, Number, Perhaps, Rule, Term


class MisfitError(Exception):
    """Why a replacement cannot stand where its rule was found."""


def build(rule: Rule, bindings: Found, b: FlowBuilder, wanted: TensorType) -> SSAValue:
    """Append the ops of a replacement and return its value, of type ``wanted``.

    Raises:
        MisfitError: where operands do not fit, or the result has another shape or dtype.
    """
    maker = _Maker(bindings, b, wanted.dtype)
    try:
        value = maker.value(rule.put)
    except (ValueError, TypeError, LookupError, ArithmeticError, VerifyException,
            UnboundError) as error:  # fmt: skip
        # The attributes of an op are checked by the code that infers its shape, as Python does.
        raise MisfitError(f"the replacement does not fit: {error}") from error
    if value.type != wanted:
        raise MisfitError(_difference(tensor(value), wanted))
    return value


def _difference(actual: TensorType, wanted: TensorType) -> str:
    if actual.shape != wanted.shape:
        shown, old = (f"[{', '.join(map(str, each.shape))}]" for each in (actual, wanted))
        return f"the replacement has another shape: {shown}, not {old}"
    if actual.dtype != wanted.dtype:
        return f"the replacement has another dtype: {actual.dtype}, not {wanted.dtype}"
    return f"the replacement has type {actual}, not {wanted}"


class _Maker:
    def __init__(self, bindings: Found, b: FlowBuilder, dtype: str) -> None:
        self.bindings, self.b, self.dtype = bindings, b, dtype

    def value(self, term: Term, dtype: str = "") -> SSAValue:
        """Return the value of a term; a number is one of ``dtype``."""
        match term:
            case Name():
                return self._named(term.text)
            case Coalesce():
                for option in term.options:
                    if self._is_bound(option):
                        return self.value(option, dtype)
                raise UnboundError(str(term))
            case Apply():
                return self._apply(term)
            case _:
                return self._scalar(float(evaluate(term, self.bindings)), dtype or self.dtype)

    def _scalar(self, number: float, dtype: str) -> SSAValue:
        if not is_float(dtype) and not number.is_integer():
            raise MisfitError(f"the replacement does not fit: {number:g} is no number of {dtype}")
        return self.b.scalar(number, dtype)

    def _named(self, name: str) -> SSAValue:
        if name not in self.bindings.values:
            raise UnboundError(name)
        return self.bindings.values[name]

    def _is_bound(self, term: Term) -> bool:
        match term:
            case Name():
                return term.text in self.bindings.values
            case Apply():
                return all(map(self._is_bound, term.operands))
            case Number():
                return True
            case Coalesce():
                return any(map(self._is_bound, term.options))
            case Literal():
                return term.name in self.bindings.numbers
            case _:
                return False

    def _apply(self, term: Apply) -> SSAValue:
        operands = self._operands(term)
        kind, attributes = OPERATORS[term.op], self._attributes(term)
        main = [evaluate(each, self.bindings) for key, each in term.attributes if not key]
        first = tensor(operands[0])
        if term.op == "cast":
            return self.b.cast(operands[0], str(main[0]))
        if kind is PointwiseOp:
            return self.b.pointwise(term.op, *operands)
        if kind is ReduceOp:
            dims = dims_of(main, first.ndim)
            if dims is None:
                raise ShapeError(f"{term.op} over dims {main} of a value of {first.ndim} dims")
            kept = bool(attributes.get("keep_dims", True))
            return self.b.reduce(term.op, operands[0], dims, keep_dims=kept)
        if kind is ReshapeOp:
            return self.b.reshape(operands[0], main)
        if kind is BroadcastOp:
            return self.b.broadcast(operands[0], main)
        if kind is ContractOp and main:
            ranks = tuple(tensor(value).ndim for value in operands)
            attributes["spec"] = spec_of(main[0], ranks)
        if kind is TransposeOp and main:
            attributes["perm"] = perm = perm_of(main[0], first.ndim)
            inner = operands[0].owner
            if isinstance(inner, TransposeOp) and inner.perm == _inverse(perm):
                return inner.x
        return self.b.op(kind, operands, **attributes)

    def _operands(self, term: Apply) -> list[SSAValue]:
        """Return the operands; numbers take the dtype of the first that is a number of its own."""
        kept = [
            each.term if isinstance(each, Perhaps) else each
            for each in term.operands
            if not isinstance(each, Perhaps) or self._is_bound(each.term)
        ]
        operands = [
            None if isinstance(each, Number | Literal) else self.value(each) for each in kept
        ]
        types = [tensor(value).dtype for value in operands if value is not None]
        dtype = next((each for each in types if each != "i1"), self.dtype)
        return [
            self.value(each, dtype) if value is None else value
            for each, value in zip(kept, operands, strict=True)
        ]

    def _attributes(self, term: Apply) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        for key, each in term.attributes:
            if key == "like":
                op = evaluate(each, self.bindings).owner
                assert isinstance(op, FlowOp)
                attributes = {**op.plain, **attributes}
            elif key:
                attributes[key] = evaluate(each, self.bindings)
        for key in attributes.keys() & floating_attributes(term.op):
            attributes[key] = float(attributes[key])
        return attributes


def _inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(perm.index(dim) for dim in range(len(perm)))
