"""What a local program holds beside its operands and results."""

from __future__ import annotations

from math import prod

from irc.dialects.flow import FlowOp, tensor
from irc.dialects.placement import Mesh
from irc.dialects.types import ITEM_BYTES
from irc.ops.strategies import RING
from irc.sharding.shards import local_shape
from irc.sharding.signatures import NdSignature


def workspace_bytes(op: FlowOp, signature: NdSignature, mesh: Mesh) -> int:
    """Return the most bytes that a rank holds inside of an op, 0 for one that is its own program.

    In a ring the keys and values that are computed with and those that come are there at once, and
    a result in float32 before and after a step: in backward dk and dv travel, and dq is added up.
    """
    if RING not in signature.strategy:
        return 0
    held = 0
    is_backward = len(op.outputs) == 3
    keys = 2 if is_backward else 1
    for index in (keys, keys + 1):
        kind = tensor(op.inputs[index])
        shape = local_shape(kind.static_shape(), signature.operands[index], mesh)
        held += 2 * prod(shape) * ITEM_BYTES[kind.dtype]
    for value, placement in zip(op.outputs, signature.results, strict=True):
        kind = tensor(value)
        size = prod(local_shape(kind.static_shape(), placement, mesh))
        held += 2 * size * max(ITEM_BYTES[kind.dtype], ITEM_BYTES["f32"])
    return held
