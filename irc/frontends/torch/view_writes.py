"""ATen's writes into views, as values: slices, single elements of a dim, diagonals."""

from __future__ import annotations

from xdsl.ir import SSAValue

from irc.dialects.flow import PadOp, tensor
from irc.dialects.size import Dim, Size
from irc.frontends.torch.diagonals import to_end
from irc.frontends.torch.lowering import Lowering, dim_of, lowers, number
from irc.frontends.torch.shapes import bound, iota, joined, permuted, sliced


@lowers("slice_scatter", numbers="complex")
def slice_scatter(
    t: Lowering,
    self: SSAValue,
    src: SSAValue,
    dim: int = 0,
    start: Dim | None = None,
    end: Dim | None = None,
    step: int = 1,
) -> SSAValue:
    """Replace a slice: what is before, the source, what is after."""
    dim = dim_of(dim, len(t.shape))
    size = t.shape[dim]
    first, last = bound(start, size, 0), bound(end, size, size)
    if isinstance(first, Size):
        t.decline()
    if isinstance(last, int):
        last = max(first, last)  # an empty slice may end before it starts
    if step != 1:
        return _with_steps(t, self, t.b.cast(src, t.dtype), dim, (first, number(last), step))
    if first == 0 and last == size:
        return t.b.cast(src, t.dtype)
    before = [] if first == 0 else [sliced(t, self, dim, 0, first)]
    after = [] if last == size else [sliced(t, self, dim, last, size)]
    return joined(t, [*before, t.b.cast(src, t.dtype), *after], dim)


def _with_steps(
    t: Lowering, x: SSAValue, part: SSAValue, dim: int, where: tuple[int, int, int]
) -> SSAValue:
    """Replace every ``step``-th element: the source with gaps, where its elements stand."""
    first, last, step = where
    size, shape = number(t.shape[dim]), tensor(part).shape
    count = number(shape[dim])
    if not count:
        return x
    ones = t.b.reshape(part, (*shape[: dim + 1], 1, *shape[dim + 1 :]))
    gaps = _padded(t, ones, dim + 1, 0, step - 1)
    apart = t.b.reshape(gaps, (*shape[:dim], count * step, *shape[dim + 1 :]))
    length = min(count * step, size - first)
    placed = _padded(t, sliced(t, apart, dim, 0, length), dim, first, size - first - length)
    place = t.b.pointwise("sub", iota(t, size), t.value(first, "i64"))
    hit = t.b.pointwise(
        "eq", t.b.pointwise("remainder", place, t.value(step, "i64")), t.value(0, "i64")
    )
    inside = t.b.pointwise(
        "logical_and",
        t.b.pointwise("ge", place, t.value(0, "i64")),
        t.b.pointwise("lt", place, t.value(last - first, "i64")),
    )
    on = t.b.pointwise("logical_and", hit, inside)
    on = t.b.reshape(on, (size, *(1,) * (len(t.shape) - dim - 1)))
    return t.b.pointwise("where", on, placed, x)


def _padded(t: Lowering, x: SSAValue, dim: int, low: int, high: int) -> SSAValue:
    if not low and not high:
        return x
    lows, highs = [0] * tensor(x).ndim, [0] * tensor(x).ndim
    lows[dim], highs[dim] = low, high
    return t.b.op(PadOp, [x], low=tuple(lows), high=tuple(highs), value=0.0)


@lowers("select_scatter", numbers="complex")
def select_scatter(t: Lowering, self: SSAValue, src: SSAValue, dim: int, index: int) -> SSAValue:
    """Replace one element of a dim."""
    dim = dim_of(dim, len(t.shape))
    first = bound(index, t.shape[dim], 0)
    one = t.b.reshape(src, (*t.shape[:dim], 1, *t.shape[dim + 1 :]))
    return slice_scatter(t, self, one, dim, first, first + 1)


@lowers("diagonal_scatter", numbers="complex")
def diagonal_scatter(
    t: Lowering, self: SSAValue, src: SSAValue, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> SSAValue:
    """Replace a diagonal: a choice per element, with the source along the rows or columns."""
    _, order = to_end(tensor(self).ndim, dim1, dim2)
    x = permuted(t, self, order)
    *outer, rows, columns = tensor(x).shape
    # Element k lies in row k above the main diagonal, in column k below it.
    along = rows if offset >= 0 else columns
    if list(tensor(src).shape[:-1]) != outer:  # a shape that only a run of torch refuses
        t.decline()
    length = number(tensor(src).shape[-1])
    part = _padded(t, t.b.cast(src, t.dtype), len(outer), 0, number(along) - length)
    shape = (along, 1) if offset >= 0 else (1, along)
    row = t.b.reshape(iota(t, rows), (rows, 1))
    on = t.b.pointwise("eq", t.b.pointwise("add", row, t.value(offset, "i64")), iota(t, columns))
    wide = t.b.broadcast(t.b.reshape(part, (*outer, *shape)), tensor(x).shape)
    return permuted(
        t, t.b.pointwise("where", on, wide, x), [order.index(d) for d in range(len(order))]
    )
