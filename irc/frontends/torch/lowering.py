"""What one ATen op means in flow: the table, and what its rows are written with.

A row is a function of a :class:`Lowering` and the op's arguments, under the names of ATen's schema;
tensors arrive as values, sizes as :data:`~irc.dialects.size.Dim`. It returns a value, or a list of
them (None for one that nothing reads). A row that cannot express its arguments calls
:meth:`Lowering.decline`, and the op becomes a ``flow.extern``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Never, TypeAlias

import torch
from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import tensor
from irc.dialects.items import holds
from irc.dialects.size import Dim, Size, product, symbol, terms_of
from irc.dialects.types import TensorType, is_float
from irc.kernels.holds import LIBRARY_DTYPES
from irc.ops.infer import broadcast_shapes
from irc.runtime.dtypes import dtype_names, dtypes

Scalar: TypeAlias = bool | int | float | Size
Operand: TypeAlias = SSAValue | Scalar
Row: TypeAlias = Callable[..., Any]

TABLE: dict[str, Row] = {}
"""Rows by ATen name without namespace: ``add``, or ``add.Tensor`` for one overload; of irc's own
ops by their whole names."""

Numbers: TypeAlias = Literal["real", "complex", "any"]
"""Of which elements a row says what its op means: the real numbers that kernels know, complex ones
too, or any, where it tells places apart and no values."""

NUMBERS: dict[Row, Numbers] = {}
"""By row; one that is not here is for real numbers. All else is the library's, as a whole op."""

COMPLEX = frozenset({"c64", "c128"})

ARITHMETIC = frozenset({"add", "sub", "mul", "div"})
"""Functions in which torch takes a number beside half types in float32."""


class Declined(Exception):  # noqa: N818 - an answer, not an error
    """The row cannot express these arguments."""


def lowers(*names: str, numbers: Numbers = "real") -> Callable[[Row], Row]:
    """Enter a function in the table under ATen names."""

    def enter_row(row: Row) -> Row:
        enter(dict.fromkeys(names, row), numbers)
        return row

    return enter_row


def enter(rows: Mapping[str, Row], numbers: Numbers = "real") -> None:
    """Enter rows in the table by ATen name."""
    for name, row in rows.items():
        assert name not in TABLE, f"two rows for aten::{name}"
        TABLE[name] = row
        NUMBERS[row] = numbers


def is_for(row: Row, dtypes: Iterable[str]) -> bool:
    """True where a row says what its op means on elements of these types."""
    numbers, beyond = NUMBERS.get(row, "real"), LIBRARY_DTYPES & {*dtypes}
    return not beyond or numbers == "any" or (numbers == "complex" and beyond <= COMPLEX)


