"""Ops of one rank, built in place of an op of the whole mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import Attribute, SSAValue

from irc.dialects.attributes import to_attribute
from irc.dialects.comm import CollectiveOp, PendingType, RankIndexOp, WaitOp
from irc.dialects.flow import FlowOp, PointwiseOp, SliceOp, id_of, loc_of, tensor
from irc.dialects.literals import ConstantOp
from irc.dialects.placement import Mesh, Placement
from irc.dialects.types import PlacementAttr, TensorType, number_in
from irc.dialects.windows import ConvolutionOp
from irc.ops.infer import Attrs, broadcast_shapes
from irc.sharding.shards import dim_range, local_shape
from irc.sharding.signatures import NdSignature

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


def _slice_attributes(op: SliceOp, shapes: Sequence[tuple[int, ...]]) -> Attrs:
    """Dims taken whole are whole on the shard too, whatever its size."""
    whole = tensor(op.x).static_shape()
    stops = (-1 if stop == size else stop for stop, size in zip(op.stops, whole, strict=True))
    return {"stops": tuple(stops)}


def _convolution_attributes(op: ConvolutionOp, shapes: Sequence[tuple[int, ...]]) -> Attrs:
    """A rank that holds some of the groups convolves only those."""
    return {"groups": shapes[0][1] // shapes[1][1]}


LOCAL_ATTRIBUTES: Mapping[type[FlowOp], Callable[[Any, Sequence[tuple[int, ...]]], Attrs]] = {
    SliceOp: _slice_attributes,
    ConvolutionOp: _convolution_attributes,
}


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
        adapt = LOCAL_ATTRIBUTES.get(type(self.op))
        if adapt is not None:
            shapes = [tensor(value).static_shape() for value in inputs]
            changed = adapt(self.op, shapes)
            properties.update({key: to_attribute(value) for key, value in changed.items()})
        op = type(self.op)(
            operands=[list(inputs)], result_types=[self.result_types()], properties=properties
        )
        return self._last(op) if last else self.inner(op)

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

    def start_of(self, operand: int, dim: int, dtype: str) -> SSAValue:
        """Emit the index at which the rank's part of an operand starts, in the whole operand."""
        whole, placed = tensor(self.op.operands[operand]), self.signature.operands[operand]
        return self.offset(whole, placed, dim, dtype)

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

    def inner(self, op: FlowOp) -> list[SSAValue]:
        """Emit an op before the last, and return its results."""
        op.attributes["loc"] = StringAttr(loc_of(self.op))
        op.attributes["id"] = StringAttr(f"{id_of(self.op)}.{self._count}")
        self._count += 1
        self.emit(op)
        return list(op.outputs)

    def _last(self, op: FlowOp) -> list[SSAValue]:
        op.attributes.update(self.op.attributes)
        op.attributes["sbp"] = ArrayAttr([PlacementAttr(p) for p in self.signature.results])
        self.emit(op)
        return list(op.outputs)
