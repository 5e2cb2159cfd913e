"""Attention taken apart: the softmax over keys as flow ops.

Used where attention cannot stay whole: in its derivative, and where dropout stands inside it. Query
heads that share a key are a dim of their own: scores are [.., G, R, S, T].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import ContractOp, tensor
from irc.dialects.literals import IotaOp
from irc.dialects.size import Size
from irc.dialects.types import Shape, TensorType
from irc.ops.infer import ShapeError


def lead_letters(keys: TensorType) -> str:
    """Return an einsum letter for each dim before those of one head."""
    return "abcfhijklm"[: keys.ndim - 2]


def grouped(b: FlowBuilder, value: SSAValue, keys: TensorType) -> SSAValue:
    """View [.., H, S, D] as [.., G, R, S, D], where R heads read one key."""
    shape = tensor(value).shape
    if len(shape) == 2:
        return b.reshape(value, (1, *shape))
    groups, heads = keys.shape[-3], shape[-3]
    if groups == heads:
        return b.reshape(value, (*shape[:-2], 1, *shape[-2:]))
    if isinstance(groups, Size) or isinstance(heads, Size):
        raise ShapeError(f"{heads} heads read {groups} keys: bind both to numbers first")
    return b.reshape(value, (*shape[:-3], groups, heads // groups, *shape[-2:]))


def chances(
    b: FlowBuilder,
    q: SSAValue,
    k: SSAValue,
    mask: Sequence[SSAValue],
    *,
    is_causal: bool,
    scale: float,
) -> SSAValue:
    """Return the softmax over keys, [.., G, R, S, T], in float32 for half types."""
    keys, dtype = tensor(k), tensor(q).dtype
    wide, lead = "f32" if dtype in ("f16", "bf16") else dtype, lead_letters(keys)
    scores = b.op(ContractOp, [grouped(b, q, keys), k], spec=f"{lead}rsd,{lead}td->{lead}rst")
    scores = b.pointwise("mul", b.cast(scores, wide), b.scalar(scale, wide))
    shape: Shape = (*tensor(q).shape[:-1], keys.shape[-2])
    scores = _masked(b, scores, shape, mask, is_causal)
    return _softmax(b, scores, safe=bool(mask))


def _masked(
    b: FlowBuilder, scores: SSAValue, shape: Shape, mask: Sequence[SSAValue], is_causal: bool
) -> SSAValue:
    split, dtype = tensor(scores).shape, tensor(scores).dtype
    never = b.scalar(-math.inf, dtype)
    for operand in mask:
        spread = _with_groups(b, operand, shape, split)
        if tensor(operand).dtype == "i1":
            scores = b.pointwise("where", spread, scores, never)
        else:
            scores = b.pointwise("add", scores, b.cast(spread, dtype))
    if is_causal:
        rows, columns = (
            b.op(IotaOp, [], result=TensorType.of(line, "i64"), dim=dim)
            for dim, line in ((0, (split[-2], 1)), (1, (1, split[-1])))
        )
        scores = b.pointwise("where", b.pointwise("ge", rows, columns), scores, never)
    return scores


def _with_groups(b: FlowBuilder, mask: SSAValue, shape: Shape, split: Shape) -> SSAValue:
    """View a mask that broadcasts to [.., H, S, T] as one that broadcasts to [.., G, R, S, T]."""
    have = tensor(mask).shape
    if len(shape) == 2:
        return b.reshape(mask, (*(1,) * (3 - len(have)), *have))
    if len(have) < 3:
        return mask
    heads = (1, 1) if have[-3] == 1 else split[-4:-2]
    return b.reshape(mask, (*have[:-3], *heads, *have[-2:]))


def _softmax(b: FlowBuilder, scores: SSAValue, *, safe: bool) -> SSAValue:
    """Return the softmax of the last dim; rows that the mask empties are zeros, as in torch."""
    dtype, last = tensor(scores).dtype, tensor(scores).ndim - 1
    top = b.reduce("max", scores, (last,), keep_dims=True)
    if safe:
        empty = b.pointwise("eq", top, b.scalar(-math.inf, dtype))
        top = b.pointwise("where", empty, b.scalar(0, dtype), top)
    powers = b.pointwise("exp", b.pointwise("sub", scores, top))
    total = b.reduce("sum", powers, (last,), keep_dims=True)
    if safe:
        # A row with anything in it has a sum of 1 at least: its largest is exp(0).
        total = b.pointwise("maximum", total, b.scalar(1, dtype))
    return b.pointwise("div", powers, total)
