"""Local programs: what one rank computes of an op under a signature.

By a rule, a rank computes the same op on its shards; only the local result types differ, and the
few attributes that speak of sizes. A strategy has a program of its own. Interpreters and
lower-boxing both build these through one callback, so what is tested is what runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from xdsl.ir import SSAValue

from irc.dialects.flow import FlowOp, PadOp, PointwiseOp, ReshapeOp, SliceOp, tensor
from irc.dialects.indexing import ScatterOp, TakeOp
from irc.dialects.literals import RandomOp
from irc.dialects.placement import Mesh
from irc.dialects.types import TensorType
from irc.ops.experts import DOWN
from irc.ops.rules_naming import dim_of
from irc.sharding.local_attention import ATTENTION_PROGRAMS
from irc.sharding.local_ops import Emit, Local
from irc.sharding.signatures import RULE, NdSignature


def build_local(
    op: FlowOp,
    signature: NdSignature,
    mesh: Mesh,
    inputs: Sequence[SSAValue],
    emit: Emit,
    coordinates: Mapping[str, int] | None = None,
    steps: int = 0,
    way: str = "",
) -> list[SSAValue]:
    """Build the local program of an op and return its results.

    The op that gives the results has the source line, id and attributes of ``op``, and ``sbp``, one
    placement for each result. Ops before it have ids of their own, ``n12.0``.

    Args:
        op: an op on logical tensors.
        signature: one of its signatures.
        mesh: the mesh.
        inputs: the local operands.
        emit: called with each new op.
        coordinates: build for the rank at these mesh coordinates; None for one program that all
            ranks run, which asks for its rank where it needs it, and takes even shards.
        steps: of a program that repeats a step for every rank, build so many; 0: all.
        way: of a ring, one of :func:`irc.sharding.ring_ways.ways_of`; empty: what the op says.
    """
    strategies = sorted(set(signature.strategy) - {RULE})
    assert len(strategies) <= 1, strategies
    local = Local(op, signature, mesh, list(inputs), emit, coordinates, steps, way)
    return _program(strategies[0])(local) if strategies else local.same(local.inputs)


def _program(strategy: str) -> Callable[[Local], list[SSAValue]]:
    if strategy in PROGRAMS:
        return PROGRAMS[strategy]
    # They are written with the class below.
    from irc.sharding.local_exchanges import EXCHANGES

    return EXCHANGES[strategy]


def _held(local: Local) -> tuple[SSAValue, SSAValue]:
    """Count the indices (operand 1) from the first row of the table (operand 0) on the rank.

    Returns:
        Which of them are in its part, and their place there.
    """
    (table, indices, *_), dim = local.inputs, dim_of(local.op.plain)
    dtype = tensor(indices).dtype
    start = local.start_of(0, dim, dtype)
    held = local.scalar(tensor(table).static_shape()[dim], dtype)
    moved = local.pointwise("sub", indices, start)
    above = local.pointwise("ge", moved, local.scalar(0, dtype), dtype="i1")
    mine = local.pointwise("logical_and", above, local.pointwise("lt", moved, held, dtype="i1"))
    return mine, moved


def _masked(local: Local) -> list[SSAValue]:
    """Look up the rows that the rank holds; the others read row 0 and are replaced by zeros."""
    table, indices = local.inputs
    dim, kind = dim_of(local.op.plain), tensor(indices)
    mine, moved = _held(local)
    safe = local.pointwise("where", mine, moved, local.scalar(0, kind.dtype))
    (rows,) = local.same([table, safe], last=False)
    after = (1,) * (tensor(table).ndim - dim - 1)
    if isinstance(local.op, TakeOp) and after:
        mine = local.before(ReshapeOp, [mine], TensorType.of((*kind.shape, *after), "i1"))
    return local.last(PointwiseOp, [mine, rows, local.scalar(0, tensor(rows).dtype)], fn="where")


def _masked_scatter(local: Local) -> list[SSAValue]:
    """Write the rows that the rank holds; others go to a row more, which is dropped."""
    table, indices, source = local.inputs
    op = local.op
    assert isinstance(op, ScatterOp)
    dim, fn, kind = op.dim, op.fn, tensor(table)
    shape, dtype = kind.static_shape(), tensor(indices).dtype
    mine, moved = _held(local)
    if fn == "sum" and kind.dtype != "i1":
        # Adding zero to the first row is no write: it saves the copy that the row more takes.
        safe = local.pointwise("where", mine, moved, local.scalar(0, dtype))
        added = local.pointwise("where", mine, source, local.scalar(0, kind.dtype))
        return local.last(ScatterOp, [table, safe, added], dim=dim, fn=fn)
    safe = local.pointwise("where", mine, moved, local.scalar(shape[dim], dtype))
    ends = tuple(int(i == dim) for i in range(len(shape)))
    longer = TensorType.of([n + end for n, end in zip(shape, ends, strict=True)], kind.dtype)
    none = (0,) * len(shape)
    padded = local.before(PadOp, [table], longer, low=none, high=ends, value=0.0)
    written = local.before(ScatterOp, [padded, safe, source], longer, dim=dim, fn=fn)
    steps = (1,) * len(shape)
    return local.last(SliceOp, [written], starts=none, stops=shape, steps=steps)


def _offset_random(local: Local) -> list[SSAValue]:
    """Draw from the place of the rank's first element, in the steps of the whole tensor."""
    result = tensor(local.op.outputs[0])
    shape, placed = result.static_shape(), local.signature.results[0]
    strides = tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))
    start: SSAValue | None = None
    for dim, stride in enumerate(strides):
        if placed.split_axes(dim):
            offset = local.offset(result, placed, dim, "i64")
            moved = local.pointwise("mul", offset, local.scalar(stride, "i64"))
            start = moved if start is None else local.pointwise("add", start, moved)
    assert start is not None, placed
    attrs = {**local.op.plain, "strides": strides}
    return local.last(RandomOp, [*local.inputs, start], **attrs)


def _offset_iota(local: Local) -> list[SSAValue]:
    """Count from where the rank's shard starts."""
    result = tensor(local.op.outputs[0])
    (count,) = local.same([], last=False)
    start = local.offset(result, local.signature.results[0], dim_of(local.op.plain), result.dtype)
    return local.last(PointwiseOp, [count, start], fn="add")


def _own_experts(local: Local) -> list[SSAValue]:
    """Count experts from the first that the rank holds; others are then out of range."""
    hidden, index, *rest = local.inputs
    start = local.start_of(DOWN, 0, tensor(index).dtype)
    return local.same([hidden, local.pointwise("sub", index, start), *rest])


PROGRAMS: Mapping[str, Callable[[Local], list[SSAValue]]] = {
    "masked-take": _masked,
    "masked-gather": _masked,
    "masked-scatter": _masked_scatter,
    "offset-iota": _offset_iota,
    "offset-random": _offset_random,
    **ATTENTION_PROGRAMS,
    "own-experts": _own_experts,
}
