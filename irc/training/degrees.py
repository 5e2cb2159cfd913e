"""How values grow with the samples of a batch, told by two captures of different sizes.

A value has the *degree* n where twice as many samples, each of the first ones twice, make it 2^n
times as large: 0 for a mean over samples and for what is computed of each of them, 1 for a sum. A
sum over a dim whose sizes differ adds one, a literal that differs (a number of samples) its own
exponent, products and quotients add and subtract. What no rule knows has no degree.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, log, prod
from typing import Any, TypeAlias

from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue

from irc.dialects.builder import arguments, entry, functions
from irc.dialects.flow import (
    BroadcastOp,
    ConcatOp,
    ContractOp,
    FlowOp,
    PadOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    tensor,
)
from irc.dialects.indexing import GatherOp, TakeOp
from irc.dialects.literals import ConstantOp
from irc.program import Program

Degree: TypeAlias = "float | None"
"""How a value grows with the samples; None where that cannot be told."""

ALIKE = frozenset({"neg", "cast", "copy", "abs", "detach"})
POWERS = {"sqrt": 0.5, "reciprocal": -1.0, "rsqrt": -0.5}
COMPARED = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
MOVES = (ReshapeOp, BroadcastOp, TransposeOp, SliceOp, PadOp, GatherOp, TakeOp)
"""Ops whose result has numbers of their first operand."""

CLOSE = 1e-6
"""Of exponents, to a whole number."""


def have_same_ops(program: Program, other: Program) -> bool:
    """Return whether two captures differ in sizes and literals alone."""
    return _names(entry(program.module)) == _names(entry(other.module))


def _names(func: FuncOp) -> list[str]:
    return [op.name for op in func.body.block.ops]


class Degrees:
    """The degrees of the values of a program.

    Attributes:
        of: by value; None, or no entry, where a degree cannot be told.
    """

    def __init__(self, program: Program, other: Program, ratio: float) -> None:
        self.of: dict[SSAValue, Degree] = {}
        self._ratio = ratio
        self._functions = functions(program.module), functions(other.module)
        mine, theirs = entry(program.module), entry(other.module)
        if not have_same_ops(program, other):
            return
        named = {name: value for _, name, value in arguments(theirs)}
        for _, name, value in arguments(mine):
            held = [p.tensors.get(name) for p in (program, other)]
            is_same = held[0] is held[1] or _are_equal(*held)
            degree = 0.0 if is_same else self._of_numbers(*held)
            self.of[value] = degree if name in named else None
        self._run(mine, theirs)

    def _run(self, func: FuncOp, twin: FuncOp) -> list[Degree]:
        """Give values of a function their degrees; return those of its results."""
        for op, other in zip(func.body.block.ops, twin.body.block.ops, strict=True):
            if isinstance(op, FlowOp) and isinstance(other, FlowOp):
                degrees = [self._degree(op, other)] * len(op.results)
            elif isinstance(op, CallOp) and isinstance(other, CallOp):
                degrees = self._called(op, other)
            else:
                degrees = [None] * len(op.results)
            self.of.update(zip(op.results, degrees, strict=True))
        end = func.body.block.last_op
        return [] if end is None else [self.of.get(value) for value in end.operands]

    def _called(self, op: CallOp, other: CallOp) -> list[Degree]:
        """Return the degrees of what a function, such as a layer of several alike, gives."""
        func, twin = (
            known[call.callee.string_value()]
            for known, call in zip(self._functions, (op, other), strict=True)
        )
        if _names(func) != _names(twin):
            return [None] * len(op.results)
        degrees = [self.of.get(operand) for operand in op.operands]
        self.of.update(zip(func.body.block.args, degrees, strict=True))
        return self._run(func, twin)

    def _degree(self, op: FlowOp, twin: FlowOp) -> Degree:
        degrees = [self.of.get(operand) for operand in op.operands]
        if isinstance(op, ConstantOp) and isinstance(twin, ConstantOp):
            return self._of_literal(op, twin)
        if _is_bound(op):
            return degrees[2]
        if any(each is None for each in degrees):
            return None
        known = [each for each in degrees if each is not None]
        if isinstance(op, PointwiseOp):
            return _pointwise(fn_of(op), known, op.operands)
        if isinstance(op, ReduceOp):
            dims: Sequence[int] = op.dims
            count, more = (
                prod(tensor(each.operands[0]).static_shape()[dim] for dim in dims)
                for each in (op, twin)
            )
            return self._summed(known[0], count, more, fn_of(op))
        if isinstance(op, ContractOp) and isinstance(twin, ContractOp):
            return self._summed(sum(known), _contracted(op), _contracted(twin), "sum")
        if isinstance(op, ConcatOp):
            return known[0] if len(set(known)) == 1 else None
        if isinstance(op, MOVES):
            return known[0] if not any(known[1:]) else None
        if any(known) or (_grows(op.operands, twin.operands) > _grows(op.results, twin.results)):
            return None  # it adds up, or something else, over the samples
        return 0.0

    def _summed(self, degree: float, count: int, more: int, fn: str) -> Degree:
        """Return the degree of what is reduced over so many elements, and over more."""
        if count == more:
            return degree
        if fn != "sum":
            return degree if fn in ("max", "min", "any", "all") else None
        exponent = log(more / count, self._ratio)
        return degree + 1.0 if abs(exponent - 1.0) < CLOSE else None

    def _of_literal(self, op: ConstantOp, twin: ConstantOp) -> Degree:
        values, others = ([float(abs(v)) for v in each.value] for each in (op, twin))
        if values == others or (len(values) == len(others) == 1 and values[0] != values[0]):
            return 0.0
        if len(values) != 1 or len(others) != 1:
            return None
        return self._exponent(values[0], others[0])

    def _of_numbers(self, one: Any, other: Any) -> Degree:
        """Return the degree of a constant that the captures hold, such as a number of samples."""
        if any(each is None or each.is_meta or each.numel() != 1 for each in (one, other)):
            return None
        return self._exponent(*(float(abs(each.item())) for each in (one, other)))

    def _exponent(self, value: float, other: float) -> Degree:
        if not value or not other or not isfinite(value) or not isfinite(other):
            return None
        exponent = log(other / value, self._ratio)
        return float(round(exponent)) if abs(exponent - round(exponent)) < CLOSE else None


def _is_bound(op: FlowOp) -> bool:
    """True for ``where(x < c, c, x)`` and the like: what is trained is bounded so."""
    if not isinstance(op, PointwiseOp) or op.fn != "where":
        return False
    condition, limit, x = op.operands
    test = condition.owner
    if not isinstance(test, PointwiseOp) or test.fn not in ("lt", "le", "gt", "ge"):
        return False
    return isinstance(limit.owner, ConstantOp) and (*test.operands,) == (x, limit)


def _pointwise(fn: str, degrees: Sequence[float], operands: Sequence[SSAValue]) -> Degree:
    if not any(degrees):
        return 0.0
    if fn in ALIKE:
        return degrees[0]
    if fn in POWERS:
        return degrees[0] * POWERS[fn]
    if fn == "mul":
        return sum(degrees)
    if fn == "div":
        return degrees[0] - degrees[1]
    if fn in ("is_nan", "is_inf") or (fn in COMPARED and _is_fixed(degrees, operands)):
        return 0.0
    if fn == "written":
        return degrees[1]
    if fn == "where":
        degrees, operands = degrees[1:], operands[1:]
    if fn in ("where", "maximum", "minimum"):
        # A bound, or what stands for nothing.
        bound = [isinstance(operand.owner, ConstantOp) for operand in operands]
        kept = {degree for degree, is_bound in zip(degrees, bound, strict=True) if not is_bound}
        return kept.pop() if len(kept) == 1 else None
    if fn in ("add", "sub"):
        return degrees[0] if len(set(degrees)) == 1 else None
    return None


def _is_fixed(degrees: Sequence[float], operands: Sequence[SSAValue]) -> bool:
    """True where a comparison gives the same of more samples: one with zero or infinity does."""
    numbers = [op.value for v in operands if isinstance(op := v.owner, ConstantOp)]
    return len(set(degrees)) == 1 or any(abs(n) in (0, inf) for each in numbers for n in each)


def _contracted(op: ContractOp) -> int:
    """Return over how many products each element of a contraction is a sum."""
    inputs, _, result = op.spec.partition("->")
    sizes: dict[str, int] = {}
    for letters, operand in zip(inputs.split(","), op.operands, strict=True):
        sizes |= dict(zip(letters, tensor(operand).static_shape(), strict=True))
    return prod(size for letter, size in sizes.items() if letter not in result)


def _grows(values: Sequence[SSAValue], others: Sequence[SSAValue]) -> bool:
    """True where some value has other sizes in the other capture."""
    return any(a.type != b.type for a, b in zip(values, others, strict=True))


def _are_equal(one: Any, other: Any) -> bool:
    """Return whether two tensors that captures hold, if any, have the same numbers."""
    if one is None or other is None:
        return one is other
    if one.shape != other.shape or one.is_meta or other.is_meta:
        return one.shape == other.shape
    return one.data_ptr() == other.data_ptr() or bool((one == other).all())


def fn_of(op: Operation) -> str:
    """Return the function of a pointwise op or a reduction; of what moves numbers ``copy``."""
    return op.fn if isinstance(op, PointwiseOp | ReduceOp) else "copy"
