"""What a host program states of its values: dtypes and sizes, some with names.

A name gets its number from the first value that has it; the others are held to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from irc.errors import IrcError
from irc.plan.host_code import Stated
from irc.plan.open_sizes import Polynomial, dim_of, number_of
from irc.runtime.onnx_ops.values import FLOW, Item

Known: TypeAlias = dict[str, int]
"""The numbers behind names of sizes in one call of a function, as far as the run has come."""

_ARRAY: Any = np.ndarray
"""The class of arrays; an item that is one of them has any dtype."""


class Shape:
    """What is stated of a tensor, ready to be compared."""

    def __init__(self, stated: Stated) -> None:
        self.dtype = FLOW[stated.dtype]
        self._name = stated.dtype
        self._dims = [_dim(each) for each in stated.shape]
        numbers = [each for each in self._dims if isinstance(each, int)]
        self._fixed = tuple(numbers) if len(numbers) == len(self._dims) else None
        self._later = [(i, d) for i, d in enumerate(self._dims) if isinstance(d, tuple)]

    def learn(self, value: Item, known: Known) -> None:
        """Take the numbers of plain names from a value, and hold it to the rest.

        Raises:
            IrcError: ``input-mismatch``.
        """
        shape: tuple[int, ...] = value.shape
        if shape == self._fixed:
            return
        if len(shape) != len(self._dims):
            raise self._wrong(shape, known)
        for dim, size in zip(self._dims, shape, strict=True):
            if isinstance(dim, str):
                dim = known.setdefault(dim, size)
            if isinstance(dim, int) and dim != size:
                raise self._wrong(shape, known)
        for index, dim in self._later:
            if _number(dim, known) != shape[index]:
                raise self._wrong(shape, known)

    def check(self, name: str, value: Item) -> None:
        """Refuse an input of another dtype or rank, or of other sizes that are numbers.

        Raises:
            IrcError: ``input-mismatch``.
        """
        if (
            not isinstance(value, _ARRAY)
            or value.dtype != self.dtype
            or value.ndim != len(self._dims)
            or any(
                isinstance(d, int) and d != n for d, n in zip(self._dims, value.shape, strict=True)
            )
        ):
            dtype = getattr(value, "dtype", type(value).__name__)
            raise IrcError(
                "input-mismatch",
                f"input '{name}' is {list(getattr(value, 'shape', ()))} {dtype}; "
                f"the plan takes [{self._shown({})}] {self._name}",
            )

    def numbers(self, known: Known) -> list[int | None]:
        """Return the sizes, None where one is not known yet."""
        return [
            dim if isinstance(dim, int) else known.get(dim) if isinstance(dim, str)
            else _number(dim, known)
            for dim in self._dims
        ]  # fmt: skip

    def _shown(self, known: Known) -> str:
        sizes = zip(self.numbers(known), self._dims, strict=True)
        return ", ".join(
            str(n if n is not None else dim_of(d) if isinstance(d, tuple) else d) for n, d in sizes
        )

    def _wrong(self, shape: tuple[int, ...], known: Known) -> IrcError:
        said = self._shown(known)
        return IrcError("input-mismatch", f"a value is {list(shape)}, the program says [{said}]")


def shape_of(stated: Stated | None) -> Shape | None:
    """Return what is stated, ready to be compared; None where nothing is."""
    return None if stated is None else Shape(stated)


def _dim(polynomial: Polynomial) -> int | str | Polynomial:
    """Return a number, a name, or the polynomial where it is neither."""
    match polynomial:
        case ():
            return 0
        case ((coefficient, ()),):
            return coefficient
        case ((1, (name,)),):
            return name
        case _:
            return polynomial


def _number(polynomial: Polynomial, known: Known) -> int | None:
    try:
        return number_of(polynomial, known)
    except KeyError:
        return None


def no_rows(result_shapes: Sequence[Shape | None], known: Known) -> list[Item]:
    """Return what a loop of no trips collects: results of their types, without rows."""
    return [
        None if each is None
        else np.zeros([0, *(max(n or 0, 0) for n in each.numbers(known)[1:])], each.dtype)
        for each in result_shapes
    ]  # fmt: skip


def without_elements(result_shapes: Sequence[Shape | None], known: Known) -> list[Item] | None:
    """Return the results of a region where none of them has an element; None where one has."""
    items: list[Item] = []
    for each in result_shapes:
        sizes = [] if each is None else each.numbers(known)
        if each is None or 0 not in sizes or None in sizes:
            return None
        items.append(np.zeros([n or 0 for n in sizes], each.dtype))
    return items
