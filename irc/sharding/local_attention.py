"""Local programs of attention: rows that know where they stand, and rings of keys and values.

In a ring (Liu et al., arXiv:2310.01889) every rank holds a chunk of the sequence of q, k and v.
Keys and values travel from rank to rank, and each rank goes on with the softmax of its rows over
the columns that are there (`irc.ops.attention_ops`). Every rank issues the same permutes; under a
causal mask it skips the columns after its rows where it runs. Chunks are contiguous, so the last
rank skips none: a step takes what that rank takes, and is priced so. Permutes start before the
attention that runs beside them, but are priced after it, as a sum: on CPUs the transport takes the
cores that compute, so nothing may be promised.

A program has as many steps as ranks, and each step as many ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from irc.dialects.comm import PendingType, PermuteOp, RankIndexOp, WaitOp
from irc.dialects.flow import ExternOp, IotaOp, TakeOp, tensor
from irc.dialects.types import TensorType
from irc.ops.attention_ops import BACKWARD, Form, form_of
from irc.ops.strategies import CAUSAL_ROWS, RING

if TYPE_CHECKING:
    from irc.sharding.local import Local


@dataclass
class _Call:
    """The operands of an attention op by what they are.

    Attributes:
        first: q, k, v; in backward g, q, k, v, y and the log-sums.
        masks: none or one.
    """

    form: Form
    first: list[SSAValue]
    masks: list[SSAValue]

    @staticmethod
    def of(local: Local) -> _Call:
        """Read the op that a local program is for."""
        form = form_of(local.op.plain, len(local.inputs))
        count = 6 if local.op.plain.get("target") == BACKWARD else 3
        if local.op.name == "flow.attention":
            form = replace(form, with_sums=False)
        masks = [] if form.mask is None else [local.inputs[form.mask]]
        return _Call(form, local.inputs[:count], masks)

    def build(
        self, start: SSAValue | None, before: Sequence[SSAValue] = ()
    ) -> tuple[list[SSAValue], Form]:
        """Return operands and form of a call at a place, that goes on from what was before."""
        given = [*self.first, *self.masks]
        place = None if start is None else len(given)
        given += [] if start is None else [start]
        added = tuple(range(len(given), len(given) + len(before)))
        return [*given, *before], replace(self.form, start=place, before=added)


def _rows_of(local: Local) -> tuple[int, int]:
    """Return which operand is q, and its dim of rows."""
    q = 1 if local.op.plain.get("target") == BACKWARD else 0
    return q, tensor(local.inputs[q]).ndim - 2


def causal_rows(local: Local) -> list[SSAValue]:
    """Mask the columns after each row, counted where the row stands in the logical tensor."""
    call, (q, dim) = _Call.of(local), _rows_of(local)
    start = local.offset(tensor(local.op.inputs[q]), local.signature.operands[q], dim, "i64")
    given, form = call.build(start)
    attrs = form.backward() if local.op.plain.get("target") == BACKWARD else form.forward()
    return local.last(ExternOp, given, **attrs)


class _Ring:
    """What the steps of a ring share.

    Attributes:
        axis: the mesh axis.
        size: how many ranks are in a ring.
        steps: how many are built: all, unless only their price is asked for.
    """

    def __init__(self, local: Local) -> None:
        self.local, self.call = local, _Call.of(local)
        index = local.signature.strategy.index(RING)
        self.axis, self.size = local.mesh.axes[index]
        self.steps = min(self.size, local.steps or self.size)
        self._columns = tensor(local.inputs[_rows_of(local)[0] + 1]).static_shape()[-2]
        self.place = local.before(RankIndexOp, [], TensorType.of((), "i64"), axis=self.axis)

    def send(self, values: Sequence[SSAValue]) -> list[SSAValue]:
        """Start sending values to the next rank; they come when waited for."""
        targets = tuple((rank + 1) % self.size for rank in range(self.size))
        return [
            self.local.inner(
                PermuteOp.make([value], [PendingType(value.type)], axis=self.axis, targets=targets)
            )[0]
            for value in values
        ]

    def receive(self, pending: Sequence[SSAValue]) -> list[SSAValue]:
        """Wait for what the rank before has sent."""
        return [self.local.before(WaitOp, [p], _awaited(p)) for p in pending]

    def at(self, hops: int, keys: Sequence[SSAValue]) -> _Call:
        """Return the call on keys and values that have travelled so far."""
        call, q = self.call, _rows_of(self.local)[0]
        first = [*call.first[: q + 1], *keys, *call.first[q + 3 :]]
        return replace(call, first=first, masks=[self._columns_of(m, hops) for m in call.masks])

    def start(self, hops: int) -> SSAValue | None:
        """Emit how far the rank's rows are from the columns that came ``hops`` ranks."""
        if not self.call.form.is_causal:
            return None
        local = self.local
        if hops == 0:
            return local.scalar(0, "i64")
        passed = local.pointwise("lt", self.place, local.scalar(hops, "i64"), dtype="i1")
        after = local.scalar((hops - self.size) * self._columns, "i64")
        return local.pointwise("where", passed, after, local.scalar(hops * self._columns, "i64"))

    def _columns_of(self, mask: SSAValue, hops: int) -> SSAValue:
        """Take of a mask the columns that came ``hops`` ranks."""
        kind, local = tensor(mask), self.local
        shape = kind.static_shape()
        if not shape or shape[-1] == 1:
            return mask
        origin = local.pointwise("sub", self.place, local.scalar(hops, "i64"))
        ranks = local.scalar(self.size, "i64")
        behind = local.pointwise("lt", origin, local.scalar(0, "i64"), dtype="i1")
        whole = local.pointwise("add", origin, ranks)
        origin = local.pointwise("where", behind, whole, origin)
        first = local.pointwise("mul", origin, local.scalar(self._columns, "i64"))
        count = local.before(IotaOp, [], TensorType.of((self._columns,), "i64"), dim=0)
        index = local.pointwise("add", count, first)
        part = TensorType.of((*shape[:-1], self._columns), kind.dtype)
        return local.before(TakeOp, [mask, index], part, dim=len(shape) - 1)


