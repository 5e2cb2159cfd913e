"""What a rank holds inside of an op whose local program has steps of its own.

A rank that sends its tokens to experts holds those of all ranks for a moment, and a two-stage
search its candidates: memory that is no operand and no result.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, SSAValue

from irc.dialects.comm import CollectiveOp, MarkedRowsOp, WaitOp
from irc.dialects.flow import FlowOp, ShapeOp
from irc.dialects.placement import Mesh
from irc.dialects.types import ITEM_BYTES, TensorType
from irc.sharding.local import build_local
from irc.sharding.local_ops import local_type
from irc.sharding.signatures import RULE, NdSignature


def inner_bytes(op: FlowOp, signature: NdSignature, mesh: Mesh) -> int:
    """Return the most bytes that a local program holds beside the op's operands and results.

    Args:
        op: an op on logical tensors.
        signature: how it is split; of a ring, see :func:`irc.cost.rings.ring_bytes`.
        mesh: over what.
    """
    if set(signature.strategy) <= {RULE}:
        return 0
    placed = zip(op.inputs, signature.operands, strict=True)
    block = Block(arg_types=[local_type(value.type, p, mesh) for value, p in placed])
    block.add_op(ReturnOp(*build_local(op, signature, mesh, list(block.args), block.add_op)))
    return most_inner_bytes(block)


def most_inner_bytes(block: Block) -> int:
    """Return the most bytes that a rank's program holds beside its arguments and results.

    Args:
        block: with its terminator, level spmd.
    """
    program = [op for op in block.ops if isinstance(op, FlowOp)]
    if not any(isinstance(op, CollectiveOp) for op in program):
        # One kernel, or a few that the fuser joins.
        return 0
    end = block.last_op
    return _peak(program, {*block.args, *(end.operands if end is not None else ())})


def _peak(program: Sequence[FlowOp], elsewhere: set[SSAValue]) -> int:
    """Return the most bytes alive at one op, less those of values that are counted elsewhere."""
    root: dict[SSAValue, SSAValue] = {}
    last: dict[SSAValue, int] = {}
    for at, op in enumerate(program):
        source = op.x if isinstance(op, ShapeOp) else op.pending if isinstance(op, WaitOp) else None
        for value in op.outputs:
            root[value] = value if source is None else root.get(source, source)
        for value in (*op.inputs, *op.outputs):
            last[root.get(value, value)] = at
    shown = {root.get(value, value) for value in elsewhere}
    peak, alive = 0, 0
    ends: dict[int, int] = {}
    for at, op in enumerate(program):
        for value in op.outputs:
            if root[value] is value and value not in shown:
                alive += _num_bytes(op, value)
                ends[last[value]] = ends.get(last[value], 0) + _num_bytes(op, value)
        scratch = 2 * _bytes(op.chunks) if isinstance(op, MarkedRowsOp) else 0
        peak = max(peak, alive + scratch)
        alive -= ends.get(at, 0)
    return peak


def _num_bytes(op: FlowOp, value: SSAValue) -> int:
    if isinstance(op, CollectiveOp):
        return _bytes(op.result_tensor)
    return _bytes(value.type) if isinstance(value.type, TensorType) else 0


def _bytes(kind: TensorType) -> int:
    return prod(kind.static_shape()) * ITEM_BYTES[kind.dtype]
