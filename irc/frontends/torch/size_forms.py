"""Sizes and conditions of a torch trace as polynomials and quotients that a plan can say."""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import sympy
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Mod, PythonMod

from irc.dialects.size import Dim, Relation, Size, floor_quotient, symbol
from irc.errors import IrcError

RELATIONS: dict[Any, tuple[Relation, bool]] = {
    sympy.Eq: ("==", True), sympy.Ne: ("==", False),
    sympy.Lt: ("<", True), sympy.Ge: ("<", False),
    sympy.Le: ("<=", True), sympy.Gt: ("<=", False),
}  # fmt: skip


@dataclass
class SizeForms:
    """Turns sympy's expressions into sizes; quotients get names.

    >>> s, forms = sympy.Symbol("s0"), SizeForms()
    >>> str(forms.dim(FloorDiv(s + 1, 2) * 3)), {k: str(d) for k, (d, _) in forms.quotients.items()}
    ('3*f0', {'f0': 's0 + 1'})
    """

    quotients: dict[str, tuple[Dim, Dim]] = field(default_factory=dict[str, tuple[Dim, Dim]])

    def dim(self, expr: Any) -> Dim:
        """Return an expression as a size.

        Raises:
            IrcError: ``size-unbound`` where it is none: a minimum, a float.
        """
        if isinstance(expr, int) or getattr(expr, "is_Integer", False):
            return int(expr)
        if expr.is_Symbol:
            return symbol(str(expr))
        if expr.is_Add or expr.is_Mul:
            total: Dim = 0 if expr.is_Add else 1
            for part in map(self.dim, expr.args):
                total = total + part if expr.is_Add else total * part
            return total
        if expr.is_Pow and expr.args[1].is_Integer and 0 < int(expr.args[1]) <= 8:
            base, total = self.dim(expr.args[0]), 1
            for _ in range(int(expr.args[1])):
                total = total * base
            return total
        if isinstance(expr, FloorDiv | CleanDiv | Mod | PythonMod):
            return self._divided(expr)
        raise IrcError(
            "size-unbound", f"a plan's file cannot say the size '{expr}'",
            help="fix this size: leave it out of dynamic",
        )  # fmt: skip

    def condition(self, expr: Any) -> list[tuple[Relation, Dim, bool, str]]:
        """Return a condition as relations of sizes to 0, all of which hold.

        Raises:
            IrcError: ``size-unbound``.
        """
        if isinstance(expr, sympy.And):
            return [conjunct for part in expr.args for conjunct in self.condition(part)]
        if expr in (sympy.true, True):
            return []
        if type(expr) not in RELATIONS:
            raise IrcError(
                "size-unbound", f"a plan's file cannot say the condition '{expr}'",
                help="fix a size in it: leave it out of dynamic",
            )  # fmt: skip
        relation, holds = RELATIONS[type(expr)]
        return [(relation, self.dim(expr.lhs) - self.dim(expr.rhs), holds, "")]

    def _divided(self, expr: Any) -> Dim:
        dim, by = map(self.dim, expr.args)
        if isinstance(dim, Size) and isinstance(by, int):
            quotient = floor_quotient(dim, by, self._named) if by > 0 else self._named(dim, by)
        else:
            both = isinstance(dim, int) and isinstance(by, int)
            quotient = dim // by if both else self._named(dim, by)
        assert quotient is not None
        return quotient if isinstance(expr, FloorDiv | CleanDiv) else dim - quotient * by

    def _named(self, dim: Dim, by: Dim) -> Size:
        for name, known in self.quotients.items():
            if known == (dim, by):
                return symbol(name)
        name = f"f{len(self.quotients)}"
        self.quotients[name] = (dim, by)
        return symbol(name)
