"""What the local programs of a ring of attention share: who sends to whom, parts and their merge.

A ring (Liu et al., arXiv:2310.01889) has a chunk of the sequence of q, k and v on each rank.
Results over parts of the keys are joined by their log-sums (online softmax, arXiv:1805.02867).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from xdsl.ir import SSAValue

from irc.dialects.comm import PendingType, PermuteOp, RankIndexOp, WaitOp
from irc.dialects.flow import ExternOp, ReshapeOp, tensor
from irc.dialects.indexing import TakeOp
from irc.dialects.literals import IotaOp
from irc.dialects.types import TensorType
from irc.dialects.whole_attention import AttentionOp
from irc.ops.attention_ops import BACKWARD, Form, form_of
from irc.ops.strategies import RING

if TYPE_CHECKING:
    from irc.sharding.local_ops import Local


@dataclass
class Call:
    """The operands of an attention op by what they are.

    Attributes:
        first: q, k, v; in backward g, q, k, v, y and the log-sums.
        place: of q among them.
        masks: none or one.
    """

    form: Form
    first: list[SSAValue]
    place: int
    masks: list[SSAValue]

    @staticmethod
    def of(local: Local) -> Call:
        """Read the op that a local program is for."""
        form = form_of(local.op.plain, len(local.inputs))
        count, place = (6, 1) if local.op.plain.get("target") == BACKWARD else (3, 0)
        if isinstance(local.op, AttentionOp):
            form = replace(form, with_sums=False)
        masks = [value for index, value in enumerate(local.inputs) if index == form.mask]
        return Call(form, list(islice(local.inputs, count)), place, masks)

    @property
    def keys(self) -> list[SSAValue]:
        """K and v."""
        return self.first[self.place + 1 : self.place + 3]

    @property
    def dim_of_rows(self) -> int:
        """The dim of q's rows."""
        return tensor(self.first[self.place]).ndim - 2

    def build(
        self, start: SSAValue | None, before: Sequence[SSAValue] = ()
    ) -> tuple[list[SSAValue], Form]:
        """Return operands and form of a call at a place, that goes on from what was before."""
        operands = [*self.first, *self.masks]
        place = None if start is None else len(operands)
        operands += [] if start is None else [start]
        added = tuple(range(len(operands), len(operands) + len(before)))
        return [*operands, *before], replace(self.form, start=place, before=added)


class Ring:
    """What the steps of a ring share.

    Attributes:
        axis: the mesh axis.
        size: how many ranks are in a ring.
        steps: how many are built: all, unless only their price is asked for.
    """

    def __init__(self, local: Local) -> None:
        self.local, self.call = local, Call.of(local)
        index = local.signature.strategy.index(RING)
        self.axis, self.size = local.mesh.axes[index]
        self.steps = min(self.size, local.steps or self.size)
        k, _ = self.call.keys
        self._columns = tensor(k).static_shape()[-2]
        self.place = local.before(RankIndexOp, [], TensorType.of((), "i64"), axis=self.axis)

    def send(self, values: Sequence[SSAValue], by: int = 1) -> list[SSAValue]:
        """Start sending values to the rank ``by`` further; they come when waited for."""
        return self.permute(values, [(rank + by) % self.size for rank in range(self.size)])

    def permute(self, values: Sequence[SSAValue], targets: Sequence[int]) -> list[SSAValue]:
        """Start sending values, those of rank r to rank ``targets[r]``."""
        return [
            self.local.inner(
                PermuteOp.make(
                    [value], [PendingType(value.type)], axis=self.axis, targets=tuple(targets)
                )
            )[0]
            for value in values
        ]

    def receive(self, pending: Sequence[SSAValue]) -> list[SSAValue]:
        """Wait for what the rank before has sent."""
        return [self.local.before(WaitOp, [p], _awaited(p)) for p in pending]

    def at(self, hops: int, keys: Sequence[SSAValue]) -> Call:
        """Return the call on keys and values that have travelled so far."""
        call, q = self.call, self.call.place
        first = [*call.first[: q + 1], *keys, *call.first[q + 3 :]]
        return replace(call, first=first, masks=[self._columns_of(m, hops) for m in call.masks])

    def start(self, hops: int, *, rows_travel: bool = False) -> SSAValue | None:
        """Emit how far rows are from columns, of which one came ``hops`` ranks; None: no matter."""
        if not self.call.form.is_causal:
            return None
        local, sign = self.local, -1 if rows_travel else 1
        if hops == 0:
            return local.scalar(0, "i64")
        passed = local.pointwise("lt", self.place, local.scalar(hops, "i64"), dtype="i1")
        after = local.scalar(sign * (hops - self.size) * self._columns, "i64")
        before = local.scalar(sign * hops * self._columns, "i64")
        return local.pointwise("where", passed, after, before)

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


