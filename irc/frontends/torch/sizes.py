"""Sizes in torch's graphs as sizes of irc: polynomials under the user's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from irc.dialects.size import Dim, symbol

if TYPE_CHECKING:
    import sympy


class SizeError(ValueError):
    """A size that depends on tensor values, or that is no polynomial of the named sizes."""


class SizeNames:
    """The user's name for each of torch's symbols; unnamed ones keep torch's name.

    >>> import sympy
    >>> names = SizeNames({"s72": "B"})
    >>> str(names.dim(sympy.Symbol("s72") * 4 + 1))
    '4*B + 1'
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = dict(names)

    def dim(self, size: Any) -> Dim:
        """Return an int, SymInt or sympy expression as a size.

        Raises:
            SizeError: where the size has no polynomial form.
        """
        if isinstance(size, int):
            return size
        if isinstance(size, torch.SymInt):
            size = size.node.expr
        return self._polynomial(size)

    def number(self, value: Any) -> Any:
        """Return a number that is computed from sizes and need not be whole.

        Raises:
            SizeError: always; where sizes are numbers, so is this.
        """
        raise SizeError(f"'{value}' is computed from dynamic sizes and is no whole number")

    def _polynomial(self, expr: sympy.Expr) -> Dim:
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol:
            name = str(expr)
            if name.startswith(("u", "zuf")) and name not in self._names:
                raise SizeError(f"size '{name}' depends on the values of a tensor")
            return symbol(self._names.get(name, name))
        if expr.is_Add:
            total: Dim = 0
            for part in expr.args:
                total = total + self._polynomial(part)
            return total
        if expr.is_Mul:
            scaled: Dim = 1
            for part in expr.args:
                scaled = scaled * self._polynomial(part)
            return scaled
        if expr.is_Pow and expr.args[1].is_Integer and int(expr.args[1]) > 0:
            scaled = 1
            for _ in range(int(expr.args[1])):
                scaled = scaled * self._polynomial(expr.args[0])
            return scaled
        raise SizeError(f"size '{expr}' is no polynomial of the dynamic sizes")


def named_symbols(tensors: list[torch.Tensor], specs: list[Any]) -> dict[str, str]:
    """Map torch's symbols in the shapes of traced inputs to the names in their dynamic shapes.

    Args:
        tensors: the fake inputs, in the order of ``specs``.
        specs: per input None, or what the user gave for its dims (a mapping or a sequence).
    """
    names: dict[str, str] = {}
    for tensor, spec in zip(tensors, specs, strict=True):
        for index, dim in dims_of(spec):
            name, size = getattr(dim, "__name__", None), tensor.shape[index]
            if name is None or not isinstance(size, torch.SymInt):
                continue
            expr = size.node.expr
            if expr.is_Symbol and name.isidentifier():
                names[str(expr)] = name
    return names


def dims_of(spec: Any) -> Iterator[tuple[int, Any]]:
    """Yield (dim, what the user said of it) of one tensor's dynamic shape."""
    if isinstance(spec, Mapping):
        yield from spec.items()
    elif isinstance(spec, list | tuple):
        yield from enumerate(spec)
