"""The functions of irc.ops.functions as LLVM instructions, by kind of operand.

A function of floats is a few instructions (`instructions`), or what its record says: an intrinsic,
a function of the C library, or a formula of other functions; for float32 the vector code of its
name in `exponentials`, `gamma`, `logarithms` or `trigonometry`, where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self, TypeAlias

from irc.backends.cpu.vector import (
    exponentials,
    gamma,
    instructions,
    integers,
    logarithms,
    trigonometry,
)
from irc.backends.cpu.vector.builder import Builder, Operand, constant
from irc.backends.cpu.vector.rounded import rounded_form
from irc.backends.cpu.vector.storage import cast, truth
from irc.dialects.types import is_float
from irc.ops.functions import POINTWISE
from irc.ops.functions.formula import Arguments, Expression, Formula
from irc.ops.functions.record import Pointwise

Emit: TypeAlias = Callable[..., Operand]
"""Appends a function of the operands that follow the builder."""

HELD = {"double": "f64", "float": "f32"}
COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


def apply(
    b: Builder, fn: str, args: Sequence[Operand], dtypes: Sequence[str], result: str
) -> Operand:
    """Append a pointwise function of operands of the given dtypes."""
    if fn == "cast":
        return cast(b, args[0], dtypes[0], result)
    if fn in ("copy", "detach"):
        return args[0]
    if fn == "written":
        return args[1]
    if fn == "where":
        return b.select(truth(b, args[0]), args[1], args[2])
    if fn.startswith("logical_"):
        return _logical(b, fn, [truth(b, x) for x in args])
    if is_float(dtypes[0]):
        if fn in COMPARE:
            return b.compare(f"fcmp {COMPARE[fn]}", args[0], args[1])
        form = rounded_form(b, fn, args[0], result) if len(args) == 1 else None
        return form or FLOATS[fn](b, *args)
    return integers.apply(b, fn, args, unsigned=dtypes[0] in ("u8", "i1"))


def _logical(b: Builder, fn: str, args: Sequence[Operand]) -> Operand:
    if fn == "logical_not":
        return b.binary("xor", args[0], constant(args[0].type, 1))
    return b.binary(fn.removeprefix("logical_"), args[0], args[1])


class _Written(Expression):
    """A float or truth value in a formula, as instructions."""

    def __init__(self, b: Builder, value: Operand, dtype: str) -> None:
        self.b, self.value, self.dtype = b, value, dtype

    def of(self, fn: str, *others: Expression | float) -> Self:
        """Append a pointwise function."""
        terms = [self, *self.terms(*others)]
        dtype = "i1" if POINTWISE[fn].result == "bool" else terms[-1].dtype
        values, dtypes = [t.value for t in terms], [t.dtype for t in terms]
        return type(self)(self.b, apply(self.b, fn, values, dtypes, dtype), dtype)

    def number(self, value: float) -> Self:
        """Return a constant."""
        return type(self)(self.b, constant(self.value.type, value), self.dtype)


def _composed(formula: Formula) -> Emit:
    def write(b: Builder, *args: Operand) -> Operand:
        term = formula(Arguments(*(_Written(b, x, HELD[x.type.element]) for x in args)))
        assert isinstance(term, _Written)
        return term.value

    return write


def _libm(name: str) -> Emit:
    def write(b: Builder, *args: Operand) -> Operand:
        return trigonometry.libm(b, name, *args)

    return write


def _intrinsic(name: str) -> Emit:
    def write(b: Builder, *args: Operand) -> Operand:
        return b.intrinsic(name, *args)

    return write


def _by_width(single: Emit, double: Emit) -> Emit:
    """One function for float32, another for float64."""

    def write(b: Builder, *args: Operand) -> Operand:
        return (double if args[0].type.element == "double" else single)(b, *args)

    return write


def _of_record(function: Pointwise) -> Emit | None:
    """Return what writes a function that is no instruction; None for one of no floats."""
    modules = (exponentials, gamma, logarithms, trigonometry)
    single = next((vars(m)[function.name] for m in modules if function.name in vars(m)), None)
    if function.llvm:
        double: Emit | None = _intrinsic(function.llvm)
    elif function.libm:
        double = _libm(function.libm)
    else:
        double = _composed(function.composed) if function.composed else None
    double = double or instructions.DOUBLE.get(function.name)
    return _by_width(single, double) if single and double else double


FLOATS: Mapping[str, Emit] = {
    **{name: emit for name, row in POINTWISE.items() if (emit := _of_record(row))},
    **instructions.UNARY,
    **instructions.BINARY,
}
"""What writes each function of floats."""
