"""Ops that :func:`irc.register_op` declares by a formula, as pointwise functions of flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from xdsl.ir import SSAValue

from irc.dialects.flow import tensor
from irc.errors import IrcError
from irc.frontends.torch.lowering import Declined, Lowering, Operand, Row
from irc.ops.custom import LIBRARIES, PointwiseFormula, declaration
from irc.ops.derivatives_pointwise import Term
from irc.runtime.dtypes import dtype_names, dtypes
from irc.runtime.formula import check_number, refused


def row_by_formula(name: str) -> Row | None:
    """Return the row of an op that is declared by a formula, by its name without an overload."""
    if name.partition("::")[0] in LIBRARIES:
        return None
    known = declaration(name)
    return _row(name, known.formula) if known and known.formula else None


class _Value(Term):
    """A value of flow in a formula of a user, who may write any number."""

    def number(self, value: float) -> Self:
        """Return a number of this value's dtype.

        Raises:
            ValueError: for one that the dtype would cut.
        """
        check_number(value, tensor(self.value).dtype)
        return super().number(value)


def _term(t: Lowering, value: SSAValue, dtype: str) -> Term:
    """Return an operand in the dtype of the formula; a mask stays one."""
    return _Value(t.b, value if tensor(value).dtype == "i1" else t.value(value, dtype))


def _dtype(t: Lowering, operands: Sequence[Operand]) -> str:
    """Return the dtype in which a formula is computed: it holds what is read and what is wanted.

    A comparison of floats reads floats, though its result is a mask.
    """
    tensors = [each for each in operands if isinstance(each, SSAValue)]
    read = dtypes()[t.promoted(*tensors)] if tensors else dtypes()[t.dtype]
    return t.accumulating(dtype_names()[torch.promote_types(read, dtypes()[t.dtype])])


def _row(name: str, formula: PointwiseFormula) -> Row:
    def row(t: Lowering, *args: Operand, **kwargs: Operand) -> SSAValue:
        dtype = _dtype(t, [*args, *kwargs.values()])

        def term(value: Operand) -> Term | Operand:
            return _term(t, value, dtype) if isinstance(value, SSAValue) else value

        try:
            result = formula(*map(term, args), **{key: term(v) for key, v in kwargs.items()})
        except Declined:
            raise
        except Exception as error:  # the user's own code raises what it likes
            raise refused(name, f"{type(error).__name__}: {error}") from error
        if not isinstance(result, Term):
            raise refused(name, f"it gives a {type(result).__name__}, not an expression")
        if tensor(result.value).shape != t.shape:
            raise IrcError(
                "op-declaration",
                f"the formula of {name} gives other sizes than the op",
                because=f"{tensor(result.value)} is not {t.results[0]}",
                help="a formula is of single elements, with what broadcasting does to them",
            )
        return result.value

    return row
