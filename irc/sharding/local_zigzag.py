"""Causal rings in zigzag order: every rank computes as much as every other.

Of 2n chunks of the sequence a rank holds an early one, i, and its mirror, 2n - 1 - i. Of the keys
of another rank, whose early chunk is j, it then always needs two blocks of four: the late rows see
the early keys; and where j < i the early rows see the early keys, else the late rows the late keys.
Which of the two it is differs by rank, and a select takes operands and results: shapes and work are
those of every rank. Shards lie in the order of the ranks, so ranks r and n - 1 - r swap their
second halves before and after: then i is 2 r on the lower ranks, 2 (n - 1 - r) + 1 on the upper.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from xdsl.ir import SSAValue

from irc.dialects.flow import ConcatOp, SliceOp, tensor
from irc.dialects.literals import ConstantOp
from irc.dialects.types import TensorType, number_in
from irc.sharding.ring import Part, Ring, Slopes, as_result, attend, merged, slopes

if TYPE_CHECKING:
    from irc.sharding.local_ops import Local


class Halves(NamedTuple):
    """A rank's early chunk of a tensor, and its late one."""

    early: SSAValue
    late: SSAValue


class Zigzag:
    """A ring whose ranks hold an early and a late chunk.

    Attributes:
        ring: of the program.
        local: the program.
    """

    def __init__(self, ring: Ring) -> None:
        self.ring, self.local = ring, ring.local
        size, local = ring.size, ring.local
        self._mirror = tuple(reversed(range(size)))
        self._half = local.scalar((size + 1) // 2, "i64")
        self._is_lower = local.pointwise("lt", ring.place, self._half, dtype="i1")
        self._early = self._chunk_of(ring.place, self._is_lower)

    def enter(self, value: SSAValue, dim: int) -> Halves:
        """Return the chunks that the rank works on, of a shard cut along ``dim``."""
        kept, sent = (self._half_of(value, dim, number) for number in (0, 1))
        (came,) = self.ring.receive(self.ring.permute([sent], self._mirror))
        return Halves(
            self.local.pointwise("where", self._is_lower, kept, came),
            self.local.pointwise("where", self._is_lower, came, kept),
        )

    def leave(self, value: Halves, dim: int, *, last: bool) -> SSAValue:
        """Return a shard of chunks that the rank worked on; if ``last``, by the program's last."""
        kept = self.local.pointwise("where", self._is_lower, value.early, value.late)
        sent = self.local.pointwise("where", self._is_lower, value.late, value.early)
        (came,) = self.ring.receive(self.ring.permute([sent], self._mirror))
        if last:
            return self.local.last(ConcatOp, [kept, came], dim=dim)[0]
        kind = tensor(kept)
        shape = [2 * n if d == dim else n for d, n in enumerate(kind.static_shape())]
        whole = TensorType.of(shape, kind.dtype)
        return self.local.before(ConcatOp, [kept, came], whole, dim=dim)

    def leave_all(self, values: Sequence[Halves], dims: Sequence[int]) -> list[SSAValue]:
        """Return the results of the program, in their dtypes, by halves."""
        alone = len(values) == 1
        cast = [
            Halves(*(as_result(self.local, half, i) for half in value))
            for i, value in enumerate(values)
        ]
        return [self.leave(v, dim, last=alone) for v, dim in zip(cast, dims, strict=True)]

    def is_before(self, hops: int) -> SSAValue:
        """Emit whether the early chunk of the rank ``hops`` before stands before one's own."""
        local, size = self.local, self.ring.size
        origin = local.pointwise("sub", self.ring.place, local.scalar(hops, "i64"))
        behind = local.pointwise("lt", origin, local.scalar(0, "i64"), dtype="i1")
        around = local.pointwise("add", origin, local.scalar(size, "i64"))
        origin = local.pointwise("where", behind, around, origin)
        is_lower = local.pointwise("lt", origin, self._half, dtype="i1")
        return local.pointwise("lt", self._chunk_of(origin, is_lower), self._early, dtype="i1")

    def chosen(
        self, choice: SSAValue, a: Sequence[SSAValue], b: Sequence[SSAValue]
    ) -> list[SSAValue]:
        """Take some values or others."""
        return [self.local.pointwise("where", choice, x, y) for x, y in zip(a, b, strict=True)]

    def _chunk_of(self, rank: SSAValue, is_lower: SSAValue) -> SSAValue:
        twice = self.local.pointwise("add", rank, rank)
        most = self.local.scalar(2 * self.ring.size - 1, "i64")
        return self.local.pointwise(
            "where", is_lower, twice, self.local.pointwise("sub", most, twice)
        )

    def _half_of(self, value: SSAValue, dim: int, number: int) -> SSAValue:
        kind = tensor(value)
        shape = kind.static_shape()
        rows = shape[dim] // 2
        starts = tuple(number * rows if d == dim else 0 for d in range(len(shape)))
        stops = tuple((number + 1) * rows if d == dim else n for d, n in enumerate(shape))
        half = TensorType.of([rows if d == dim else n for d, n in enumerate(shape)], kind.dtype)
        steps = (1,) * len(shape)
        return self.local.before(SliceOp, [value], half, starts=starts, stops=stops, steps=steps)

    def constant(self, value: float, dtype: str) -> SSAValue:
        """Emit a number of a float dtype."""
        number = (number_in(value, dtype),)
        return self.local.before(ConstantOp, [], TensorType.of((), dtype), value=number)


def own_parts(ring: Ring, q: Halves, k: Halves, v: Halves) -> tuple[Part, Part]:
    """Emit attention of the early and of the late rows over the rank's own keys."""
    early = attend(ring, q.early, k.early, v.early, causal=True)
    across = attend(ring, q.late, k.early, v.early)
    return early, merged(ring.local, across, attend(ring, q.late, k.late, v.late, causal=True))


def other_parts(
    order: Zigzag, before: SSAValue, q: Halves, k: Halves, v: Halves
) -> tuple[Part, Part]:
    """Emit attention of early and of late rows over the keys of another rank.

    Args:
        order: of the ring.
        before: whether those keys' early chunk stands before the rows'.
        q: rows.
        k: keys.
        v: values.

    Returns:
        For the early rows, which may see nothing, and for the late ones.
    """
    ring = order.ring
    always = attend(ring, q.late, k.early, v.early)
    block = order.chosen(before, (q.early, k.early, v.early), (q.late, k.late, v.late))
    either = attend(ring, *block)
    nothing = order.constant(-inf, tensor(either.sums).dtype)
    early, late = (
        order.chosen(before, [a], [b])[0]
        for a, b in ((either.sums, nothing), (nothing, either.sums))
    )
    return Part(either.y, early), merged(ring.local, always, Part(either.y, late))


def zigzag_forward(ring: Ring, first: Sequence[SSAValue]) -> list[SSAValue]:
    """Go on from the rank's own keys to those that the ranks before held."""
    order, rows = Zigzag(ring), tensor(first[0]).ndim - 2
    q, k, v = (order.enter(value, rows) for value in first)
    early: Part | None = None
    late: Part | None = None
    keys = [*k, *v]
    for hops in range(ring.steps):
        coming = ring.send(keys) if hops < ring.steps - 1 else []
        k, v = Halves(*keys[:2]), Halves(*keys[2:])
        if early is None or late is None:
            early, late = own_parts(ring, q, k, v)
        else:
            parts = other_parts(order, order.is_before(hops), q, k, v)
            early, late = (
                merged(ring.local, old, new) for old, new in zip((early, late), parts, strict=True)
            )
        keys = ring.receive(coming)
    assert early is not None
    assert late is not None
    results = [Halves(early.y, late.y), Halves(early.sums, late.sums)]
    count = len(ring.local.op.outputs)
    return order.leave_all(results[:count], (rows, rows)[:count])


class Gradients(NamedTuple):
    """Gradients of the halves of q, k and v."""

    q: Halves
    k: Halves
    v: Halves


def own_gradients(
    ring: Ring, rows: tuple[Sequence[SSAValue], Sequence[SSAValue]], k: Halves, v: Halves
) -> Gradients:
    """Emit the gradients of the rank's own rows and keys.

    Args:
        ring: of the program.
        rows: g, q, y and log-sums of the early rows, and of the late ones.
        k: keys.
        v: values.
    """
    early = slopes(ring, rows[0], (k.early, v.early), causal=True)
    across = slopes(ring, rows[1], (k.early, v.early))
    late = slopes(ring, rows[1], (k.late, v.late), causal=True)
    add = ring.local.pointwise
    return Gradients(
        Halves(early.dq, add("add", across.dq, late.dq)),
        Halves(add("add", early.dk, across.dk), late.dk),
        Halves(add("add", early.dv, across.dv), late.dv),
    )


def other_gradients(
    order: Zigzag, before: SSAValue, rows: tuple[Sequence[SSAValue], Sequence[SSAValue]],
    k: Halves, v: Halves,
) -> Gradients:  # fmt: skip
    """Emit the gradients of rows of one rank and keys of another; see :func:`other_parts`."""
    ring = order.ring
    always = slopes(ring, rows[1], (k.early, v.early))
    block = order.chosen(before, (*rows[0], k.early, v.early), (*rows[1], k.late, v.late))
    either = slopes(ring, block[:4], block[4:])
    return Gradients(
        _apart(order, before, either, always, 0, to_late=True),
        _apart(order, before, either, always, 1, to_late=False),
        _apart(order, before, either, always, 2, to_late=False),
    )


def _apart(
    order: Zigzag, before: SSAValue, either: Slopes, always: Slopes, index: int, *, to_late: bool
) -> Halves:
    """Return what each half gets of the block that differs by rank, and of the other one."""
    value, other, local = either[index], always[index], order.local
    zero = order.constant(0.0, tensor(value).dtype)
    early = local.pointwise("where", before, value, zero)
    late = local.pointwise("where", before, zero, value)
    if to_late:
        return Halves(early, local.pointwise("add", late, other))
    return Halves(local.pointwise("add", early, other), late)


def added(local: Local, a: Halves | None, b: Halves) -> Halves:
    """Return the sum of two tensors by halves."""
    if a is None:
        return b
    return Halves(*(local.pointwise("add", x, y) for x, y in zip(a, b, strict=True)))


def zigzag_backward(ring: Ring, first: Sequence[SSAValue]) -> list[SSAValue]:
    """Keys and values go round, and behind them their gradients, which end at home.

    What a block adds to them is computed while they travel.
    """
    local, order, rows = ring.local, Zigzag(ring), tensor(first[0]).ndim - 2
    g, q, k, v, y, sums = (order.enter(value, rows) for value in first)
    held = ([x.early for x in (g, q, y, sums)], [x.late for x in (g, q, y, sums)])
    keys = [*k, *v]
    coming = ring.send(keys) if ring.steps > 1 else []
    own = own_gradients(ring, held, k, v)
    dq = own.q
    sent: list[SSAValue] = []
    for hops in range(1, ring.steps):
        keys = ring.receive(coming)
        coming = ring.send(keys) if hops < ring.steps - 1 else []
        gradients = other_gradients(
            order, order.is_before(hops), held, Halves(*keys[:2]), Halves(*keys[2:])
        )
        dq = added(local, dq, gradients.q)
        came = ring.receive(sent)
        dk = added(local, Halves(*came[:2]) if came else None, gradients.k)
        dv = added(local, Halves(*came[2:]) if came else None, gradients.v)
        sent = ring.send([*dk, *dv])
    came = ring.receive(sent)
    dk = added(local, Halves(*came[:2]) if came else None, own.k)
    dv = added(local, Halves(*came[2:]) if came else None, own.v)
    return order.leave_all([dq, dk, dv], (rows, rows, rows))
