"""ATen's views of memory: what they read depends on how their operand lies, not on its numbers.

A fake tensor says how eager's lies. Programs lay values out as they like, so such an op becomes one
of a vector: the numbers in the order in which eager's memory holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import prod
from typing import Any, TypeAlias

import torch
from torch.fx import GraphModule, Node
from xdsl.ir import SSAValue

from irc.dialects.flow import tensor
from irc.dialects.indexing import ScatterOp, TakeOp
from irc.errors import IrcError
from irc.frontends.torch.lowering import Lowering
from irc.frontends.torch.shapes import iota, joined, permuted, sliced
from irc.frontends.torch.sizes import SizeError, SizeNames
from irc.frontends.torch.tensor_memory import memory_of
from irc.plan.schema import row_major
from irc.runtime.dtypes import dtypes


@dataclass(frozen=True)
class Memory:
    """A piece of the memory that a node's tensor lies in, without gaps.

    Attributes:
        node: whose tensor is all of it.
        place: where that lies.
    """

    node: Node
    place: Place

    def vector(self, t: Lowering, value: SSAValue) -> SSAValue:
        """Return the numbers in the order of the memory."""
        return t.b.reshape(permuted(t, value, self.place.order), (prod(self.place.shape),))


@dataclass(frozen=True)
class Layouts:
    """How the tensors of a graph lie, in numbers.

    Attributes:
        names: gives the numbers of sizes that the graph leaves open.
    """

    names: SizeNames

    def of(self, node: Node) -> Place:
        """Return where a node's tensor lies.

        Raises:
            SizeError: a size, a stride or the offset of it is no number.
        """
        value = node.meta["val"]
        return Place(
            tuple(map(self._number, value.shape)),
            tuple(map(self._number, value.stride())),
            self._number(value.storage_offset()),
        )

    def _number(self, size: Any) -> int:
        number = self.names.dim(size)
        if not isinstance(number, int):
            raise SizeError(f"'{number}' is open")
        return number

    def memory_of(self, node: Node, asked: Place) -> Memory:
        """Return memory of a node's tensor with a place in it.

        Raises:
            IrcError: ``op-unsupported``: the graph has no tensor that is all of it.
        """
        value = node.meta["val"]
        before = takewhile(lambda other: other is not node, node.graph.nodes)
        for other in (node, *before):
            if not _shares(other.meta.get("val"), value):
                continue
            try:
                place = self.of(other)
            except SizeError:
                continue
            last = place.offset + prod(place.shape)
            if place.is_one_piece and place.offset <= asked.offset and asked.end <= last:
                return Memory(other, place)
        raise IrcError(
            "op-unsupported", "it reads memory around its operand, of which that is a part"
        )


def _shares(other: object, value: torch.Tensor) -> bool:
    return (
        isinstance(other, torch.Tensor)
        and other.dtype == value.dtype
        and (other.is_conj(), other.is_neg()) == (value.is_conj(), value.is_neg())
        and memory_of(other) == memory_of(value)
    )


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
        return replace(self, offset=self.offset - memory.place.offset)

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

    def of_a_copy(self) -> Place:
        """Return where a copy lies that keeps strides, as torch's ``clone`` does."""
        copy = torch.empty_strided(self.shape, self.strides, device="meta").clone()
        return Place(self.shape, copy.stride(), 0)

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
Row: TypeAlias = Callable[[Lowering, Node, Read, Layouts], SSAValue]


def _as_strided(t: Lowering, node: Node, read: Read, layouts: Layouts) -> SSAValue:
    """Look at memory in another way; what a copy's own strides are says nothing of it."""
    place = _asked(node, ("size", "stride", "storage_offset"), read, layouts)
    memory = layouts.memory_of(_operand(node), place)
    return place.within(memory).read(t, memory.vector(t, read(memory.node)))


def _as_strided_scatter(t: Lowering, node: Node, read: Read, layouts: Layouts) -> SSAValue:
    """Copy memory, and write into the copy."""
    own = layouts.of(_operand(node))
    place = _asked(node, ("src", "size", "stride", "storage_offset"), read, layouts)
    memory = layouts.memory_of(_operand(node), place)
    before = memory.vector(t, read(memory.node))
    source = node.args[1] if len(node.args) > 1 else node.kwargs["src"]
    written = place.within(memory).write(t, before, t.b.cast(read(source), t.dtype))
    return own.within(memory).read(t, written)


def _resize(t: Lowering, node: Node, read: Read, layouts: Layouts) -> SSAValue:
    """Look at the memory of a copy: at its beginning, or at it and at more behind it.

    Nobody has written what is behind it. It is filled as torch does where results are to repeat
    (``torch.utils.deterministic.fill_uninitialized_memory``).
    """
    operand, asked = _operand(node), layouts.of(node)
    memory = Memory(operand, layouts.of(operand).of_a_copy()).vector(t, read(operand))
    (held,) = tensor(memory).shape
    assert isinstance(held, int)
    if (missing := asked.end - held) > 0:
        unwritten = t.b.broadcast(t.value(_unwritten(t), t.dtype), (missing,))
        memory = joined(t, [memory, unwritten], 0)
    return asked.read(t, memory)


def _unwritten(t: Lowering) -> Any:
    dtype = dtypes()[t.dtype]
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return True if dtype is torch.bool else torch.iinfo(dtype).max


def _asked(node: Node, names: Sequence[str], read: Read, layouts: Layouts) -> Place:
    """Return the place that a node names: by itself it starts where its operand does."""
    options = dict(zip(names, node.args[1:], strict=False)) | node.kwargs
    offset = options.get("storage_offset")
    return Place(
        tuple(read(options["size"])),
        tuple(read(options["stride"])),
        layouts.of(_operand(node)).offset if offset is None else read(offset),
    )


def _operand(node: Node) -> Node:
    operand = node.args[0] if node.args else node.kwargs["self"]
    assert isinstance(operand, Node)
    return operand


ROWS: Mapping[str, Row] = {
    "aten::as_strided": _as_strided,
    "aten::as_strided_copy": _as_strided,
    "aten::as_strided_scatter": _as_strided_scatter,
    "aten::resize": _resize,
    "aten::resize_as": _resize,
}
"""Called with the lowering, the node, what gives the value of an argument, and the layouts."""


def looks_at_memory(module: GraphModule) -> bool:
    """True for a graph with an op whose result depends on how a tensor lies."""
    return any(
        isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name in ROWS
        for node in module.graph.nodes
    )


def row_at(node: Node, target: torch._ops.OpOverload, layouts: Layouts) -> Row | None:
    """Return the row of a node that looks at memory whose sizes are known; None for others."""
    if (row := ROWS.get(target._schema.name)) is None:
        return None
    try:
        for each in (node, _operand(node)):
            layouts.of(each)
    except SizeError:
        return None
    return row


def is_alone(node: Node, target: torch._ops.OpOverload) -> bool:
    """True unless an op looks at memory that is not its operand's alone, row by row."""
    if target._schema.name not in ROWS:
        return True
    value = _operand(node).meta["val"]
    return bool(value.is_contiguous() and value.storage_offset() == 0)
