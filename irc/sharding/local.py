"""Local programs: what one rank computes of an op under a signature.

By a rule, a rank computes the same op on its shards; only the local result types differ, and the
few attributes that speak of sizes. A strategy has a program of its own. Interpreters and
lower-boxing both build these through one callback, so what is tested is what runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import Attribute, SSAValue

from irc.dialects.comm import CollectiveOp, PendingType, RankIndexOp, WaitOp
from irc.dialects.flow import (
    ConstantOp,
    FlowOp,
    PadOp,
    PointwiseOp,
    RandomOp,
    ReshapeOp,
    ScatterOp,
    SliceOp,
    id_of,
    loc_of,
    tensor,
    to_attribute,
)
from irc.dialects.placement import Mesh, Placement
from irc.dialects.types import PlacementAttr, TensorType, number_in
from irc.ops.infer import Attrs, broadcast_shapes
from irc.ops.rules_naming import dim_of
from irc.sharding.local_attention import ATTENTION_PROGRAMS
from irc.sharding.shards import dim_range, local_shape
from irc.sharding.signatures import RULE, NdSignature

Emit: TypeAlias = Callable[[FlowOp], object]
"""Takes each op of the local program, in order, and inserts it."""


def local_type(
    kind: Attribute, placement: Placement, mesh: Mesh, coordinates: Mapping[str, int] | None = None
) -> Attribute:
    """Return the type of a rank's shard; without coordinates, the type on all ranks.

    Raises:
        ValueError: without coordinates, where shards are uneven.
    """
    if not isinstance(kind, TensorType):
        return kind
    shape = local_shape(kind.static_shape(), placement, mesh, coordinates)
    return TensorType.of(shape, kind.dtype)


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


class Local:
    """One local program while it is built."""

    def __init__(
        self,
        op: FlowOp,
        signature: NdSignature,
        mesh: Mesh,
        inputs: list[SSAValue],
        emit: Emit,
        coordinates: Mapping[str, int] | None,
        steps: int = 0,
        way: str = "",
    ) -> None:
        self.op, self.signature, self.mesh = op, signature, mesh
        self.inputs, self.emit, self.coordinates = inputs, emit, coordinates
        self.steps, self.way = steps, way
        self._count = 0

    def result_types(self) -> list[Attribute]:
        """The local types of the results."""
        return [
            local_type(value.type, placement, self.mesh, self.coordinates)
            for value, placement in zip(self.op.outputs, self.signature.results, strict=True)
        ]

    def same(self, inputs: Sequence[SSAValue], *, last: bool = True) -> list[SSAValue]:
        """Emit the op itself on local operands."""
        properties = dict(self.op.properties)
        adapt = LOCAL_ATTRIBUTES.get(self.op.name)
        if adapt is not None:
            shapes = [tensor(value).static_shape() for value in inputs]
            changed = adapt(self.op, shapes)
            properties.update({key: to_attribute(value) for key, value in changed.items()})
        made = type(self.op)(
            operands=[list(inputs)], result_types=[self.result_types()], properties=properties
        )
        return self._last(made) if last else self.inner(made)

    def before(
        self, cls: type[FlowOp], inputs: Sequence[SSAValue], result: TensorType, **attrs: Any
    ) -> SSAValue:
        """Emit an op before the last."""
        (value,) = self.inner(cls.make(inputs, [result], **attrs))
        return value

    def last(self, cls: type[FlowOp], inputs: Sequence[SSAValue], **attrs: Any) -> list[SSAValue]:
        """Emit the op that gives the results."""
        return self._last(cls.make(inputs, self.result_types(), **attrs))

    def pointwise(self, fn: str, *inputs: SSAValue, dtype: str = "") -> SSAValue:
        """Emit a scalar function before the last op."""
        shape = broadcast_shapes([tensor(value).shape for value in inputs])
        kind = TensorType.of(shape, dtype or tensor(inputs[-1]).dtype)
        return self.before(PointwiseOp, inputs, kind, fn=fn)

    def scalar(self, value: int, dtype: str) -> SSAValue:
        """Emit a rank-0 constant."""
        number = number_in(value, dtype)
        return self.before(ConstantOp, [], TensorType.of((), dtype), value=(number,))

    def offset(self, logical: TensorType, placement: Placement, dim: int, dtype: str) -> SSAValue:
        """Emit the logical index at which the rank's part of ``dim`` starts."""
        size = logical.static_shape()[dim]
        if self.coordinates is not None:
            start, _ = dim_range(size, dim, placement, self.mesh, self.coordinates)
            return self.scalar(start, dtype)
        place: SSAValue | None = None
        for axis in placement.split_axes(dim):
            index = self.before(RankIndexOp, [], TensorType.of((), "i64"), axis=axis)
            if place is not None:
                outer = self.pointwise("mul", place, self.scalar(self.mesh.size(axis), "i64"))
                index = self.pointwise("add", outer, index)
            place = index
        assert place is not None, placement
        length = local_shape(logical.static_shape(), placement, self.mesh)[dim]
        start = self.pointwise("mul", place, self.scalar(length, "i64"))
        return start if dtype == "i64" else self.pointwise("cast", start, dtype=dtype)

    def collective(
        self,
        cls: type[CollectiveOp],
        inputs: Sequence[SSAValue],
        result: TensorType,
        axis: str,
        **attrs: Any,
    ) -> SSAValue:
        """Emit a collective over a mesh axis, and the wait for it, before the last op."""
        (pending,) = self.inner(cls.make(inputs, [PendingType(result)], axis=axis, **attrs))
        return self.before(WaitOp, [pending], result)

    def inner(self, made: FlowOp) -> list[SSAValue]:
        """Emit an op before the last, and return its results."""
        made.attributes["loc"] = StringAttr(loc_of(self.op))
        made.attributes["id"] = StringAttr(f"{id_of(self.op)}.{self._count}")
        self._count += 1
        self.emit(made)
        return list(made.outputs)

    def _last(self, made: FlowOp) -> list[SSAValue]:
        made.attributes.update(self.op.attributes)
        made.attributes["sbp"] = ArrayAttr([PlacementAttr(p) for p in self.signature.results])
        self.emit(made)
        return list(made.outputs)


