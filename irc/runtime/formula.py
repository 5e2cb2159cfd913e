"""Formulas on tensors of torch: what autograd differentiates of an op that is declared by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from irc.dialects.items import is_smooth, number_in
from irc.errors import IrcError, did_you_mean
from irc.ops.functions import POINTWISE
from irc.ops.functions.formula import Expression
from irc.runtime.dtypes import dtype_name
from irc.runtime.flow_ops.elementwise import function_of

if TYPE_CHECKING:
    import torch


class OnTensor(Expression):
    """A tensor in a formula."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    def of(self, fn: str, *others: Expression | float) -> Self:
        """Apply a pointwise function."""
        if fn not in POINTWISE:
            raise ValueError(f"no pointwise function '{fn}'; {did_you_mean(fn, POINTWISE)}")
        values = [term.value for term in self.terms(*others)]
        return type(self)(function_of(fn)(self.value, *values))

    def number(self, value: float) -> Self:
        """Return a number of this tensor's dtype."""
        import torch

        check_number(value, dtype_name(self.value.dtype))
        return type(self)(torch.full((), value, dtype=self.value.dtype, device=self.value.device))


def check_number(value: float, dtype: str) -> None:
    """Refuse a number that a dtype would cut: in a formula it is of the dtype beside it.

    Raises:
        ValueError: for it.
    """
    if not is_smooth(dtype) and number_in(value, dtype) != value:
        raise ValueError(f"{value} beside values of {dtype}, which would make another number of it")


def on_tensors(target: str, formula: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of tensors that a formula is.

    Raises:
        IrcError: ``op-declaration`` where the formula fails, once it is called.
    """

    def reference(*args: Any, **kwargs: Any) -> Any:
        import torch

        def term(value: Any) -> Any:
            return OnTensor(value) if isinstance(value, torch.Tensor) else value

        try:
            result = formula(*map(term, args), **{key: term(v) for key, v in kwargs.items()})
        except Exception as error:  # the user's own code raises what it likes
            raise refused(target, f"{type(error).__name__}: {error}") from error
        if not isinstance(result, OnTensor):
            raise refused(target, f"it gives a {type(result).__name__}, not an expression")
        return result.value

    return reference


def refused(target: str, because: str) -> IrcError:
    """Return the error about a formula that cannot be used."""
    return IrcError(
        "op-declaration",
        f"the formula of {target} fails",
        because=because,
        help='it is arithmetic on its arguments, and functions as in x.of("tanh"), '
        'x.of("maximum", 0) or x.where(y.of("gt", 0), 1)',
    )
