"""One collective in the place of several: a function packs their operands, one unpacks it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from irc.dialects.builder import FlowBuilder, finish_function, functions
from irc.dialects.comm import (
    AllGatherOp,
    AllReduceOp,
    CollectiveOp,
    PendingType,
    ReduceScatterOp,
    WaitOp,
)
from irc.dialects.flow import ConcatOp, SliceOp, TransposeOp, loc_of, tensor
from irc.dialects.placement import Mesh
from irc.dialects.types import ALIGNMENT, ITEM_BYTES, TensorType


class Bucketed:
    """A module of level spmd while collectives of it are joined.

    An all-reduce of ``[a, b]`` and ``[c]`` is one of ``[a*b + c]``. An all-gather is one of rows
    ``[1, n]`` that gives ``[ranks, n]``, a reduce-scatter one of ``[ranks, n]`` that gives ``[1,
    n]``, both along dim 0, where ``n`` counts the elements of a chunk of each operand. Buckets of
    equal shapes share their two functions.

    Args:
        module: changed.
        mesh: its mesh.
    """

    def __init__(self, module: ModuleOp, mesh: Mesh) -> None:
        self._block, self._mesh = module.body.block, mesh
        self._taken = set(functions(module))
        self._known: dict[object, tuple[FuncOp, FuncOp]] = {}
        self._count = 0

    def join(self, members: Sequence[tuple[CollectiveOp, WaitOp]]) -> None:
        """Put one collective in the place of some.

        Args:
            members: collectives of one block, alike in op, axis, reduction and dtype, each with its
                wait, of which none is read before all operands are there.
        """
        starts = [start for start, _ in members]
        first, block = starts[0], starts[0].parent
        assert block is not None
        pack, unpack = self._functions(starts)
        name, loc = f"bucket{self._count}", loc_of(first)
        self._count += 1
        packed, joined = _only_result(pack), tensor(unpack.body.block.args[0])
        packing = _call(pack, [op.x for op in starts], f"{name}.pack", loc)
        attrs: dict[str, Any] = {k: v for k, v in first.plain.items() if k in ("axis", "fn")}
        if not isinstance(first, AllReduceOp):
            attrs["dim"] = 0
        assert packing.results[0].type == packed
        start = type(first).make(
            packing.results, [PendingType(joined)], loc=loc, id=f"{name}.start", **attrs
        )
        wait = WaitOp.make(start.outputs, [joined], loc=loc, id=name)
        unpacking = _call(unpack, wait.outputs, f"{name}.unpack", loc)
        block.insert_ops_before([packing, start], _behind_operands(block, starts))
        block.insert_ops_before([wait, unpacking], _first_reader(block, members))
        for (old, its_wait), value in zip(members, unpacking.results, strict=True):
            value.name_hint = its_wait.outputs[0].name_hint
            its_wait.outputs[0].replace_all_uses_with(value)
            for op in (its_wait, old):
                op.detach()
                op.erase()

    def _functions(self, starts: Sequence[CollectiveOp]) -> tuple[FuncOp, FuncOp]:
        kinds = [(tensor(op.x), op.result_tensor, op.plain.get("dim")) for op in starts]
        key = (starts[0].name, starts[0].axis, tuple(kinds))
        if key not in self._known:
            ranks = self._mesh.size(starts[0].axis)
            pack = _packing(self._name("pack"), starts, ranks)
            unpack = _unpacking(self._name("unpack"), starts, ranks)
            first = self._block.first_op
            assert first is not None
            self._block.insert_ops_before([pack, unpack], first)
            self._known[key] = (pack, unpack)
        return self._known[key]

    def _name(self, stem: str) -> str:
        number = len(self._known)
        while f"{stem}_{number}" in self._taken:
            number += 1
        self._taken.add(f"{stem}_{number}")
        return f"{stem}_{number}"


def _packing(name: str, starts: Sequence[CollectiveOp], ranks: int) -> FuncOp:
    block = Block(arg_types=[op.x.type for op in starts])
    b = FlowBuilder(block, "pack")
    b.loc = loc_of(starts[0])
    parts: list[SSAValue] = []
    for op, value in zip(starts, block.args, strict=True):
        row = _row(b, op, value, ranks)
        parts.append(row)
        *rows, count = tensor(row).static_shape()
        if extra := _extra(op, count):
            parts.append(b.constant([0], (*rows, extra), tensor(row).dtype))
    joined = b.op(ConcatOp, parts, dim=tensor(parts[0]).ndim - 1)
    return finish_function(name, block, [joined])


def _row(b: FlowBuilder, op: CollectiveOp, value: SSAValue, ranks: int) -> SSAValue:
    """Return an operand as it stands in the bucket, joined along its last dim."""
    total = prod(tensor(value).static_shape())
    if isinstance(op, AllReduceOp):
        return b.reshape(value, (total,))
    assert isinstance(op, AllGatherOp | ReduceScatterOp)
    rows = 1 if isinstance(op, AllGatherOp) else ranks
    return b.reshape(_moved(b, value, op.dim, 0), (rows, total // rows))


def _rows(op: CollectiveOp, ranks: int) -> tuple[int, ...]:
    """Return the dims of a bucket's result before its last."""
    match op:
        case AllGatherOp():
            return (ranks,)
        case ReduceScatterOp():
            return (1,)
        case _:
            return ()


