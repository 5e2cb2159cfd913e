"""Seconds of a ring of attention, by each way to go round: what search and ``plan-rings`` compare.

On devices a ring takes what its program does, listed on compute and link; on one host the transport
takes the cores that compute, so that nothing may be promised, and its ops are added up.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from threading import Lock
from typing import TYPE_CHECKING

from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, Operation

from irc.cost.listed import listed_seconds, unfused_seconds
from irc.dialects.flow import FlowOp
from irc.ops.strategies import RING
from irc.sharding.local import build_local, local_type
from irc.sharding.ring_ways import WAY, ring_key, way_of, ways_of
from irc.sharding.signatures import NdSignature

if TYPE_CHECKING:
    from irc.cost.model import ClusterCost

STEPS = 4
"""Of a ring that are built: those after cost what the last of these does."""

MOST = 1 << 12
"""Of rings that are remembered: signatures, stages of a pipeline and meshes have the same ones."""
_SECONDS: dict[Hashable, Mapping[str, float]] = {}
_LOCK = Lock()
"""Of stages that are placed at one time, the second is to find what the first has priced."""


def ring_seconds(cost: ClusterCost, op: FlowOp, signature: NdSignature) -> float:
    """Return the seconds of a ring in the way that the op says, or else in the best."""
    if WAY in op.attributes:
        return way_seconds(cost, op, signature, way_of(op))
    return min(seconds_by_way(cost, op, signature).values())


def seconds_by_way(cost: ClusterCost, op: FlowOp, signature: NdSignature) -> Mapping[str, float]:
    """Return the seconds of a ring by each of the ways that its op may go round.

    Args:
        cost: of its mesh.
        op: attention or its derivative, on logical tensors.
        signature: by strategy ``ring``.
    """
    axis = cost.mesh.names[signature.strategy.index(RING)]
    key = cost.key, axis, ring_key(op, signature, cost.mesh)
    with _LOCK:
        if key not in _SECONDS:
            if len(_SECONDS) >= MOST:
                _SECONDS.clear()
            ways = ways_of(op, signature, cost.mesh)
            _SECONDS[key] = {way: way_seconds(cost, op, signature, way) for way in ways}
        return _SECONDS[key]


def way_seconds(cost: ClusterCost, op: FlowOp, signature: NdSignature, way: str) -> float:
    """Return the seconds of a ring in one way."""
    ranks = cost.mesh.size(cost.mesh.names[signature.strategy.index(RING)])
    whole = block_seconds(cost, ring_block(op, signature, cost, way, min(ranks, STEPS)))
    if ranks <= STEPS:
        return whole
    before = block_seconds(cost, ring_block(op, signature, cost, way, STEPS - 1))
    return whole + (ranks - STEPS) * (whole - before)


def ring_block(
    op: FlowOp, signature: NdSignature, cost: ClusterCost, way: str, steps: int
) -> Block:
    """Return the program of a rank: all of a ring, or its first steps."""
    mesh = cost.mesh
    placed = zip(op.inputs, signature.operands, strict=True)
    block = Block(arg_types=[local_type(value.type, p, mesh) for value, p in placed])
    results = build_local(op, signature, mesh, list(block.args), block.add_op, steps=steps, way=way)
    block.add_op(ReturnOp(*results))
    return block


def block_seconds(cost: ClusterCost, block: Block) -> float:
    """Return the seconds of a program of a rank, with its terminator."""
    device = cost.cluster.device

    known: dict[Hashable, float] = {}

    def seconds(each: Operation) -> float:
        if not isinstance(each, FlowOp):
            return 0.0
        return unfused_seconds(each, device, cost.local_seconds, known)

    if device.cores:
        return sum(map(seconds, block.ops))
    kinds = {axis: cost.link_kind(axis) for axis in cost.mesh.names}
    return listed_seconds(block, seconds, kinds, device.interference)
