"""The ways in which attention over a split sequence goes round a ring of ranks."""

from __future__ import annotations

from collections.abc import Hashable
from math import prod

from xdsl.dialects.builtin import StringAttr

from irc.dialects.flow import FlowOp, tensor
from irc.dialects.placement import Mesh
from irc.ops.attention_ops import BACKWARD, form_of
from irc.ops.strategies import RING
from irc.sharding.shards import local_shape
from irc.sharding.signatures import NdSignature

WAY = "ring"
"""Attribute of an attention op that runs as a ring: one of :data:`WAYS`; without it, the first."""

KEYS, ZIGZAG, TOKENS, ZIGZAG_TOKENS = WAYS = ("keys", "zigzag", "tokens", "zigzag-tokens")
"""``keys`` and values travel, or queries (``tokens``), in chunks as they lie; or, under a causal
mask, in ``zigzag`` order, where all ranks compute as much."""


def way_of(op: FlowOp) -> str:
    """Return the way that an op says."""
    way = op.attributes.get(WAY)
    return way.data if isinstance(way, StringAttr) else KEYS


def ring_key(op: FlowOp, signature: NdSignature, mesh: Mesh) -> Hashable:
    """Return what the programs of a ring cost by, but its axis: bytes and seconds.

    Samples and heads count by their product: a kernel computes each pair by itself.
    """
    placed = zip(op.inputs, signature.operands, strict=True)
    shapes = (local_shape(tensor(v).static_shape(), p, mesh) for v, p in placed)
    held = tuple((prod(shape[:-2]), *shape[-2:]) for shape in shapes)
    dtypes = tuple(tensor(v).dtype for v in op.inputs)
    size = mesh.axes[signature.strategy.index(RING)][1]
    return op.name, tuple(op.properties.items()), len(op.outputs), held, dtypes, size


def ways_of(op: FlowOp, signature: NdSignature, mesh: Mesh) -> list[str]:
    """Return the ways that an op may go round, ``keys`` first; none where it is no ring.

    A mask's columns are only taken where keys travel, and zigzag halves what a rank holds.
    """
    if RING not in signature.strategy:
        return []
    form, q = form_of(op.plain, len(op.inputs)), int(op.plain.get("target") == BACKWARD)
    if form.mask is not None:
        return [KEYS]
    rows = local_shape(tensor(op.operands[q]).static_shape(), signature.operands[q], mesh)[-2]
    halves = form.is_causal and rows % 2 == 0
    return [way for way in WAYS if halves or way not in (ZIGZAG, ZIGZAG_TOKENS)]
