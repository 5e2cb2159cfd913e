"""ATen's bags of embeddings: rows are looked up as of an embedding, and those of a bag added up.

A table whose rows are split over ranks gives partial sums of each look-up, and sums of partial sums
are partial sums: a bag of any size is one all-reduce, or a reduce-scatter, of the bags alone.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from irc.dialects.flow import BroadcastOp, PointwiseOp, ReshapeOp, tensor
from irc.dialects.indexing import ScatterOp, TakeOp
from irc.dialects.literals import ConstantOp, IotaOp
from irc.dialects.size import Dim
from irc.frontends.torch.lowering import Lowering, lowers
from irc.frontends.torch.shapes import iota

Maybe = SSAValue | None

SUM, MEAN, MOST = 0, 1, 2
"""ATen's numbers of what becomes of a bag."""


@lowers("embedding_bag", "embedding_bag.padding_idx", "_embedding_bag")
def embedding_bag(
    t: Lowering,
    weight: SSAValue,
    indices: SSAValue,
    offsets: SSAValue,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Maybe = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> list[SSAValue]:
    """Look rows up, and reduce each bag of them."""
    if any(t.read[1:]) or scale_grad_by_freq or tensor(indices).ndim != 1:
        t.decline()
    bags = _Bags(t, weight, indices, per_sample_weights, padding_idx)
    count, places = t.shape[0], tensor(indices).shape[0]
    step = _step(offsets)
    if isinstance(count, int) and isinstance(places, int) and step * count == places and step:
        result = bags.equal(count, step, mode)
    elif mode == MOST:
        t.decline()
    else:
        result = bags.between(offsets, mode)
        if include_last_offset:
            # The last offset begins a bag of what lies behind all of them, which nobody reads.
            result = t.b.op(TakeOp, [result, iota(t, count)], dim=0)
    rest = [t.b.constant([0], kind.shape, kind.dtype) for kind in t.results[1:]]
    return [t.b.cast(result, t.dtype), *rest]


class _Bags:
    """Looked-up rows, and how much each counts."""

    def __init__(
        self,
        t: Lowering,
        weight: SSAValue,
        indices: SSAValue,
        scales: SSAValue | None,
        padding: int | None,
    ) -> None:
        self._t = t
        self._rows = t.b.op(TakeOp, [weight, indices], dim=0)
        self._counts: SSAValue | None = None
        dtype = t.accumulating(tensor(weight).dtype)
        self._rows = t.b.cast(self._rows, dtype)
        if padding is not None and padding >= 0:
            padded = t.value(padding, tensor(indices).dtype)
            self._counts = t.b.cast(t.b.pointwise("ne", indices, padded), dtype)
            self._scale(self._counts)
        if scales is not None:
            self._scale(t.b.cast(scales, dtype))

    def _scale(self, by: SSAValue) -> None:
        column = self._t.b.reshape(by, (tensor(by).shape[0], 1))
        self._rows = self._t.b.pointwise("mul", self._rows, column)

    def equal(self, count: int, step: int, mode: int) -> SSAValue:
        """Reduce bags of one size each, which follow one another."""
        t = self._t
        rows = t.b.reshape(self._rows, (count, step, tensor(self._rows).shape[1]))
        if mode == MOST:
            if self._counts is not None:
                t.decline()
            return t.b.reduce("max", rows, [1], keep_dims=False)
        total = t.b.reduce("sum", rows, [1], keep_dims=False)
        if mode == SUM:
            return total
        if self._counts is None:
            return t.b.pointwise("div", total, t.value(step, tensor(total).dtype))
        each = t.b.reduce("sum", t.b.reshape(self._counts, (count, step)), [1], keep_dims=True)
        return self._mean(total, each)

    def between(self, offsets: SSAValue, mode: int) -> SSAValue:
        """Add up bags that begin at offsets: an index is of the last bag that began before it."""
        t = self._t
        places, count = tensor(self._rows).shape[0], tensor(offsets).shape[0]
        here = t.b.reshape(iota(t, places), (places, 1))
        starts = t.b.reshape(t.b.cast(offsets, "i64"), (1, count))
        begun = t.b.cast(t.b.pointwise("ge", here, starts), "i64")
        number = t.b.reduce("sum", begun, [1], keep_dims=True)
        bag = t.b.pointwise("sub", number, t.value(1, "i64"))
        total = self._added(self._rows, bag, count)
        if mode == SUM:
            return total
        ones = self._counts
        if ones is None:
            ones = t.b.broadcast(t.value(1, tensor(total).dtype), (places,))
        return self._mean(total, self._added(t.b.reshape(ones, (places, 1)), bag, count))

    def _added(self, rows: SSAValue, bag: SSAValue, count: Dim) -> SSAValue:
        t, kind = self._t, tensor(rows)
        zeros = t.b.constant([0], (count, kind.shape[1]), kind.dtype)
        return t.b.op(ScatterOp, [zeros, t.b.broadcast(bag, kind.shape), rows], dim=0, fn="sum")

    def _mean(self, total: SSAValue, counts: SSAValue) -> SSAValue:
        """Divide sums; a bag that holds nothing is zero."""
        t = self._t
        least = t.b.pointwise("maximum", counts, t.value(1, tensor(counts).dtype))
        return t.b.pointwise("div", total, least)


def _step(offsets: SSAValue) -> int:
    """Return by how much evenly spaced offsets from 0 grow; 0 where they are not known to."""
    owner = _behind(offsets).owner
    if isinstance(owner, IotaOp):
        return 1 if _counts(owner, offsets) else 0
    if not isinstance(owner, PointwiseOp) or owner.fn != "mul":
        return 0
    first, second = (_behind(value).owner for value in owner.inputs)
    if not isinstance(first, IotaOp) or not isinstance(second, ConstantOp):
        return 0
    step = second.value
    return int(step[0]) if len(step) == 1 and _counts(first, offsets) else 0


def _counts(op: IotaOp, offsets: SSAValue) -> bool:
    """Return whether it counts all offsets, none of which is a copy of another."""
    return tensor(op.outputs[0]).shape == tensor(offsets).shape


def _behind(value: SSAValue) -> SSAValue:
    while isinstance(value.owner, BroadcastOp | ReshapeOp):
        value = value.owner.operands[0]
    return value
