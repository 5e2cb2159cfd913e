"""Rings whose queries travel: keys stay, and results go straight back to whom the rows belong.

TokenRing (Wang et al., arXiv:2412.20501): rows go to the next rank while results over the keys that
they met go the other way, so that both directions of a link carry something. In backward, rows come
with their gradient, result and log-sums, and only their own gradient goes back: gradients of keys
and values, which are wide and which a ring of keys would carry along, stay at home.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from irc.dialects.flow import ExternOp, PointwiseOp, tensor
from irc.dialects.types import TensorType
from irc.ops.attention_ops import Form
from irc.sharding.local_zigzag import (
    Halves,
    Zigzag,
    added,
    other_gradients,
    other_parts,
    own_gradients,
    own_parts,
)
from irc.sharding.ring import Part, Ring, Slopes, as_result, merged, wide

if TYPE_CHECKING:
    from irc.sharding.local_ops import Local


def tokens_forward(ring: Ring, first: Sequence[SSAValue]) -> list[SSAValue]:
    """Join what the rows met on the ranks after their own."""
    q, k, v = first
    travelling = [q]
    total: Part | None = None
    returned: list[SSAValue] = []
    for hops in range(ring.steps):
        coming = ring.send(travelling) if hops < ring.steps - 1 else []
        part = _block(ring, hops, travelling[0], k, v)
        if total is None:
            total = part
        else:
            total = _joined(ring, total, returned)
            returned = ring.send(part, -hops)
        travelling = ring.receive(coming)
    assert total is not None
    total = _joined(ring, total, returned)
    return _results(ring.local, total[: len(ring.local.op.outputs)])


def _joined(ring: Ring, total: Part, returned: Sequence[SSAValue]) -> Part:
    """Join what came back, if anything did."""
    came = ring.receive(returned)
    return merged(ring.local, total, Part(*came)) if came else total


def _results(local: Local, values: Sequence[SSAValue]) -> list[SSAValue]:
    """Return values in the dtypes of the results; the only one by the program's last op."""
    if len(values) == 1:
        return local.last(PointwiseOp, values, fn="cast")
    return [as_result(local, value, i) for i, value in enumerate(values)]


def _block(ring: Ring, hops: int, q: SSAValue, k: SSAValue, v: SSAValue) -> Part:
    """Emit attention of rows that came ``hops`` ranks over the rank's own keys."""
    kind = wide(TensorType.of((*tensor(q).shape[:-1], tensor(v).shape[-1]), tensor(q).dtype))
    sums = TensorType.of(kind.shape[:-1], kind.dtype)
    operands, form = _placed(ring, hops, [q, k, v])
    return Part(*ring.local.inner(ExternOp.make(operands, [kind, sums], **form.forward())))


def _placed(ring: Ring, hops: int, first: Sequence[SSAValue]) -> tuple[list[SSAValue], Form]:
    """Return operands and form of a call on rows that came ``hops`` ranks."""
    form = ring.call.form
    start = ring.start(hops, rows_travel=True)
    operands = [*first, *([] if start is None else [start])]
    place = None if start is None else len(first)
    return operands, Form(form.is_causal, form.scale, start=place)


def tokens_backward(ring: Ring, first: Sequence[SSAValue]) -> list[SSAValue]:
    """Send rows on with all that their gradient needs; that goes back at once."""
    g, q, k, v, y, sums = first
    local, travelling = ring.local, [g, q, y, sums]
    gradients: Slopes | None = None
    dq: SSAValue | None = None
    returned: list[SSAValue] = []
    for hops in range(ring.steps):
        coming = ring.send(travelling) if hops < ring.steps - 1 else []
        rows = travelling
        operands, form = _placed(ring, hops, [rows[0], rows[1], k, v, rows[2], rows[3]])
        kinds = [wide(tensor(value)) for value in (q, k, v)]
        slopes = Slopes(*local.inner(ExternOp.make(operands, kinds, **form.backward())))
        if gradients is None:
            gradients, dq = slopes, slopes.dq
        else:
            gradients = Slopes(
                slopes.dq,
                local.pointwise("add", gradients.dk, slopes.dk),
                local.pointwise("add", gradients.dv, slopes.dv),
            )
            dq = _sum_returned(ring, dq, returned)
            returned = ring.send([slopes.dq], -hops)
        travelling = ring.receive(coming)
    dq = _sum_returned(ring, dq, returned)
    assert gradients is not None
    return _results(local, (dq, gradients.dk, gradients.dv))


def _sum_returned(ring: Ring, dq: SSAValue | None, returned: Sequence[SSAValue]) -> SSAValue:
    assert dq is not None
    for value in ring.receive(returned):
        dq = ring.local.pointwise("add", dq, value)
    return dq


def zigzag_tokens_forward(ring: Ring, first: Sequence[SSAValue]) -> list[SSAValue]:
    """Send early and late rows round; two blocks of them are computed on every rank."""
    order, dim = Zigzag(ring), tensor(first[0]).ndim - 2
    q, k, v = (order.enter(value, dim) for value in first)
    rows: list[SSAValue] = [*q]
    coming = ring.send(rows) if ring.steps > 1 else []
    totals = own_parts(ring, q, k, v)
    returned: list[SSAValue] = []
    for hops in range(1, ring.steps):
        rows = ring.receive(coming)
        coming = ring.send(rows) if hops < ring.steps - 1 else []
        parts = other_parts(order, _keys_before(order, hops), Halves(*rows), k, v)
        totals = _both_joined(ring, totals, returned)
        returned = ring.send([*parts[0], *parts[1]], -hops)
    early, late = _both_joined(ring, totals, returned)
    results = [Halves(early.y, late.y), Halves(early.sums, late.sums)]
    count = len(ring.local.op.outputs)
    return order.leave_all(results[:count], (dim, dim)[:count])


def _keys_before(order: Zigzag, hops: int) -> SSAValue:
    """Emit whether the rank's early keys stand before early rows that came ``hops`` ranks."""
    local = order.local
    return local.pointwise("logical_not", order.is_before(hops), dtype="i1")


def _both_joined(
    ring: Ring, totals: tuple[Part, Part], returned: Sequence[SSAValue]
) -> tuple[Part, Part]:
    early, late = totals
    return _joined(ring, early, returned[:2]), _joined(ring, late, returned[2:])


def zigzag_tokens_backward(ring: Ring, first: Sequence[SSAValue]) -> list[SSAValue]:
    """The same with what the rows' gradients need; only these go back."""
    local, order, dim = ring.local, Zigzag(ring), tensor(first[0]).ndim - 2
    g, q, k, v, y, sums = (order.enter(value, dim) for value in first)
    held = ([x.early for x in (g, q, y, sums)], [x.late for x in (g, q, y, sums)])
    coming = ring.send([*held[0], *held[1]]) if ring.steps > 1 else []
    total = own_gradients(ring, held, k, v)
    dq, dk, dv = total
    returned: list[SSAValue] = []
    for hops in range(1, ring.steps):
        rows = ring.receive(coming)
        coming = ring.send(rows) if hops < ring.steps - 1 else []
        gradients = other_gradients(order, _keys_before(order, hops), (rows[:4], rows[4:]), k, v)
        dk, dv = added(local, dk, gradients.k), added(local, dv, gradients.v)
        if came := ring.receive(returned):
            dq = added(local, dq, Halves(*came))
        returned = ring.send(gradients.q, -hops)
    if came := ring.receive(returned):
        dq = added(local, dq, Halves(*came))
    return order.leave_all([dq, dk, dv], (dim, dim, dim))
