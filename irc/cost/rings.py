"""Seconds and bytes of a ring of attention, by each way to go round.

What search and ``plan-rings`` compare. On devices a ring takes what its program does, listed on
compute and link; on one host the transport takes the cores that compute, so that nothing may be
promised, and its ops are added up.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, Operation

from irc.cost.inner import most_inner_bytes
from irc.cost.listed import listed_seconds, unfused_seconds
from irc.dialects.flow import FlowOp
from irc.ops.strategies import RING
from irc.sharding.local import build_local
from irc.sharding.local_ops import local_type
from irc.sharding.ring_ways import WAY, ring_key, way_of, ways_of
from irc.sharding.signatures import NdSignature

if TYPE_CHECKING:
    from irc.cost.model import ClusterCost

STEPS = 4
"""Of a ring that are built: those after cost what the last of these does, and hold as much."""

MOST = 1 << 12
"""Of rings that are remembered: signatures, stages of a pipeline and meshes have the same ones."""
_PRICES: dict[Hashable, RingPrice] = {}
_LOCK = Lock()
"""Of stages that are placed at one time, the second is to find what the first has priced."""


@dataclass(frozen=True)
class RingPrice:
    """What a ring costs in one way.

    Attributes:
        seconds: from its start until compute and link are done.
        inner_bytes: that a rank holds beside the op's operands and results, at most.
    """

    seconds: float
    inner_bytes: int


def ring_seconds(cost: ClusterCost, op: FlowOp, signature: NdSignature) -> float:
    """Return the seconds of a ring in the way that the op says, or else in the best."""
    return min(price.seconds for price in ring_prices(cost, op, signature).values())


def ring_bytes(cost: ClusterCost, op: FlowOp, signature: NdSignature) -> int:
    """Return what a rank holds inside of a ring, at most: which way is best is decided later."""
    return max(price.inner_bytes for price in ring_prices(cost, op, signature).values())


def ring_prices(cost: ClusterCost, op: FlowOp, signature: NdSignature) -> Mapping[str, RingPrice]:
    """Return the price of a ring by way: of the one that the op says, or else of all.

    Args:
        cost: of its mesh.
        op: attention or its derivative, on logical tensors.
        signature: by strategy ``ring``.
    """
    named = WAY in op.attributes
    ways = [way_of(op)] if named else ways_of(op, signature, cost.mesh)
    return {way: ring_price(cost, op, signature, way) for way in ways}


def ring_price(cost: ClusterCost, op: FlowOp, signature: NdSignature, way: str) -> RingPrice:
    """Return the price of a ring in one way, remembered for equal ones."""
    axis = cost.mesh.names[signature.strategy.index(RING)]
    key = cost.key, axis, way, ring_key(op, signature, cost.mesh)
    with _LOCK:
        if key not in _PRICES:
            if len(_PRICES) >= MOST:
                _PRICES.clear()
            _PRICES[key] = _price(cost, op, signature, way)
        return _PRICES[key]


def _price(cost: ClusterCost, op: FlowOp, signature: NdSignature, way: str) -> RingPrice:
    ranks = cost.mesh.size(cost.mesh.names[signature.strategy.index(RING)])
    block = ring_block(op, signature, cost, way, min(ranks, STEPS))
    seconds = block_seconds(cost, block)
    if ranks > STEPS:
        before = block_seconds(cost, ring_block(op, signature, cost, way, STEPS - 1))
        seconds += (ranks - STEPS) * (seconds - before)
    return RingPrice(seconds, most_inner_bytes(block))


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
