"""ATen's diagonals: a slice of the flattened rows."""

from __future__ import annotations

from xdsl.ir import SSAValue

from irc.dialects.flow import tensor
from irc.frontends.torch.lowering import Lowering, dim_of, lowers, number
from irc.frontends.torch.shapes import permuted, sliced


def diagonal_of(
    t: Lowering, x: SSAValue, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> SSAValue:
    """Return the diagonal of two dims as the last dim: every ``columns + 1``-th element of a row.

    Args:
        t: the op at hand.
        x: two or more dims; the two must be known.
        offset: how far above the main diagonal.
        dim1: the rows.
        dim2: the columns.
    """
    rest, order = to_end(tensor(x).ndim, dim1, dim2)
    shape = [tensor(x).shape[d] for d in order]
    rows, columns = number(shape[-2]), number(shape[-1])
    length = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    flat = t.b.reshape(permuted(t, x, order), (*shape[:-2], rows * columns))
    first = max(offset, 0) - min(offset, 0) * columns if length else 0
    last = first + (length - 1) * (columns + 1) + 1 if length else 0
    return sliced(t, flat, len(rest), first, last, columns + 1)


def to_end(ndim: int, dim1: int, dim2: int) -> tuple[list[int], list[int]]:
    """Return the dims beside the two, and all of them with the two at the end."""
    ends = [dim_of(dim1, ndim), dim_of(dim2, ndim)]
    rest = [d for d in range(ndim) if d not in ends]
    return rest, [*rest, *ends]


@lowers("diagonal", "diagonal_copy", numbers="any")
def diagonal(
    t: Lowering, self: SSAValue, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> SSAValue:
    """Return a diagonal as the last dim."""
    return diagonal_of(t, self, offset, dim1, dim2)
