"""Local programs of attention: rows that know where they stand, and rings of keys and values.

In a ring (Liu et al., arXiv:2310.01889) every rank holds a chunk of the sequence of q, k and v.
Keys and values travel from rank to rank, and each rank goes on with the softmax of its rows over
the columns that are there (`irc.ops.attention_ops`). Every rank issues the same permutes; under a
causal mask it skips the columns after its rows where it runs. Chunks are contiguous, so the last
rank skips none: a step takes what that rank takes, and is priced so. Other ways to go round, of
which pass ``plan-rings`` chooses, are in `irc.sharding.local_zigzag` and `.local_tokens`.

A program has as many steps as ranks, and each step as many ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from xdsl.ir import SSAValue

from irc.dialects.flow import ExternOp
from irc.dialects.types import TensorType
from irc.ops.attention_ops import BACKWARD
from irc.ops.strategies import CAUSAL_ROWS, RING
from irc.sharding.local_tokens import (
    tokens_backward,
    tokens_forward,
    zigzag_tokens_backward,
    zigzag_tokens_forward,
)
from irc.sharding.local_zigzag import zigzag_backward, zigzag_forward
from irc.sharding.ring import Call, Ring, wide
from irc.sharding.ring_ways import KEYS, TOKENS, ZIGZAG, ZIGZAG_TOKENS, way_of

if TYPE_CHECKING:
    from irc.sharding.local_ops import Local

RingProgram: TypeAlias = Callable[[Ring, Sequence[SSAValue]], list[SSAValue]]


def causal_rows(local: Local) -> list[SSAValue]:
    """Mask the columns after each row, counted where the row stands in the logical tensor."""
    call = Call.of(local)
    start = local.start_of(call.place, call.dim_of_rows, "i64")
    operands, form = call.build(start)
    attrs = form.backward() if local.op.plain.get("target") == BACKWARD else form.forward()
    return local.last(ExternOp, operands, **attrs)


def ring_forward(local: Local) -> list[SSAValue]:
    """Start with the rank's own columns; go on with those that the ranks before held."""
    ring = Ring(local)
    keys = ring.call.keys
    kind = wide(tensor_of(local.result_types()[0]))
    sums = TensorType.of(kind.shape[:-1], kind.dtype)
    before: list[SSAValue] = []
    for hops in range(ring.steps - 1):
        coming = ring.send(keys)
        operands, form = ring.at(hops, keys).build(ring.start(hops), before)
        attrs = replace(form, with_sums=True).forward()
        before = local.inner(ExternOp.make(operands, [kind, sums], **attrs))
        keys = ring.receive(coming)
    hops = ring.steps - 1
    operands, form = ring.at(hops, keys).build(ring.start(hops), before)
    return local.last(ExternOp, operands, **form.forward())


def ring_backward(local: Local) -> list[SSAValue]:
    """Start with the columns of the rank before, and end with the rank's own.

    Gradients of keys and values travel with them, from the rank after theirs, so that they come
    home for the last step, which gives all three.
    """
    ring = Ring(local)
    own = ring.call.keys
    kinds = [wide(tensor_of(kind)) for kind in local.result_types()]
    keys = ring.receive(ring.send(own)) if ring.steps > 1 else own
    before: list[SSAValue] = []
    for hops in range(1, ring.steps):
        coming = ring.send(keys) if hops < ring.steps - 1 else []
        operands, form = ring.at(hops, keys).build(ring.start(hops), before)
        dq, dk, dv = local.inner(ExternOp.make(operands, kinds, **form.backward()))
        keys = ring.receive(coming)
        before = [dq, *ring.receive(ring.send([dk, dv]))]
    operands, form = ring.at(0, own).build(ring.start(0), before)
    return local.last(ExternOp, operands, **form.backward())


def tensor_of(kind: object) -> TensorType:
    """Return a type that is a tensor's."""
    assert isinstance(kind, TensorType)
    return kind


def _ring(local: Local) -> list[SSAValue]:
    is_backward = local.op.plain.get("target") == BACKWARD
    way = local.way or way_of(local.op)
    if way == KEYS:
        return ring_backward(local) if is_backward else ring_forward(local)
    ring = Ring(local)
    forward, backward = OTHER_WAYS[way]
    return (backward if is_backward else forward)(ring, ring.call.first)


OTHER_WAYS: Mapping[str, tuple[RingProgram, RingProgram]] = {
    ZIGZAG: (zigzag_forward, zigzag_backward),
    TOKENS: (tokens_forward, tokens_backward),
    ZIGZAG_TOKENS: (zigzag_tokens_forward, zigzag_tokens_backward),
}
"""Programs forward and backward, of a ring and the operands that are no masks."""

ATTENTION_PROGRAMS: Mapping[str, Callable[[Local], list[SSAValue]]] = {
    CAUSAL_ROWS: causal_rows,
    RING: _ring,
}
