"""Local programs of a linear layer's cross-entropy whose classes are split.

Every rank has all rows and some of the classes (vocabulary-parallel, Megatron-LM,
arXiv:1909.08053, section 3). It computes the log-sum of its own; with the largest log-sum m of the
ranks, that of all classes is ``m + log(sum of exp(log-sum - m))``. The logit of a row's class is
known to one rank, and is a sum with zeros of the others. Gradients need the log-sums of all
classes, and then no rank needs another, but for the sum of what each knows of dh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from irc.dialects.comm import AllReduceOp
from irc.dialects.flow import tensor
from irc.ops.linear_loss import SPLIT_CLASSES, SPLIT_CLASSES_BACK

if TYPE_CHECKING:
    from irc.sharding.local_ops import Local


def _moved(local: Local, weight: int, index: SSAValue) -> SSAValue:
    """Count classes from the first that the rank holds."""
    start = local.start_of(weight, 0, tensor(index).dtype)
    return local.pointwise("sub", index, start)


def _over(local: Local, fn: str, value: SSAValue, axes: Sequence[str]) -> SSAValue:
    for axis in axes:
        value = local.collective(AllReduceOp, [value], tensor(value), axis, fn=fn)
    return value


def _losses(local: Local) -> list[SSAValue]:
    """Join the log-sums of all ranks, and the logits that each has picked."""
    h, w, index, *bias = local.inputs
    kind, axes = tensor(index), local.signature.operands[1].split_axes(0)
    moved = _moved(local, 1, index)
    above = local.pointwise("ge", moved, local.scalar(0, kind.dtype), dtype="i1")
    count = local.scalar(tensor(w).static_shape()[0], kind.dtype)
    mine = local.pointwise("logical_and", above, local.pointwise("lt", moved, count, dtype="i1"))
    safe = local.pointwise("where", mine, moved, local.scalar(0, kind.dtype))
    loss, own = local.same([h, w, safe, *bias], last=False)
    zero = local.scalar(0, tensor(own).dtype)
    picked = local.pointwise("where", mine, local.pointwise("sub", own, loss), zero)
    top = _over(local, "max", own, axes)
    parts = local.pointwise("exp", local.pointwise("sub", own, top))
    log = local.pointwise("log", _over(local, "sum", parts, axes))
    sums = local.pointwise("add", top, log)
    return [local.pointwise("sub", sums, _over(local, "sum", picked, axes)), sums]


def _gradients(local: Local) -> list[SSAValue]:
    """Count classes from the rank's first: those of others are out of range, and count nothing."""
    g, h, w, index, *rest = local.inputs
    return local.same([g, h, w, _moved(local, 2, index), *rest])


LOSS_PROGRAMS: Mapping[str, Callable[[Local], list[SSAValue]]] = {
    SPLIT_CLASSES: _losses,
    SPLIT_CLASSES_BACK: _gradients,
}
