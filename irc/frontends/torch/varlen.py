"""Attention over packed sequences of several lengths: a mask that keeps them apart."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from irc.dialects.flow import SliceOp, TransposeOp, tensor
from irc.dialects.indexing import TakeOp
from irc.dialects.literals import IotaOp
from irc.dialects.types import TensorType
from irc.dialects.whole_attention import AttentionOp
from irc.frontends.torch.lowering import Lowering, lowers, number


@lowers("torch_attn::_varlen_attn")
def varlen_attention(
    t: Lowering,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    cu_seq_q: SSAValue,
    cu_seq_k: SSAValue | None,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: Sequence[int] | None = None,
    enable_gqa: bool = False,
    seqused_k: SSAValue | None = None,
    block_table: SSAValue | None = None,
    num_splits: int | None = None,
) -> list[SSAValue | None]:
    """``torch.nn.attention.varlen``: q [T, H, D], k and v [U, G, D], tokens of all sequences.

    ``cu_seq_q[n]`` is where sequence n begins. A window of (left, right), -1 for none, is counted
    from the diagonal that ends in the last token of both sequences, as in flash attention; tokens
    after the last sequence see nothing. The mask of [T, U] bools is split with the rows.
    """
    if any(t.read[1:]) or seqused_k is not None or block_table is not None:
        t.decline()
    left, right = window_size or (-1, -1)
    right = 0 if is_causal else right
    rows, columns = (tensor(x).shape[0] for x in (query, key))
    of_k = cu_seq_q if cu_seq_k is None else cu_seq_k
    mine, place = _places(t, cu_seq_q, number(rows))
    other, there = _places(t, of_k, number(columns))
    b, up, along = t.b, (rows, 1), (1, columns)
    mask = b.pointwise("eq", b.reshape(mine, up), b.reshape(other, along))
    count = number(tensor(cu_seq_q).shape[0]) - 1
    inside = b.pointwise("lt", mine, b.scalar(count, "i64"))
    mask = b.pointwise("logical_and", mask, b.reshape(inside, up))
    if left >= 0 or right >= 0:
        # How much longer the keys' sequence is, so that both end on the diagonal.
        longer = b.pointwise("sub", _lengths(t, of_k), _lengths(t, cu_seq_q))
        last = b.op(
            TakeOp, [longer, b.pointwise("minimum", mine, b.scalar(count - 1, "i64"))], dim=0
        )
        end = b.pointwise("add", place, last)
        behind = b.pointwise("sub", b.reshape(end, up), b.reshape(there, along))
        if right >= 0:
            seen = b.pointwise("ge", behind, b.scalar(-right, "i64"))
            mask = b.pointwise("logical_and", mask, seen)
        if left >= 0:
            near = b.pointwise("le", behind, b.scalar(left, "i64"))
            mask = b.pointwise("logical_and", mask, near)
    heads_first = [b.op(TransposeOp, [x], perm=(1, 0, 2)) for x in (query, key, value)]
    scale = float(number(tensor(query).shape[2]) ** -0.5 if scale is None else scale)
    y = b.op(AttentionOp, [*heads_first, mask], is_causal=False, scale=scale)
    return [b.op(TransposeOp, [y], perm=(1, 0, 2)), *(None for _ in t.results[1:])]


def _places(t: Lowering, starts: SSAValue, count: int) -> tuple[SSAValue, SSAValue]:
    """Return the sequence that each token is in, and its place there."""
    b, wide = t.b, t.b.cast(starts, "i64")
    (num,) = tensor(starts).shape
    token = b.op(IotaOp, [], result=TensorType.of((count,), "i64"), dim=0)
    ends = b.op(SliceOp, [wide], starts=(1,), stops=(number(num),), steps=(1,))
    passed = b.pointwise("ge", b.reshape(token, (count, 1)), b.reshape(ends, (1, number(num) - 1)))
    mine = b.reduce("sum", b.cast(passed, "i64"), (1,), keep_dims=False)
    return mine, b.pointwise("sub", token, b.op(TakeOp, [wide, mine], dim=0))


def _lengths(t: Lowering, starts: SSAValue) -> SSAValue:
    b, wide = t.b, t.b.cast(starts, "i64")
    num = number(tensor(starts).shape[0])
    first, last = (
        b.op(SliceOp, [wide], starts=(i,), stops=(num - 1 + i,), steps=(1,)) for i in (0, 1)
    )
    return b.pointwise("sub", last, first)
