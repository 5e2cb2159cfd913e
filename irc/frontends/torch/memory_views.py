"""ATen's views of memory: what they read depends on how their operand lies, not on its numbers.

A fake tensor says how eager's lies. Programs lay values out as they like, so such an op becomes one
of a vector: the numbers in the order in which eager's memory holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import prod
from typing import Any, TypeAlias, TypeGuard

import torch
from torch.fx import GraphModule, Node
from xdsl.ir import SSAValue

from irc.dialects.flow import ScatterOp, TakeOp, tensor
from irc.errors import IrcError
from irc.frontends.torch.lowering import Lowering
from irc.frontends.torch.shapes import iota, joined, permuted, sliced
from irc.plan.schema import row_major


@dataclass(frozen=True)
class Memory:
    """A piece of the memory that a node's tensor lies in, without gaps.

    Attributes:
        node: whose tensor is all of it.
        order: the dims of that tensor, the one with the largest stride first.
    """

    node: Node
    order: tuple[int, ...]

    @property
    def start(self) -> int:
        """Where it starts in the whole memory."""
        return int(self.node.meta["val"].storage_offset())

    def vector(self, t: Lowering, value: SSAValue) -> SSAValue:
        """Return the numbers in the order of the memory."""
        return t.b.reshape(permuted(t, value, self.order), (prod(self.node.meta["val"].shape),))


def memory_of(node: Node, place: Place) -> Memory:
    """Return memory of a node's tensor with a place in it.

    Raises:
        IrcError: ``op-unsupported``: the graph has no tensor that is all of it.
    """
    value = node.meta["val"]
    before = takewhile(lambda other: other is not node, node.graph.nodes)
    for other in (node, *before):
        held = other.meta.get("val")
        if _shares(held, value) and (order := _dense_order(held)) is not None:
            first = held.storage_offset()
            if first <= place.offset and place.end <= first + held.numel():
                return Memory(other, order)
    raise IrcError("op-unsupported", "it reads memory around its operand, of which that is a part")


def is_static(value: torch.Tensor) -> bool:
    """True where sizes and strides are numbers."""
    return all(isinstance(n, int) for n in (*value.shape, *value.stride(), value.storage_offset()))


def _shares(other: object, value: torch.Tensor) -> TypeGuard[torch.Tensor]:
    return (
        isinstance(other, torch.Tensor)
        and other.dtype == value.dtype
        and (other.is_conj(), other.is_neg()) == (value.is_conj(), value.is_neg())
        and other.untyped_storage()._cdata == value.untyped_storage()._cdata
    )


def _dense_order(value: torch.Tensor) -> tuple[int, ...] | None:
    """Return the dims as they lie, if there are no gaps."""
    if not is_static(value):
        return None
    order = sorted(range(value.ndim), key=lambda dim: -value.stride(dim))
    return tuple(order) if value.permute(order).is_contiguous() else None


@dataclass(frozen=True)
class Place:
    """A view of memory: element i lies at ``offset + sum(i * strides)``."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def end(self) -> int:
        """The first place behind its last element; its elements are some."""
        steps = zip(self.shape, self.strides, strict=True)
        return self.offset + sum((size - 1) * stride for size, stride in steps) + 1

    def within(self, memory: Memory) -> Place:
        """Return the same place, counted from the start of a piece."""
        return replace(self, offset=self.offset - memory.start)

    @property
    def order(self) -> tuple[int, ...]:
        """The dims, the one with the largest stride first."""
        return tuple(sorted(range(len(self.shape)), key=lambda d: -self.strides[d]))

    @property
    def is_one_piece(self) -> bool:
        """True where it is a piece of memory without gaps, in some order of its dims."""
        shape = [self.shape[d] for d in self.order]
        pairs = zip(shape, (self.strides[d] for d in self.order), row_major(shape), strict=True)
        return all(size == 1 or a == b for size, a, b in pairs)

    def read(self, t: Lowering, memory: SSAValue) -> SSAValue:
        """Return what lies there."""
        if self.is_one_piece:
            piece = sliced(t, memory, 0, self.offset, self.offset + prod(self.shape))
            laid = t.b.reshape(piece, [self.shape[d] for d in self.order])
            return permuted(t, laid, _inverse(self.order))
        return t.b.op(TakeOp, [memory, self._index(t)], dim=0)

    def write(self, t: Lowering, memory: SSAValue, source: SSAValue) -> SSAValue:
        """Return the memory with other numbers there."""
        count, (size,) = prod(self.shape), tensor(memory).shape
        assert isinstance(size, int)
        if self.is_one_piece:
            piece = t.b.reshape(permuted(t, source, self.order), (count,))
            first, last = self.offset, self.offset + count
            before = [sliced(t, memory, 0, 0, first)] if first else []
            after = [sliced(t, memory, 0, last, size)] if last < size else []
            return joined(t, [*before, piece, *after], 0)
        index, flat = (t.b.reshape(x, (count,)) for x in (self._index(t), source))
        return t.b.op(ScatterOp, [memory, index, flat], dim=0, fn="set")

    def _index(self, t: Lowering) -> SSAValue:
        total = t.b.broadcast(t.value(self.offset, "i64"), self.shape)
        for dim, (size, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            along = t.b.pointwise("mul", iota(t, size), t.value(stride, "i64"))
            shape = [size if d == dim else 1 for d in range(len(self.shape))]
            total = t.b.pointwise("add", total, t.b.reshape(along, shape))
        return total


def _inverse(order: Sequence[int]) -> list[int]:
    return [order.index(dim) for dim in range(len(order))]


Read: TypeAlias = Callable[[Any], Any]
Row: TypeAlias = Callable[[Lowering, Node, Read], SSAValue]


def _as_strided(t: Lowering, node: Node, read: Read) -> SSAValue:
    """Look at memory in another way; what a copy's own strides are says nothing of it."""
    place = _asked(node, ("size", "stride", "storage_offset"), read)
    memory = memory_of(_operand(node), place)
    return place.within(memory).read(t, memory.vector(t, read(memory.node)))


def _as_strided_scatter(t: Lowering, node: Node, read: Read) -> SSAValue:
    """Copy memory, and write into the copy."""
    own = _place(_operand(node).meta["val"])
    place = _asked(node, ("src", "size", "stride", "storage_offset"), read)
    memory = memory_of(_operand(node), place)
    before = memory.vector(t, read(memory.node))
    source = node.args[1] if len(node.args) > 1 else node.kwargs["src"]
    written = place.within(memory).write(t, before, t.b.cast(read(source), t.dtype))
    return own.within(memory).read(t, written)


def _asked(node: Node, names: Sequence[str], read: Read) -> Place:
    """Return the place that a node names: by itself it starts where its operand does."""
    options = dict(zip(names, node.args[1:], strict=False)) | node.kwargs
    offset = options.get("storage_offset")
    return Place(
        tuple(read(options["size"])),
        tuple(read(options["stride"])),
        _place(_operand(node).meta["val"]).offset if offset is None else read(offset),
    )


def _operand(node: Node) -> Node:
    given = node.args[0] if node.args else node.kwargs["self"]
    assert isinstance(given, Node)
    return given


def _place(value: torch.Tensor) -> Place:
    return Place(tuple(value.shape), value.stride(), value.storage_offset())


ROWS: Mapping[str, Row] = {
    "aten::as_strided": _as_strided,
    "aten::as_strided_copy": _as_strided,
    "aten::as_strided_scatter": _as_strided_scatter,
}
"""Called with the lowering, the node, and what gives the value of an argument."""


def looks_at_memory(module: GraphModule) -> bool:
    """True for a graph with an op whose result depends on how a tensor lies."""
    return any(
        isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name in ROWS
        for node in module.graph.nodes
    )


def row_at(node: Node, target: torch._ops.OpOverload) -> Row | None:
    """Return the row of a node that looks at memory whose sizes are known; None for others."""
    row = ROWS.get(target._schema.name)
    if row is None or not all(is_static(x.meta["val"]) for x in (node, _operand(node))):
        return None
    return row


def is_alone(node: Node, target: torch._ops.OpOverload) -> bool:
    """True unless an op looks at memory that is not its operand's alone, row by row."""
    if target._schema.name not in ROWS:
        return True
    value = _operand(node).meta["val"]
    return bool(value.is_contiguous() and value.storage_offset() == 0)
