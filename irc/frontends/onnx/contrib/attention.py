"""Attention in the forms of ONNX Runtime: fused projections, masks of several kinds, caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce

from irc.frontends.onnx.contrib.compose import Composer, Composition
from irc.frontends.onnx.contrib.rotary import steps_from
from irc.frontends.onnx.node import Value

Results = Sequence[Value | None]

MASKED = -10000.0
"""What a masked score gets added unless ``mask_filter_value`` says otherwise."""


def scores_to_values(
    x: Composer, q: Value, k: Value, v: Value, bias: Sequence[Value | None]
) -> Value:
    """Attend: operands are (batch, heads, steps, size); ``bias`` is added to the scores."""
    size = x.op("Gather", x.op("Shape", q), x.ints(3), axis=0)
    scale: Value
    if factor := x.attr("scale", 0.0):
        scale = x.number(factor, q)
    else:
        scale = x.op("Reciprocal", x.op("Sqrt", x.op("CastLike", size, q)))
    scores = x.op("Mul", x.op("Einsum", q, k, equation="bnsh,bnth->bnst"), scale)
    terms = [each for each in bias if each is not None]
    if x.attr("unidirectional", 0):
        terms.append(causal(x, q, k))
    if terms:
        # One sum: the scores get one bias, as attention has it.
        scores = x.op("Add", scores, reduce(partial(x.op, "Add"), terms))
    return x.op("Einsum", x.op("Softmax", scores, axis=-1), v, equation="bnst,bnth->bnsh")


def causal(x: Composer, q: Value, k: Value) -> Value:
    """Return what hides later keys: queries are the last of the keys' positions."""
    steps, keys = (
        x.op("Squeeze", x.op("Gather", x.op("Shape", value), x.ints(2), axis=0)) for value in (q, k)
    )
    columns = steps_from(x, k, 2)
    rows = steps_from(x, q, 2, x.op("Sub", keys, steps))
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
        kept, ndim = kept_range(x, mask, like, keys), 2
    else:
        kept = x.op("Cast", mask, to=9)
    if ndim in (2, 3):
        kept = x.op("Unsqueeze", kept, x.ints(*([1, 2] if ndim == 2 else [1])))
    hidden, shown = x.number(x.attr("mask_filter_value", MASKED), like), x.number(0.0, like)
    return x.op("Where", kept, shown, hidden)


def kept_range(x: Composer, mask: Value, like: Value, keys: Value) -> Value:
    """Return which keys (batch, keys) a mask keeps: the first ones, or those between two positions.

    A mask is the ends of all samples, then perhaps the starts of all.
    """
    batch, count = like.shape[0], mask.shape[0]
    columns = steps_from(x, keys, 2)
    if count != batch and (not isinstance(batch, int) or count != 2 * batch):
        raise x.unsupported("a mask of packed sequences")
    ends = x.op("Cast", mask, to=7)
    if count == batch:
        return x.op("Less", columns, x.op("Unsqueeze", ends, x.ints(1)))
    ends, starts = (
        x.op("Unsqueeze", each, x.ints(1))
        for each in x.ops(
            "Split", ends, x.ints(int(str(batch)), int(str(batch))), outputs=2, axis=0
        )
    )
    after = x.op("GreaterOrEqual", columns, starts)
    return x.op("And", after, x.op("Less", columns, ends))


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
    attended = scores_to_values(x, q, k, v, [mask_bias(x, mask, q, k), more])
    return [x.packed(attended), present]


def attention(x: Composer) -> Results:
    """Attention: input, weights, bias, mask, past, bias of the scores."""
    return attend(x, x[0], x[1], x.get(2), 3, 4, x.get(5))


def quantised_attention(x: Composer) -> Results:
    """QAttention: the input and the weights are quantised, everything after is not."""
    value = x.op("DequantizeLinear", x[0], x[3], x.get(6))
    weights = x.op("DequantizeLinear", x[1], x[4], x.get(7), axis=1)
    return attend(x, value, weights, x.get(2), 5, 8)


def apart(x: Composer) -> list[Value]:
    """Return queries, keys and values: three operands, or some of them together.

    (batch, steps, heads, 3, size) holds all, (batch, steps, heads, 2, size) keys and values.
    """
    if x.has(2):
        return [x[0], x[1], x[2]]
    packed = x[1] if x.has(1) else x[0]
    if len(packed.shape) != 5:
        raise x.unsupported("queries, keys and values of these shapes")
    count = 2 if x.has(1) else 3
    flat = [
        x.op(
            "Reshape", x.op("Gather", packed, x.op("Squeeze", x.ints(i)), axis=3), x.ints(0, 0, -1)
        )
        for i in range(count)
    ]
    return [x[0], *flat] if count == 2 else flat


def multi_head(x: Composer) -> Results:
    """MultiHeadAttention: queries, keys and values are projected already."""
    count, parts = x.attr("num_heads"), apart(x)
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
    attended = scores_to_values(x, q, k, v, [mask_bias(x, 4, q, k), x.get(5)])
    return [x.packed(attended), k, v]


COMPOSITIONS: Mapping[str, Composition] = {
    "Attention": attention,
    "MultiHeadAttention": multi_head,
    "QAttention": quantised_attention,
}