def wide(kind: TensorType) -> TensorType:
    """The type that parts of a result are added up in."""
    return TensorType.of(kind.shape, "f32") if kind.dtype in ("f16", "bf16") else kind


class Part(NamedTuple):
    """A result of attention over some of the keys.

    Attributes:
        y: [.., H, S, E], in float32 for half types.
        sums: the log-sums of the rows' scores, [.., H, S]; minus infinity where a row sees none.
    """

    y: SSAValue
    sums: SSAValue


class Slopes(NamedTuple):
    """Gradients of a block of rows and keys, shaped as they are, in float32 for half types."""

    dq: SSAValue
    dk: SSAValue
    dv: SSAValue


def attend(ring: Ring, q: SSAValue, k: SSAValue, v: SSAValue, *, causal: bool = False) -> Part:
    """Emit attention over a block of keys; if ``causal``, rows and keys stand at one place."""
    kind = wide(TensorType.of((*tensor(q).shape[:-1], tensor(v).shape[-1]), tensor(q).dtype))
    sums = TensorType.of(kind.shape[:-1], kind.dtype)
    form = Form(causal, ring.call.form.scale)
    return Part(*ring.local.inner(ExternOp.make([q, k, v], [kind, sums], **form.forward())))


def slopes(
    ring: Ring, rows: Sequence[SSAValue], keys: Sequence[SSAValue], *, causal: bool = False
) -> Slopes:
    """Emit the gradients of a block.

    Args:
        ring: of the program.
        rows: g, q, y and the log-sums of some rows.
        keys: k and v of a block of keys.
        causal: rows and keys stand at one place.
    """
    g, q, y, sums = rows
    kinds = [wide(tensor(value)) for value in (q, *keys)]
    attrs = Form(causal, ring.call.form.scale).backward()
    return Slopes(*ring.local.inner(ExternOp.make([g, q, *keys, y, sums], kinds, **attrs)))


def merged(local: Local, a: Part, b: Part) -> Part:
    """Join two results: ``L = log(exp(l) + exp(m))``, ``y = exp(l - L) y + exp(m - L) y'``.

    Every row has to have seen something in ``a``.
    """
    top = local.pointwise("maximum", a.sums, b.sums)
    powers = [local.pointwise("exp", local.pointwise("sub", s, top)) for s in (a.sums, b.sums)]
    total = local.pointwise("add", *powers)
    parts: list[SSAValue] = []
    for power, y in zip(powers, (a.y, b.y), strict=True):
        kind = tensor(power)
        share = local.pointwise("div", power, total)
        line = local.before(ReshapeOp, [share], TensorType.of((*kind.shape, 1), kind.dtype))
        parts.append(local.pointwise("mul", line, y))
    sums = local.pointwise("add", top, local.pointwise("log", total))
    return Part(local.pointwise("add", *parts), sums)


def as_result(local: Local, value: SSAValue, index: int) -> SSAValue:
    """Return a value in the dtype of the op's result of that index."""
    kind = local.op.outputs[index].type
    assert isinstance(kind, TensorType)
    if tensor(value).dtype == kind.dtype:
        return value
    return local.pointwise("cast", value, dtype=kind.dtype)
