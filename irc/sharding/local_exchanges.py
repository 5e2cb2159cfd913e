"""Local programs whose ranks exchange what each found in its part: two-stage search, and prefixes.

The searched (or scanned) dim is split. Each rank works on its shard; what it found is small and is
gathered, in the order of the shards; then every rank finishes by itself. Collectives take equal
shards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.ir import SSAValue

from irc.dialects.comm import AllGatherOp
from irc.dialects.flow import BroadcastOp, PointwiseOp, ReduceOp, ReshapeOp, tensor
from irc.dialects.indexing import GatherOp
from irc.dialects.items import integer_range
from irc.dialects.literals import ConstantOp
from irc.dialects.scans import CumulativeOp
from irc.dialects.searches import ArgReduceOp, TopKOp
from irc.dialects.types import TensorType, is_float, number_in
from irc.ops.rules_naming import dim_of
from irc.sharding.local_experts import EXPERTS_PROGRAMS
from irc.sharding.local_grouped import GROUPED_PROGRAMS
from irc.sharding.local_loss import LOSS_PROGRAMS
from irc.sharding.local_ops import Local

EXTREME = {"max": "maximum", "min": "minimum"}


def _sized(kind: TensorType, dim: int, size: int) -> TensorType:
    """Return a type with another size in one dim."""
    shape = kind.static_shape()
    return TensorType.of((*shape[:dim], size, *shape[dim + 1 :]), kind.dtype)


def gathered(local: Local, value: SSAValue, axes: Sequence[str], dim: int) -> SSAValue:
    """Join what the ranks of some axes hold along a dim, in the order of the shards.

    Args:
        local: the program.
        value: what each rank holds.
        axes: the axes that split the dim, first applied first.
        dim: the dim.
    """
    for axis in reversed(axes):
        kind = tensor(value)
        whole = _sized(kind, dim, kind.static_shape()[dim] * local.mesh.size(axis))
        value = local.collective(AllGatherOp, [value], whole, axis, dim=dim)
    return value


def _global_index(local: Local, index: SSAValue, dim: int) -> SSAValue:
    """Count an index of the shard from the start of the whole dim."""
    start = local.start_of(0, dim, "i64")
    return local.pointwise("add", index, start)


def _top_k(local: Local) -> list[SSAValue]:
    """Take the k largest of the shard, gather all candidates, take the k largest of them.

    The candidates stand in the order of the shards, equals in the order of their index: so the
    lowest index comes first among equals, as in the whole tensor.
    """
    (x,), dim = local.inputs, dim_of(local.op.plain)
    op = local.op
    assert isinstance(op, TopKOp)
    k, largest = op.k, op.largest
    kind, axes = tensor(x), local.signature.operands[0].split_axes(dim)
    count = min(k, kind.static_shape()[dim])
    some = _sized(kind, dim, count)
    places = TensorType.of(some.shape, "i64")
    values, index = local.inner(TopKOp.make([x], [some, places], dim=dim, k=count, largest=largest))
    index = gathered(local, _global_index(local, index, dim), axes, dim)
    values = gathered(local, values, axes, dim)
    best_type, chosen = local.result_types()
    best, position = local.inner(
        TopKOp.make([values], [best_type, chosen], dim=dim, k=k, largest=largest)
    )
    assert isinstance(chosen, TensorType)
    return [best, local.before(GatherOp, [index, position], chosen, dim=dim)]


def _arg_extreme(local: Local) -> list[SSAValue]:
    """Find the extreme of the shard and its index, gather both, find the first extreme of them."""
    (x,), attrs = local.inputs, local.op.plain
    dim, kind = dim_of(attrs), tensor(x)
    axes = local.signature.operands[0].split_axes(dim)
    one = TensorType.of(_sized(kind, dim, 1).shape, "i64")
    search = {"fn": attrs["fn"], "dim": dim, "keep_dims": True}
    place = local.before(ArgReduceOp, [x], one, **search)
    extreme = local.before(GatherOp, [x, place], _sized(kind, dim, 1), dim=dim)
    values = gathered(local, extreme, axes, dim)
    index = gathered(local, _global_index(local, place, dim), axes, dim)
    rank = local.before(ArgReduceOp, [values], one, **search)
    if attrs["keep_dims"]:
        return local.last(GatherOp, [index, rank], dim=dim)
    return local.last(ReshapeOp, [local.before(GatherOp, [index, rank], one, dim=dim)])


def _scan(local: Local) -> list[SSAValue]:
    """Scan the shard; add to it what the shards before it come to together."""
    (x,), attrs = local.inputs, local.op.plain
    dim, fn, kind = dim_of(attrs), attrs["fn"], tensor(x)
    axes = local.signature.operands[0].split_axes(dim)
    own = local.before(CumulativeOp, [x], kind, **attrs)
    one = _sized(kind, dim, 1)
    total = local.before(ReduceOp, [x], one, fn=fn, dims=(dim,), keep_dims=True)
    totals = gathered(local, total, axes, dim)
    before = _before(local, totals, dim)
    carried = local.before(ReduceOp, [before], one, fn=fn, dims=(dim,), keep_dims=True)
    joined = {"sum": "add", "prod": "mul", **EXTREME}[fn]
    return local.last(PointwiseOp, [own, local.before(BroadcastOp, [carried], kind)], fn=joined)


def _before(local: Local, totals: SSAValue, dim: int) -> SSAValue:
    """Keep the totals of the shards before the rank's own; those of the others count nothing."""
    attrs, kind = local.op.plain, tensor(totals)
    (x,) = local.inputs
    count, length = kind.static_shape()[dim], tensor(x).static_shape()[dim]
    start = local.start_of(0, dim, "i64")
    line = tuple(count if i == dim else 1 for i in range(kind.ndim))
    starts = local.before(
        ConstantOp,
        [],
        TensorType.of(line, "i64"),
        value=tuple(rank * length for rank in range(count)),
    )
    order = "gt" if attrs["reverse"] else "lt"
    counts = local.pointwise(order, starts, start, dtype="i1")
    nothing = local.before(
        ConstantOp,
        [],
        TensorType.of((), kind.dtype),
        value=(neutral(attrs["fn"], kind.dtype),),
    )
    return local.pointwise("where", counts, totals, nothing)


def neutral(fn: str, dtype: str) -> float | int:
    """Return what counts nothing in a reduction.

    >>> neutral("max", "i32"), neutral("prod", "f32")
    (-2147483648, 1.0)
    """
    if fn in ("sum", "prod"):
        return number_in(int(fn == "prod"), dtype)
    if is_float(dtype):
        return float("-inf") if fn == "max" else float("inf")
    numbers = integer_range(dtype)
    return numbers.start if fn == "max" else numbers.stop - 1


EXCHANGES: Mapping[str, Callable[[Local], list[SSAValue]]] = {
    "two-stage-top-k": _top_k,
    "two-stage-arg": _arg_extreme,
    "scan-of-shards": _scan,
    **EXPERTS_PROGRAMS,
    **GROUPED_PROGRAMS,
    **LOSS_PROGRAMS,
}
