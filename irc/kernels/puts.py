"""Writes by several index tensors: one index into the dims that they cover, merged, and a scatter.

``x.index_put((rows, columns), values)`` is a scatter into ``x`` of one dim for both, at
``rows * count + columns``. Index tensors broadcast against each other; where they do not stand
together their dims go first (numpy's rule, as :func:`irc.frontends.torch.indexing.index` reads).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from typing import cast

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import ExternOp, TransposeOp, tensor
from irc.dialects.indexing import ScatterOp
from irc.kernels.holds import LIBRARY_DTYPES, shape_of
from irc.ops.infer import broadcast_shapes

PUTS = frozenset({"aten::index_put", "aten::_unsafe_index_put"})
"""Library calls that write by index."""


def put(b: FlowBuilder, op: ExternOp) -> SSAValue | None:
    """Append a write by index tensors; None where it stays in the library: masks, nothing to do."""
    (_, subscripts, _, *more), keywords = json.loads(op.arguments)
    accumulate = more[0] if more else keywords.get("accumulate", False)
    table, *indices, values = op.inputs
    dims = [dim for dim, each in enumerate(subscripts) if each is not None]
    if len(dims) != len(indices) or not _suits(table, indices, values, accumulate=accumulate):
        return None
    ndim = len(shape_of(table))
    beside = dims == list(range(dims[0], dims[0] + len(dims)))
    order = tuple(range(ndim)) if beside else (*dims, *(d for d in range(ndim) if d not in dims))
    x = table if beside else b.op(TransposeOp, [table], perm=order)
    first = dims[0] if beside else 0
    written = _written(b, x, first, indices, values, "sum" if accumulate else "set")
    back = tuple(order.index(d) for d in range(ndim))
    return written if beside else b.op(TransposeOp, [written], perm=back)


def _suits(
    table: SSAValue, indices: Sequence[SSAValue], values: SSAValue, *, accumulate: bool
) -> bool:
    kinds = [tensor(value) for value in (table, *indices, values)]
    dtype = kinds[0].dtype
    if not indices or any(0 in kind.shape for kind in kinds) or dtype in LIBRARY_DTYPES:
        return False
    whole = all(tensor(index).dtype in ("i64", "i32") for index in indices)
    return whole and kinds[-1].dtype == dtype and not (accumulate and dtype == "i1")


def _written(
    b: FlowBuilder,
    x: SSAValue,
    first: int,
    indices: Sequence[SSAValue],
    values: SSAValue,
    fn: str,
) -> SSAValue:
    """Write values at dims ``first`` and on of x, as many as there are index tensors."""
    shape, last = shape_of(x), first + len(indices)
    sizes = shape[first:last]
    index_shape = cast("tuple[int, ...]", broadcast_shapes([shape_of(index) for index in indices]))
    places, size = prod(index_shape), prod(sizes)
    ahead, behind = shape[:first], shape[last:]
    flat = b.reshape(b.broadcast(_joined(b, indices, sizes), index_shape), (places,))
    index = b.reshape(flat, (*[1] * len(ahead), places, *[1] * len(behind)))
    source = b.broadcast(values, (*ahead, *index_shape, *behind))
    wide = (*ahead, places, *behind)
    operands = [
        b.reshape(x, (*ahead, size, *behind)),
        b.broadcast(index, wide),
        b.reshape(source, wide),
    ]
    return b.reshape(b.op(ScatterOp, operands, dim=first, fn=fn), shape)


def _joined(b: FlowBuilder, indices: Sequence[SSAValue], sizes: Sequence[int]) -> SSAValue:
    """One index into dims of some sizes, row-major; each may count from the end.

    Where one of several is outside its dim it is -1, outside of all: joined, it would name a place
    of another row.
    """
    (flat, outside), *rest = [
        _from_front(b, index, size) for index, size in zip(indices, sizes, strict=True)
    ]
    for (own, strange), size in zip(rest, sizes[1:], strict=True):
        flat = b.pointwise("add", b.pointwise("mul", flat, b.scalar(size, "i64")), own)
        outside = b.pointwise("logical_or", outside, strange)
    return b.pointwise("where", outside, b.scalar(-1, "i64"), flat) if rest else flat


def _from_front(b: FlowBuilder, index: SSAValue, size: int) -> tuple[SSAValue, SSAValue]:
    """Return an index counted from the front, and where it lies outside."""
    index, zero, end = b.cast(index, "i64"), b.scalar(0, "i64"), b.scalar(size, "i64")
    wrapped = b.pointwise("add", index, end)
    position = b.pointwise("where", b.pointwise("lt", index, zero), wrapped, index)
    low, high = b.pointwise("lt", position, zero), b.pointwise("ge", position, end)
    return position, b.pointwise("logical_or", low, high)
