"""Attention in the forms of ONNX Runtime: fused projections, masks of several kinds, caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from irc.frontends.onnx.contrib.compose import Composer, Composition
from irc.frontends.onnx.node import Value

Results = Sequence[Value | None]

MASKED = -10000.0
"""What a masked score gets added unless ``mask_filter_value`` says otherwise."""


def scores_to_values(
    x: Composer, q: Value, k: Value, v: Value, bias: Sequence[Value | None], past: int | Value = 0
) -> Value:
    """Attend: operands are (batch, heads, steps, size); ``bias`` is added to the scores."""
    size = x.op("Gather", x.op("Shape", q), x.ints(3), axis=0)
    scale: Value
    if given := x.attr("scale", 0.0):
        scale = x.number(given, q)
    else:
        scale = x.op("Reciprocal", x.op("Sqrt", x.op("CastLike", size, q)))
    scores = x.op("Mul", x.op("Einsum", q, k, equation="bnsh,bnth->bnst"), scale)
    for each in bias:
        if each is not None:
            scores = x.op("Add", scores, each)
    if x.attr("unidirectional", 0):
        scores = x.op("Add", scores, causal(x, q, k))
    return x.op("Einsum", x.op("Softmax", scores, axis=-1), v, equation="bnst,bnth->bnsh")


def causal(x: Composer, q: Value, k: Value) -> Value:
    """Return what hides later keys: queries are the last of the keys' positions."""
    steps, keys = (
        x.op("Squeeze", x.op("Gather", x.op("Shape", value), x.ints(2), axis=0)) for value in (q, k)
    )
    zero, one = (x.op("Squeeze", x.ints(n)) for n in (0, 1))
    columns = x.op("Range", zero, keys, one)
    rows = x.op("Add", x.op("Range", zero, steps, one), x.op("Sub", keys, steps))
    later = x.op("Greater", columns, x.op("Unsqueeze", rows, x.ints(1)))
    hidden, shown = x.number(x.attr("mask_filter_value", MASKED), q), x.number(0.0, q)
    return x.op("Where", later, hidden, shown)


def mask_bias(x: Composer, index: int, like: Value, keys: Value) -> Value | None:
    """Return what a mask adds to the scores: of keys, of key counts, or of every score.

    Args:
        x: the op.
        index: the operand that is the mask.
        like: a value of the type of the scores.
        keys: the key heads; their dim 2 is what is masked.
    """
    if not x.has(index):
        return None
    mask, ndim = x[index], len(x[index].shape)
    if ndim == 1:
        if mask.shape != like.shape[:1]:
            raise x.unsupported("a mask of start and end positions")
        count = x.op("Squeeze", x.op("Gather", x.op("Shape", keys), x.ints(2), axis=0))
        zero, one = (x.op("Squeeze", x.ints(n)) for n in (0, 1))
        line = x.op("Range", zero, count, one)
        length = x.op("Unsqueeze", x.op("Cast", mask, to=7), x.ints(1))
        kept = x.op("Less", line, length)
        ndim = 2
    else:
        kept = x.op("Cast", mask, to=9)
    if ndim in (2, 3):
        kept = x.op("Unsqueeze", kept, x.ints(*([1, 2] if ndim == 2 else [1])))
    hidden, shown = x.number(x.attr("mask_filter_value", MASKED), like), x.number(0.0, like)
    return x.op("Where", kept, shown, hidden)


def projected(x: Composer, value: Value, weights: Value, bias: Value | None) -> list[Value]:
    """Return queries, keys and values of one projection, as heads."""
    joined = x.op("MatMul", value, weights)
    if bias is not None:
        joined = x.op("Add", joined, bias)
    sizes = x.attr("qkv_hidden_sizes")
    if sizes:
        parts = x.ops("Split", joined, x.ints(*sizes), outputs=3, axis=-1)
    else:
        parts = x.ops("Split", joined, outputs=3, axis=-1, num_outputs=3)
    return [x.heads(part, x.attr("num_heads")) for part in parts]