def _held(local: Local) -> tuple[SSAValue, SSAValue]:
    """Count the indices (operand 1) from the first row of the table (operand 0) on the rank.

    Returns:
        Which of them are in its part, and their place there.
    """
    table, indices = local.inputs[:2]
    dim, placed = dim_of(local.op.plain), local.signature.operands[0]
    dtype = tensor(indices).dtype
    start = local.offset(tensor(local.op.inputs[0]), placed, dim, dtype)
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
    (found,) = local.same([table, safe], last=False)
    after = (1,) * (tensor(table).ndim - dim - 1)
    if local.op.name == "flow.take" and after:
        mine = local.before(ReshapeOp, [mine], TensorType.of((*kind.shape, *after), "i1"))
    return local.last(PointwiseOp, [mine, found, local.scalar(0, tensor(found).dtype)], fn="where")


def _masked_scatter(local: Local) -> list[SSAValue]:
    """Write the rows that the rank holds; others go to a row more, which is dropped."""
    table, indices, source = local.inputs
    dim, fn, kind = dim_of(local.op.plain), local.op.plain["fn"], tensor(table)
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
    whole, placed = tensor(local.op.inputs[4]), local.signature.operands[4]
    start = local.offset(whole, placed, 0, tensor(index).dtype)
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


def _slice_attributes(op: FlowOp, shapes: Sequence[tuple[int, ...]]) -> Attrs:
    """Dims taken whole are whole on the shard too, whatever its size."""
    plain, logical = op.plain, tensor(op.inputs[0]).static_shape()
    stops = (
        -1 if stop == size else stop for stop, size in zip(plain["stops"], logical, strict=True)
    )
    return {"stops": tuple(stops)}


def _convolution_attributes(op: FlowOp, shapes: Sequence[tuple[int, ...]]) -> Attrs:
    """A rank that holds some of the groups convolves only those."""
    return {"groups": shapes[0][1] // shapes[1][1]}


LOCAL_ATTRIBUTES: Mapping[str, Callable[[FlowOp, Sequence[tuple[int, ...]]], Attrs]] = {
    "flow.slice": _slice_attributes,
    "flow.convolution": _convolution_attributes,
}
