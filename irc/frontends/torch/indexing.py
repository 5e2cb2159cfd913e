"""ATen's lookups and writes by index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import SSAValue

from irc.dialects.attributes import to_attribute
from irc.dialects.flow import BroadcastOp, PointwiseOp, ReshapeOp, TransposeOp, tensor
from irc.dialects.indexing import GatherOp, ScatterOp, TakeOp
from irc.dialects.literals import ConstantOp, IotaOp
from irc.dialects.size import Dim, decided, product
from irc.frontends.torch.lowering import Lowering, Operand, broadcast_shapes, dim_of, lowers
from irc.frontends.torch.shapes import iota, may_be_trained, permuted

REDUCTIONS = {
    "sum": "sum",
    "add": "sum",
    "prod": "prod",
    "multiply": "prod",
    "amax": "max",
    "amin": "min",
}


@lowers("embedding", numbers="complex")
def embedding(
    t: Lowering,
    weight: SSAValue,
    indices: SSAValue,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> SSAValue:
    """Look rows up; the row of ``padding_idx`` is not trained, which the op says."""
    if scale_grad_by_freq and may_be_trained(weight):
        t.decline()  # the library's gradient counts how often a row is looked up
    value = t.b.op(TakeOp, [weight, indices], dim=0)
    if padding_idx >= 0 and isinstance(value.owner, TakeOp):
        value.owner.attributes["padding_idx"] = to_attribute(padding_idx)
    return value


@lowers("index_select", numbers="complex")
def index_select(t: Lowering, self: SSAValue, dim: int, index: SSAValue) -> SSAValue:
    """Take elements of a dim."""
    if not tensor(self).ndim or tensor(index).ndim != 1:
        t.decline()
    _require_index(t, index)
    return t.b.op(TakeOp, [self, index], dim=dim_of(dim, tensor(self).ndim))


def _require_index(t: Lowering, index: SSAValue) -> None:
    """Leave an index of other numbers to torch, which refuses it."""
    if tensor(index).dtype not in ("i32", "i64"):
        t.decline()


def from_front(t: Lowering, index: SSAValue, size: Dim) -> SSAValue:
    """Count negative indices from the end."""
    index = t.b.cast(index, "i64")
    wrapped = t.b.pointwise("add", index, t.value(size, "i64"))
    negative = t.b.pointwise("lt", index, t.value(0, "i64"))
    return t.b.pointwise("where", negative, wrapped, index)


@lowers("narrow.Tensor", numbers="complex")
def narrow_from(t: Lowering, self: SSAValue, dim: int, start: SSAValue, length: Dim) -> SSAValue:
    """Take so many elements of a dim, from a place that a tensor says."""
    dim = dim_of(dim, tensor(self).ndim)
    first = from_front(t, t.b.reshape(start, ()), tensor(self).shape[dim])
    return t.b.op(TakeOp, [self, t.b.pointwise("add", iota(t, length), first)], dim=dim)


@lowers("index.Tensor", "_unsafe_index.Tensor", numbers="complex")
def index(t: Lowering, self: SSAValue, indices: Sequence[SSAValue | None]) -> SSAValue:
    """Look up by several index tensors: one index into the dims that they cover, merged.

    Where a later one is outside its dim the index is -1, outside of all: merged, it would name an
    element of another row. Where the first one is, so is what it is merged into.
    """
    dims = [dim for dim, i in enumerate(indices) if i is not None]
    index_tensors = [i for i in indices if i is not None]
    if any(tensor(i).dtype in ("i1", "u8") for i in index_tensors):
        t.decline()
    shape = tensor(self).shape
    if dims != list(range(dims[0], dims[0] + len(dims))):
        # Index tensors apart: their dims go to the front of the result (numpy's rule).
        rest = [dim for dim in range(len(shape)) if dim not in dims]
        self = permuted(t, self, [*dims, *rest])
        shape, dims = tensor(self).shape, list(range(len(dims)))
    flat: SSAValue | None = None
    for dim, one in zip(dims, index_tensors, strict=True):
        is_inside = _counts_within(one, shape[dim])
        one = from_front(t, one, shape[dim])
        if flat is not None:
            count, own = t.value(shape[dim], "i64"), one
            one = t.b.pointwise("add", t.b.pointwise("mul", flat, count), own)
            if not is_inside:
                low = t.b.pointwise("ge", own, t.value(0, "i64"))
                inside = t.b.pointwise("logical_and", low, t.b.pointwise("lt", own, count))
                one = t.b.pointwise("where", inside, one, t.value(-1, "i64"))
        flat = one
    assert flat is not None
    first, last = dims[0], dims[-1] + 1
    merged = t.b.reshape(self, (*shape[:first], product(shape[first:last]), *shape[last:]))
    return t.b.op(TakeOp, [merged, flat], dim=first)


def _counts_within(index: SSAValue, size: Dim) -> bool:
    """True for numbers that count up and lie before a size, as those of masks do.

    A mask of attention is told by its form, which no check of an index is part of.
    """
    first = 0
    while not isinstance(owner := index.owner, IotaOp):
        if isinstance(owner, PointwiseOp) and owner.fn == "add":
            added = owner.operands[1].owner
            if not isinstance(added, ConstantOp) or len(added.value) != 1 or added.value[0] < 0:
                return False
            first += int(added.value[0])
        elif not isinstance(owner, BroadcastOp | ReshapeOp | TransposeOp):
            return False
        index = owner.operands[0]
    return decided("<=", first + tensor(index).shape[owner.dim] - size) is True


@lowers("gather", numbers="complex")
def gather(
    t: Lowering, self: SSAValue, dim: int, index: SSAValue, *, sparse_grad: bool = False
) -> SSAValue:
    """Look up along a dim, an index for each element."""
    if not tensor(self).ndim or tensor(index).ndim != tensor(self).ndim:
        t.decline()
    return t.b.op(GatherOp, [self, index], dim=dim_of(dim, tensor(self).ndim))


def scattered(
    t: Lowering, x: SSAValue, dim: int, index: SSAValue, source: Operand, fn: str
) -> SSAValue:
    """Write along a dim."""
    kind = tensor(index)
    if not tensor(x).ndim or kind.ndim != tensor(x).ndim:
        t.decline()
    if isinstance(source, SSAValue):
        t.require_one_dtype(x, source)
    else:
        source = t.b.broadcast(t.value(source, t.dtype), kind.shape)
    inputs = [x, t.b.cast(index, "i64"), t.b.cast(source, t.dtype)]
    return t.b.op(ScatterOp, inputs, dim=dim_of(dim, tensor(x).ndim), fn=fn)


@lowers("scatter", numbers="complex")
def scatter(
    t: Lowering,
    self: SSAValue,
    dim: int,
    index: SSAValue,
    src: Operand | None = None,
    *,
    value: Operand | None = None,
    reduce: str | None = None,
) -> SSAValue:
    """Write along a dim, an index for each element."""
    source = src if src is not None else value
    assert source is not None
    return scattered(t, self, dim, index, source, "set" if reduce is None else REDUCTIONS[reduce])


@lowers("scatter_add", numbers="complex")
def scatter_add(t: Lowering, self: SSAValue, dim: int, index: SSAValue, src: SSAValue) -> SSAValue:
    """Add along a dim."""
    return scattered(t, self, dim, index, src, "sum")


@lowers("scatter_reduce")
def scatter_reduce(
    t: Lowering,
    self: SSAValue,
    dim: int,
    index: SSAValue,
    src: SSAValue,
    reduce: str,
    *,
    include_self: bool = True,
) -> SSAValue:
    """Reduce into a dim."""
    if not include_self or reduce not in REDUCTIONS:
        t.decline()
    return scattered(t, self, dim, index, src, REDUCTIONS[reduce])


def _along(
    t: Lowering, x: SSAValue, dim: int, index: SSAValue, source: SSAValue, fn: str
) -> SSAValue:
    """Write slices of a dim: each index holds for a whole slice."""
    shape = tensor(x).shape
    places = tensor(index).shape[0]
    index = t.b.reshape(index, (*(1,) * dim, places, *(1,) * (len(shape) - dim - 1)))
    wide = (*shape[:dim], places, *shape[dim + 1 :])
    return scattered(t, x, dim, t.b.broadcast(index, wide), t.b.broadcast(source, wide), fn)


@lowers("index_copy", numbers="complex")
def index_copy(
    t: Lowering, self: SSAValue, dim: int, index: SSAValue, source: SSAValue
) -> SSAValue:
    """Replace slices of a dim."""
    _require_index(t, index)
    return _along(t, self, dim_of(dim, tensor(self).ndim), index, source, "set")


@lowers("index_add", numbers="complex")
def index_add(
    t: Lowering, self: SSAValue, dim: int, index: SSAValue, source: SSAValue, *, alpha: Any = 1
) -> SSAValue:
    """Add to slices of a dim."""
    dim, own = dim_of(dim, tensor(self).ndim), tensor(self).shape
    added = tensor(source).shape
    # Torch's fake tensors take a source that could be broadcast; its kernels do not.
    if alpha != 1 or (*added[:dim], *added[dim + 1 :]) != (*own[:dim], *own[dim + 1 :]):
        t.decline()
    _require_index(t, index)
    return _along(t, self, dim, index, source, "sum")


@lowers("index_put", "_unsafe_index_put", numbers="complex")
def index_put(
    t: Lowering,
    self: SSAValue,
    indices: Sequence[SSAValue | None],
    values: SSAValue,
    accumulate: bool = False,
) -> SSAValue:
    """Write by one vector of indices, or the same under all of a mask.

    Several index tensors are kept as they come: their op says which dims can be split, and pass
    ``lower-externs`` writes it as a scatter.
    """
    t.require_one_dtype(self, values)
    indexed = [(dim, i) for dim, i in enumerate(indices) if i is not None]
    if len(indexed) == 1 and tensor(indexed[0][1]).dtype == "i1" and tensor(indexed[0][1]).ndim:
        return _masked(t, self, *indexed[0], values, accumulate=accumulate)
    if (
        len(indexed) != 1
        or tensor(indexed[0][1]).ndim != 1
        or tensor(indexed[0][1]).dtype in ("i1", "u8")
    ):
        t.decline()
    dim, index = indexed[0]
    shape = tensor(self).shape
    front = from_front(t, index, shape[dim])
    source = t.b.broadcast(
        t.b.cast(values, t.dtype), (*shape[:dim], tensor(index).shape[0], *shape[dim + 1 :])
    )
    return _along(t, self, dim, front, source, "sum" if accumulate else "set")


def _masked(
    t: Lowering, self: SSAValue, dim: int, mask: SSAValue, values: SSAValue, *, accumulate: bool
) -> SSAValue:
    """Choose by a mask of the dims from ``dim`` on, of values that are the same wherever it holds.

    It declines on a value for each place: how many there are is known only at run time.
    """
    covered = tensor(mask).ndim
    behind = tensor(self).ndim - dim - covered
    own = tensor(values).shape
    own = (*(1,) * (dim + 1 + behind - len(own)), *own)
    if own[dim] != 1 or (accumulate and t.dtype == "i1"):
        t.decline()
    mask = t.b.reshape(mask, (*tensor(mask).shape, *(1,) * behind))
    value = t.b.reshape(values, (*own[:dim], *(1,) * covered, *own[dim + 1 :]))
    value = t.b.cast(value, t.dtype)
    if accumulate:
        value = t.b.pointwise("add", self, value)
    return t.b.pointwise("where", mask, value, self)


@lowers("one_hot")
def one_hot(t: Lowering, self: SSAValue, num_classes: int = -1) -> SSAValue:
    """Compare with each class what was looked up among them: a class outside is refused."""
    if num_classes <= 0:
        t.decline()
    classes = iota(t, num_classes)
    held = t.b.op(TakeOp, [classes, self], dim=0)
    equal = t.b.pointwise("eq", t.b.reshape(held, (*tensor(self).shape, 1)), classes)
    return t.b.cast(equal, t.dtype)


@lowers("take_along_dim", numbers="complex")
def take_along_dim(
    t: Lowering, self: SSAValue, indices: SSAValue, dim: int | None = None
) -> SSAValue:
    """Gather after broadcasting all dims but one; any index counts around the dim, as in torch."""
    if dim is None:
        t.decline()
    dim = dim_of(dim, tensor(self).ndim)
    if tensor(self).shape[dim] == 0:
        t.decline()
    length = t.value(tensor(self).shape[dim], "i64")
    indices = t.b.pointwise("remainder", t.b.cast(indices, "i64"), length)
    mine, yours = list(tensor(self).shape), list(tensor(indices).shape)
    size, places = mine[dim], yours[dim]
    mine[dim] = yours[dim] = 1
    wide = list(broadcast_shapes([tuple(mine), tuple(yours)]))
    table = t.b.broadcast(self, [*wide[:dim], size, *wide[dim + 1 :]])
    return t.b.op(
        GatherOp, [table, t.b.broadcast(indices, [*wide[:dim], places, *wide[dim + 1 :]])], dim=dim
    )