def with_past(x: Composer, index: int, k: Value, v: Value) -> tuple[Value, Value, Value | None]:
    """Put the keys and values of a cache [2, batch, heads, past, size] in front."""
    if not x.has(index):
        present = None
    else:
        old = [x.op("Gather", x[index], x.op("Squeeze", x.ints(i)), axis=0) for i in (0, 1)]
        k, v = (x.op("Concat", a, b, axis=2) for a, b in zip(old, (k, v), strict=True))
        present = None
    if len(x.node.proto.output) > 1:
        rows = [x.op("Unsqueeze", value, x.ints(0)) for value in (k, v)]
        present = x.op("Concat", *rows, axis=0)
    return k, v, present


def attend(x: Composer, value: Value, weights: Value, bias: Value | None, mask: int, past: int,
           more: Value | None = None) -> Results:  # fmt: skip
    """Attention of one input with its own projection."""
    if x.attr("do_rotary", 0) or x.attr("past_present_share_buffer", 0):
        raise x.unsupported("rotary embedding or a shared cache")
    q, k, v = projected(x, value, weights, bias)
    k, v, present = with_past(x, past, k, v)
    found = scores_to_values(x, q, k, v, [mask_bias(x, mask, q, k), more])
    return [x.packed(found), present]


def attention(x: Composer) -> Results:
    """Attention: input, weights, bias, mask, past, bias of the scores."""
    return attend(x, x[0], x[1], x.get(2), 3, 4, x.get(5))


def quantised_attention(x: Composer) -> Results:
    """QAttention: the input and the weights are quantised, everything after is not."""
    value = x.op("DequantizeLinear", x[0], x[3], x.get(6))
    weights = x.op("DequantizeLinear", x[1], x[4], x.get(7), axis=1)
    return attend(x, value, weights, x.get(2), 5, 8)


def multi_head(x: Composer) -> Results:
    """MultiHeadAttention: queries, keys and values are projected already."""
    count = x.attr("num_heads")
    if len(x[0].shape) != 3 or not x.has(1) or not x.has(2):
        raise x.unsupported("queries, keys and values in one tensor")
    parts: list[Value] = [x[0], x[1], x[2]]
    if x.has(3):
        sizes = [part.shape[-1] for part in parts]
        if not all(isinstance(size, int) for size in sizes):
            raise x.unsupported("a bias of named sizes")
        biases = x.ops("Split", x[3], x.ints(*map(int, map(str, sizes))), outputs=3, axis=0)
        parts = [
            x.op("Add", p, b) if len(p.shape) == 3 else p
            for p, b in zip(parts, biases, strict=True)
        ]
    q, k, v = (x.heads(part, count) if len(part.shape) == 3 else part for part in parts)
    if x.has(6):
        k, v = x.op("Concat", x[6], k, axis=2), x.op("Concat", x[7], v, axis=2)
    found = scores_to_values(x, q, k, v, [mask_bias(x, 4, q, k), x.get(5)])
    return [x.packed(found), k, v]


def rotary(x: Composer) -> Value:
    """RotaryEmbedding: the positions come second here, and one may stand for all that follow."""
    if len(x[1].shape) != 2 or x.attr("is_packed_batching", 0):
        raise x.unsupported("one position for a whole batch")
    width = x.attr("rotary_embedding_dim", 0)
    count = x.attr("num_heads", 0) or None
    if len(x[0].shape) == 3 and count is None:
        size = x[2].shape[-1]
        if not isinstance(size, int) or not isinstance(x[0].shape[-1], int):
            raise x.unsupported("a number of heads that is not stated")
        count = x[0].shape[-1] // (2 * size)
    return x.op(
        "RotaryEmbedding", x[0], x[2], x[3], x[1], interleaved=x.attr("interleaved", 0),
        num_heads=count, rotary_embedding_dim=width,
    )  # fmt: skip


COMPOSITIONS: Mapping[str, Composition] = {
    "Attention": attention,
    "MultiHeadAttention": multi_head,
    "QAttention": quantised_attention,
    "RotaryEmbedding": rotary,
}