class Lowering:
    """The op at hand: a builder, the result types that torch states, which results are read.

    Attributes:
        b: where flow ops go.
        results: the stated types; ``shape`` and ``dtype`` are those of the first.
        read: per result, whether anything reads it.
        random: gives the seed of this call, and a number that no other random op has.
        autocast: true where torch casts operands to the dtype of the result by itself.
    """

    def __init__(
        self,
        b: FlowBuilder,
        results: Sequence[TensorType],
        read: Sequence[bool],
        random: Callable[[], tuple[SSAValue, int]],
        *,
        autocast: bool = False,
    ) -> None:
        self.b = b
        self.results = results
        self.read = read
        self.random = random
        self.autocast = autocast

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The stated shape of the first result."""
        return self.results[0].shape

    @property
    def dtype(self) -> str:
        """The stated dtype of the first result."""
        return self.results[0].dtype

    def decline(self) -> Never:
        """Leave the op to its library."""
        raise Declined

    def require_one_dtype(self, *operands: SSAValue) -> None:
        """Leave operands of several dtypes to torch, which refuses them unless autocast casts."""
        if not self.autocast and len({tensor(x).dtype for x in operands}) > 1:
            self.decline()

    def value(self, operand: Operand, dtype: str) -> SSAValue:
        """Return an operand as a value of a dtype; Python numbers become rank-0 constants.

        Raises:
            NumberError: where the dtype does not hold the number: an answer as is `Declined`.
        """
        if isinstance(operand, SSAValue):
            return self.b.cast(operand, dtype)
        if isinstance(operand, Size):
            return self.b.cast(self.size_value(operand), dtype)
        return self.b.scalar(operand, dtype)

    def size_value(self, size: Dim) -> SSAValue:
        """Return a size as a number at run time: ones in that shape, added up."""
        total: SSAValue | None = None
        for monomial, coefficient in terms_of(size):
            shape = [symbol(name) for name, power in monomial for _ in range(power)]
            part = self.b.scalar(coefficient, "i64")
            if shape:
                ones = self.b.broadcast(part, shape)
                part = self.b.reduce("sum", ones, range(len(shape)), keep_dims=False)
            total = part if total is None else self.b.pointwise("add", total, part)
        return self.b.scalar(0, "i64") if total is None else total

    def pointwise(self, fn: str, *operands: Operand, dtype: str | None = None) -> SSAValue:
        """Apply a scalar function in ``dtype`` (the result's, where it is not given)."""
        dtype = dtype or self.dtype
        wide = self.widened(fn, dtype, operands)
        result = self.b.pointwise(fn, *[self.value(operand, wide) for operand in operands])
        return (
            self.b.cast(result, dtype) if wide != dtype and tensor(result).dtype == wide else result
        )

    def widened(self, fn: str, dtype: str, operands: Sequence[Operand]) -> str:
        """Return float32 for half types with a number that they would round, as torch does.

        One that they do not hold is infinite in torch's other functions: its own affair.
        """
        if dtype not in ("f16", "bf16"):
            return dtype
        half = dtypes()[dtype]
        numbers = [float(n) for n in operands if isinstance(n, int | float)]
        if fn not in ARITHMETIC and not all(holds(n, dtype) for n in numbers):
            self.decline()
        rounds = any(n == n and float(torch.tensor(n, dtype=half)) != n for n in numbers)
        return "f32" if rounds else dtype

    def rounded(self, operand: Operand) -> Operand:
        """Return a number as a half type of the result holds it; all else as it is.

        Most of torch's kernels take a number in float32 (:meth:`widened`), and these do not: powers
        and remainders.
        """
        if self.dtype not in ("f16", "bf16") or not isinstance(operand, int | float):
            return operand
        return float(torch.tensor(operand, dtype=dtypes()[self.dtype]))

    def promoted(self, *operands: Operand) -> str:
        """Return the dtype in which torch computes on these operands."""
        stand_ins = [_stand_in(operand) for operand in operands]
        stand_in = stand_ins[0]
        if len(stand_ins) == 1:
            return dtype_names()[torch.result_type(stand_in, stand_in)]
        for other in stand_ins[1:]:
            dtype = torch.result_type(stand_in, other)
            dims = max(getattr(s, "ndim", 0) for s in (stand_in, other))
            stand_in = torch.empty((1,) * dims, dtype=dtype, device="meta")
        return dtype_names()[stand_in.dtype]

    def accumulating(self, dtype: str) -> str:
        """Return the dtype for means and sums of squares: float32 for half types."""
        return "f32" if dtype in ("f16", "bf16") else dtype

    def full(self, value: Operand) -> SSAValue:
        """Return one number in the shape and dtype of the result."""
        if isinstance(value, SSAValue | Size):
            return self.b.broadcast(self.value(value, self.dtype), self.shape)
        return self.b.constant([value], self.shape, self.dtype)


def _stand_in(operand: Operand) -> Any:
    if isinstance(operand, SSAValue):
        kind = tensor(operand)
        # Tensors with dims outrank those without: only the number of dims matters.
        return torch.empty((1,) * kind.ndim, dtype=dtypes()[kind.dtype], device="meta")
    return 1 if isinstance(operand, Size) else operand


def ranked(t: Lowering, x: SSAValue) -> SSAValue:
    """Return a number without dims as a vector of one, which ops along a dim take."""
    return x if tensor(x).ndim else t.b.reshape(x, (1,))


def dim_of(dim: int, ndim: int) -> int:
    """Return a dim counted from the front; dims of a scalar are 0."""
    return dim % ndim if ndim else 0


def dims_of(dims: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Return dims counted from the front, in order; None and () are all of them."""
    if dims is None or (not isinstance(dims, int) and not dims):
        return tuple(range(ndim))
    listed = (dims,) if isinstance(dims, int) else dims
    return tuple(sorted({dim_of(dim, ndim) for dim in listed})) if ndim else ()


def number(size: Dim) -> int:
    """Return a size that must be known."""
    if isinstance(size, Size):
        raise Declined
    return size


def count(shape: Sequence[Dim], dims: Sequence[int]) -> Dim:
    """Return how many elements the dims hold."""
    return product(shape[dim] for dim in dims)


__all__ = [
    "TABLE",
    "Declined",
    "Lowering",
    "Operand",
    "broadcast_shapes",
    "count",
    "dim_of",
    "dims_of",
    "is_float",
    "lowers",
    "number",
    "ranked",
]
