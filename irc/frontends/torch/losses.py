"""Cross-entropy in all its forms: class weights, label smoothing, probabilities as targets.

Everything becomes a log-softmax and a look-up (or a product with the targets), so that it can be
differentiated, fused, and split over the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from irc.dialects.flow import tensor
from irc.dialects.indexing import GatherOp, TakeOp
from irc.dialects.size import Dim
from irc.frontends.torch.lowering import Lowering, count, lowers
from irc.frontends.torch.reductions import log_softmax_of, total

MEAN, SUM = 1, 2
"""ATen's numbers of reductions; 0 is none."""


@dataclass(frozen=True)
class Targets:
    """Class indices, and what of them counts.

    Attributes:
        index: indices that lie inside the classes: ignored ones are 0.
        counted: false where a target is ignored.
        weights: of each target: its class's, or 1; 0 where it is ignored.
        is_weighted: true where classes have weights.
    """

    index: SSAValue
    counted: SSAValue
    weights: SSAValue
    is_weighted: bool


@lowers("nll_loss", "nll_loss_nd")
def nll_loss(
    t: Lowering,
    self: SSAValue,
    target: SSAValue,
    weight: SSAValue | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
) -> SSAValue:
    """Return minus the weighted log-probability of each target, without the ignored ones."""
    _require_fitting(t, self, weight)
    log = t.b.cast(self, t.accumulating(t.dtype))
    return t.b.cast(
        _picked(t, log, _targets(t, log, target, weight, ignore_index), reduction), t.dtype
    )


@lowers("nll_loss_forward", "nll_loss2d_forward")
def nll_loss_forward(
    t: Lowering,
    self: SSAValue,
    target: SSAValue,
    weight: SSAValue | None,
    reduction: int,
    ignore_index: int,
) -> list[SSAValue]:
    """Return the loss and the total weight of the targets that count."""
    _require_fitting(t, self, weight)
    log = t.b.cast(self, t.accumulating(t.dtype))
    targets = _targets(t, log, target, weight, ignore_index)
    weights = _everything(t, targets.weights)
    loss = _picked(t, log, targets, reduction)
    return [t.b.cast(loss, t.dtype), t.b.cast(weights, t.results[1].dtype)]


@lowers("cross_entropy_loss")
def cross_entropy_loss(
    t: Lowering,
    self: SSAValue,
    target: SSAValue,
    weight: SSAValue | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> SSAValue:
    """Return the loss of softmax; targets are classes, or probabilities of them."""
    x = t.b.cast(self, t.accumulating(t.dtype))
    log = log_softmax_of(t, x, _class_dim(x))
    _require_fitting(t, self, weight)
    if tensor(target).shape == tensor(self).shape:
        loss = _of_probabilities(t, log, target, weight, reduction, label_smoothing)
    else:
        targets = _targets(t, log, target, weight, ignore_index)
        loss = _picked(t, log, targets, reduction)
        if label_smoothing:
            loss = _smoothed(t, loss, log, targets, weight, reduction, label_smoothing)
    return t.b.cast(loss, t.dtype)


def _class_dim(x: SSAValue) -> int:
    return 1 if tensor(x).ndim > 1 else 0


def _require_fitting(t: Lowering, x: SSAValue, weight: SSAValue | None) -> None:
    if weight is not None:
        t.require_one_dtype(x, weight)


def _targets(
    t: Lowering, log: SSAValue, target: SSAValue, weight: SSAValue | None, ignore_index: int
) -> Targets:
    dtype, kind = tensor(log).dtype, tensor(target).dtype
    if kind not in ("i64", "u8"):
        t.decline()  # torch refuses it
    counted = t.b.pointwise("ne", target, t.value(ignore_index, kind))
    # The ignored index may lie outside the classes, and look-ups must not go there.
    index = t.b.pointwise("where", counted, target, t.value(0, kind))
    if weight is None:
        return Targets(index, counted, t.b.cast(counted, dtype), False)
    own = t.b.op(TakeOp, [t.b.cast(weight, dtype), index], dim=0)
    weights = t.b.pointwise("where", counted, own, t.value(0, dtype))
    return Targets(index, counted, weights, True)


def _picked(t: Lowering, log: SSAValue, targets: Targets, reduction: int) -> SSAValue:
    dim, shape = _class_dim(log), tensor(targets.index).shape
    index = t.b.reshape(targets.index, (*shape[:dim], 1, *shape[dim:]))
    picked = t.b.reshape(t.b.op(GatherOp, [log, index], dim=dim), shape)
    each = t.b.pointwise("neg", picked)
    if targets.is_weighted:
        each = t.b.pointwise("mul", each, targets.weights)
    # An ignored target's probability may be 0, and 0 times infinity is not a number.
    each = t.b.pointwise("where", targets.counted, each, t.value(0, tensor(log).dtype))
    return _reduced(t, each, targets.weights, reduction)


def _smoothed(
    t: Lowering,
    loss: SSAValue,
    log: SSAValue,
    targets: Targets,
    weight: SSAValue | None,
    reduction: int,
    smoothing: float,
) -> SSAValue:
    """Mix in the loss of a target that has all classes alike."""
    dtype, dim = tensor(log).dtype, _class_dim(log)
    all_classes = total(t, _weighted(t, log, weight), [dim], False)
    each = t.b.pointwise("neg", all_classes)
    each = t.b.pointwise("where", targets.counted, each, t.value(0, dtype))
    even = _reduced(t, each, targets.weights, reduction)
    part = t.value(smoothing, dtype)
    share = t.b.pointwise("div", part, t.value(tensor(log).shape[dim], dtype))
    rest = t.b.pointwise("mul", loss, t.value(1 - smoothing, dtype))
    return t.b.pointwise("add", rest, t.b.pointwise("mul", even, share))


def _weighted(t: Lowering, log: SSAValue, weight: SSAValue | None) -> SSAValue:
    if weight is None:
        return log
    kind, dim = tensor(log), _class_dim(log)
    shape: Sequence[Dim] = [size if i == dim else 1 for i, size in enumerate(kind.shape)]
    return t.b.pointwise("mul", log, t.b.reshape(t.b.cast(weight, kind.dtype), shape))


def _of_probabilities(
    t: Lowering,
    log: SSAValue,
    target: SSAValue,
    weight: SSAValue | None,
    reduction: int,
    smoothing: float,
) -> SSAValue:
    kind, dim = tensor(log), _class_dim(log)
    chances = t.b.cast(target, kind.dtype)
    if smoothing:
        kept = t.b.pointwise("mul", chances, t.value(1 - smoothing, kind.dtype))
        classes = t.value(kind.shape[dim], kind.dtype)
        even = t.b.pointwise("div", t.value(smoothing, kind.dtype), classes)
        chances = t.b.pointwise("add", kept, even)
    product = t.b.pointwise("mul", _weighted(t, log, weight), chances)
    each = t.b.pointwise("neg", total(t, product, [dim], False))
    if reduction != MEAN:
        return _everything(t, each) if reduction == SUM else each
    rows = count(tensor(each).shape, range(tensor(each).ndim))
    return t.b.pointwise("div", _everything(t, each), t.value(rows, kind.dtype))


def _everything(t: Lowering, value: SSAValue) -> SSAValue:
    return total(t, value, range(tensor(value).ndim), False)


def _reduced(t: Lowering, each: SSAValue, weights: SSAValue, reduction: int) -> SSAValue:
    """Reduce a loss; its mean is over the weights."""
    if reduction == MEAN:
        return t.b.pointwise("div", _everything(t, each), _everything(t, weights))
    return _everything(t, each) if reduction == SUM else each