def _awaited(pending: SSAValue) -> TensorType:
    kind = pending.type
    assert isinstance(kind, PendingType)
    assert isinstance(kind.tensor, TensorType)
    return kind.tensor


def _wide(kind: TensorType) -> TensorType:
    """The type that parts of a result are added up in."""
    return TensorType.of(kind.shape, "f32") if kind.dtype in ("f16", "bf16") else kind


def ring_forward(local: Local) -> list[SSAValue]:
    """Start with the rank's own columns; go on with those that the ranks before held."""
    ring, (q, _) = _Ring(local), _rows_of(local)
    keys = list(local.inputs[q + 1 : q + 3])
    made = _wide(tensor_of(local.result_types()[0]))
    sums = TensorType.of(made.shape[:-1], made.dtype)
    before: list[SSAValue] = []
    for hops in range(ring.steps - 1):
        coming = ring.send(keys)
        given, form = ring.at(hops, keys).build(ring.start(hops), before)
        attrs = replace(form, with_sums=True).forward()
        before = local.inner(ExternOp.make(given, [made, sums], **attrs))
        keys = ring.receive(coming)
    hops = ring.steps - 1
    given, form = ring.at(hops, keys).build(ring.start(hops), before)
    return local.last(ExternOp, given, **form.forward())


def ring_backward(local: Local) -> list[SSAValue]:
    """Start with the columns of the rank before, and end with the rank's own.

    Gradients of keys and values travel with them, from the rank after theirs, so that they come
    home for the last step, which gives all three.
    """
    ring, (q, _) = _Ring(local), _rows_of(local)
    own = list(local.inputs[q + 1 : q + 3])
    kinds = [_wide(tensor_of(kind)) for kind in local.result_types()]
    keys = ring.receive(ring.send(own)) if ring.steps > 1 else own
    before: list[SSAValue] = []
    for hops in range(1, ring.steps):
        coming = ring.send(keys) if hops < ring.steps - 1 else []
        given, form = ring.at(hops, keys).build(ring.start(hops), before)
        dq, dk, dv = local.inner(ExternOp.make(given, kinds, **form.backward()))
        keys = ring.receive(coming)
        before = [dq, *ring.receive(ring.send([dk, dv]))]
    given, form = ring.at(0, own).build(ring.start(0), before)
    return local.last(ExternOp, given, **form.backward())


def tensor_of(kind: object) -> TensorType:
    """Return a type that is a tensor's."""
    assert isinstance(kind, TensorType)
    return kind


def _ring(local: Local) -> list[SSAValue]:
    is_backward = local.op.plain.get("target") == BACKWARD
    return ring_backward(local) if is_backward else ring_forward(local)


ATTENTION_PROGRAMS: Mapping[str, Callable[[Local], list[SSAValue]]] = {
    CAUSAL_ROWS: causal_rows,
    RING: _ring,
}
