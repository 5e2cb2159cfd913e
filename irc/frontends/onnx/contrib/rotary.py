"""Rotary position embeddings in plain ops: RotaryEmbedding of ONNX Runtime, and what uses them."""

from __future__ import annotations

from collections.abc import Mapping

from irc.frontends.onnx.contrib.compose import Composer, Composition
from irc.frontends.onnx.node import Value


def rotated(
    x: Composer, value: Value, cos: Value, sin: Value, places: Value, *, interleaved: bool = False
) -> Value:
    """Turn pairs of features by the angles of their positions (Su et al., arXiv:2104.09864).

    Args:
        x: the op.
        value: (batch, heads, steps, size); features past the tables' width stay as they are.
        cos: a table, (positions, pairs).
        sin: alike.
        places: positions, (batch, steps) or (steps).
        interleaved: whether a pair is two neighbours, else it is apart by half of the features.
    """
    pairs, size = cos.shape[-1], value.shape[-1]
    if not isinstance(pairs, int) or not isinstance(size, int):
        raise x.unsupported("a head size that is a name")
    rest: list[Value] = []
    if 2 * pairs < size:
        value, kept = x.ops("Split", value, x.ints(2 * pairs, size - 2 * pairs), outputs=2, axis=-1)
        rest = [kept]
    # (batch, 1, steps, pairs): the same for all heads.
    c, s = (
        x.op("Unsqueeze", x.op("Gather", table, places, axis=0), x.ints(-3)) for table in (cos, sin)
    )
    if interleaved:
        apart = x.op("Reshape", value, x.ints(0, 0, 0, pairs, 2))
        a, b = (x.op("Gather", apart, x.op("Squeeze", x.ints(i)), axis=-1) for i in (0, 1))
    else:
        a, b = x.ops("Split", value, x.ints(pairs, pairs), outputs=2, axis=-1)
    turned = [
        x.op("Sub", x.op("Mul", a, c), x.op("Mul", b, s)),
        x.op("Add", x.op("Mul", a, s), x.op("Mul", b, c)),
    ]
    if interleaved:
        columns = [x.op("Unsqueeze", part, x.ints(-1)) for part in turned]
        joined = x.op("Reshape", x.op("Concat", *columns, axis=-1), x.ints(0, 0, 0, 2 * pairs))
        turned = [joined]
    return x.op("Concat", *turned, *rest, axis=-1) if len(turned) + len(rest) > 1 else turned[0]


def steps_from(x: Composer, value: Value, dim: int, first: Value | None = None) -> Value:
    """Return the positions of a value's steps along a dim, from 0 or from ``first``, a number."""
    count = x.op("Squeeze", x.op("Gather", x.op("Shape", value), x.ints(dim), axis=0))
    zero, one = (x.op("Squeeze", x.ints(n)) for n in (0, 1))
    line = x.op("Range", zero, count, one)
    return line if first is None else x.op("Add", line, first)


def rotary(x: Composer) -> Value:
    """RotaryEmbedding: input, positions (one stands for all that follow), tables."""
    if x.attr("is_packed_batching", 0) or x.attr("scale", 1.0) != 1.0:
        raise x.unsupported("packed batches or a scale")
    cos, sin = x[2], x[3]
    flat = len(x[0].shape) == 3
    count = x.attr("num_heads", 0)
    if flat and not count:
        pairs, width = cos.shape[-1], x[0].shape[-1]
        if not isinstance(pairs, int) or not isinstance(width, int):
            raise x.unsupported("a number of heads that is not stated")
        count = width // (2 * pairs)
    value = x.heads(x[0], count) if flat else x[0]
    places = x[1]
    if len(places.shape) == 1:
        places = steps_from(x, value, 2, places)
    turned = rotated(x, value, cos, sin, places, interleaved=bool(x.attr("interleaved", 0)))
    return x.packed(turned) if flat else turned


COMPOSITIONS: Mapping[str, Composition] = {"RotaryEmbedding": rotary}