def _extra(op: CollectiveOp, count: int) -> int:
    """Return how many elements follow a part: kernels read the next where it lies, aligned."""
    if isinstance(op, AllGatherOp):
        return 0  # parts of rows are copied out anyway
    return -count % (ALIGNMENT // ITEM_BYTES[op.result_tensor.dtype])


def _unpacking(name: str, starts: Sequence[CollectiveOp], ranks: int) -> FuncOp:
    rows = _rows(starts[0], ranks)
    counts = [prod(op.result_tensor.static_shape()) // prod(rows) for op in starts]
    total = sum(n + _extra(op, n) for op, n in zip(starts, counts, strict=True))
    block = Block(arg_types=[TensorType.of((*rows, total), starts[0].result_tensor.dtype)])
    b = FlowBuilder(block, "unpack")
    b.loc = loc_of(starts[0])
    results: list[SSAValue] = []
    at = 0
    for op, count in zip(starts, counts, strict=True):
        begin, end = (*(0 for _ in rows), at), (*rows, at + count)
        cut = b.op(SliceOp, [block.args[0]], starts=begin, stops=end, steps=(1,) * len(end))
        results.append(_result(b, op, cut))
        at += count + _extra(op, count)
    return finish_function(name, block, results)


def _result(b: FlowBuilder, op: CollectiveOp, cut: SSAValue) -> SSAValue:
    shape = op.result_tensor.static_shape()
    if isinstance(op, AllReduceOp):
        return b.reshape(cut, shape)
    assert isinstance(op, AllGatherOp | ReduceScatterOp)
    dim = op.dim
    front = b.reshape(cut, (shape[dim], *shape[:dim], *shape[dim + 1 :]))
    return _moved(b, front, 0, dim)


def _moved(b: FlowBuilder, value: SSAValue, dim: int, to: int) -> SSAValue:
    """Return a value with one dim at another place."""
    if dim == to:
        return value
    order = [i for i in range(tensor(value).ndim) if i != dim]
    order.insert(to, dim)
    return b.op(TransposeOp, [value], perm=tuple(order))


def _only_result(func: FuncOp) -> Attribute:
    (kind,) = func.function_type.outputs
    return kind


def _behind_operands(block: Block, starts: Sequence[CollectiveOp]) -> Operation:
    owners = {op.x.owner for op in starts}
    ops = list(block.ops)
    return ops[1 + max((i for i, op in enumerate(ops) if op in owners), default=-1)]


def _first_reader(block: Block, members: Sequence[tuple[CollectiveOp, WaitOp]]) -> Operation:
    readers = {use.operation for _, wait in members for use in wait.outputs[0].uses}
    return next(op for op in block.ops if op in readers or op is block.last_op)


def _call(func: FuncOp, inputs: Iterable[SSAValue], name: str, loc: str) -> CallOp:
    call = CallOp(func.sym_name.data, list(inputs), list(func.function_type.outputs))
    call.attributes |= {"loc": StringAttr(loc), "id": StringAttr(name)}
    return call
