"""GroupQueryAttention: the attention of decoders that ONNX Runtime's exporters write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from irc.frontends.onnx.contrib.compose import Composer, Composition
from irc.frontends.onnx.contrib.rotary import rotated, steps_from
from irc.frontends.onnx.node import Value

Results = Sequence[Value | None]
SCATTER_VERSION = 24
"""The first opset with TensorScatter."""

REFUSED = {
    12: "a quantised cache", 13: "a quantised cache",
}  # fmt: skip
"""Operands that have no form here."""


@dataclass(frozen=True)
class Cache:
    """Where new keys and values go.

    Attributes:
        earlier: how many positions each sample has before, (batch); None where none has any.
        places: the positions of the new steps, (batch, steps) or (steps).
        length: of the cache afterwards; None where it is the new steps alone.
    """

    earlier: Value | None
    places: Value
    length: int | None


def group_query_attention(x: Composer) -> Results:
    """Query (or all three), key, value, past key and value, lengths less one, whole length, tables.

    Samples are as long as ``seqlens_k + 1``, of which the last ``steps`` are new; the caches of a
    prompt are empty, or a buffer that is longer than what is filled.
    """
    heads, groups = int(x.attr("num_heads")), int(x.attr("kv_num_heads"))
    for index, what in REFUSED.items():
        if x.has(index):
            raise x.unsupported(what)
    counts = (heads, groups, groups)
    q, k, v = (x.heads(p, n) for p, n in zip(_parts(x, heads, groups), counts, strict=True))
    cache = _cache(x, q)
    if x.attr("do_rotary", 0):
        twisted = bool(x.attr("rotary_interleaved", 0))
        places = x[9] if x.has(9) else cache.places
        q, k = (rotated(x, part, x[7], x[8], places, interleaved=twisted) for part in (q, k))
    if cache.length is not None:
        k, v = (_kept(x, x[i], part, cache) for i, part in ((3, k), (4, v)))
    attended = _attend(x, q, _repeated(x, k, heads), _repeated(x, v, heads), cache)
    return [x.packed(attended), k, v]


def _parts(x: Composer, heads: int, groups: int) -> list[Value]:
    """Return queries, keys and values, each (batch, steps, heads * size)."""
    if x.has(1):
        return [x[0], x[1], x[2]]
    width = x[0].shape[-1]
    if not isinstance(width, int):
        raise x.unsupported("a width that is a name")
    size = width // (heads + 2 * groups)
    sizes = x.ints(heads * size, groups * size, groups * size)
    return x.ops("Split", x[0], sizes, outputs=3, axis=-1)


def _cache(x: Composer, q: Value) -> Cache:
    line = steps_from(x, q, 2)
    past = x[3].shape[2] if x.has(3) else 0
    if past == 0:
        return Cache(None, line, None)
    total = int(x.number_of(6))
    steps = q.shape[2]
    if not isinstance(past, int) or not isinstance(steps, int):
        raise x.unsupported("a cache whose length is a name")
    length = max(past, total)
    if total == steps:
        earlier = x.op("Sub", x[5], x[5])
    else:
        earlier = x.op("Sub", x[5], x.op("CastLike", x.ints(steps - 1), x[5]))
    earlier = x.op("Cast", x.op("Reshape", earlier, x.ints(-1)), to=7)
    places = x.op("Add", x.op("Unsqueeze", earlier, x.ints(1)), line)
    return Cache(earlier, places, length)


def _kept(x: Composer, past: Value, new: Value, cache: Cache) -> Value:
    """Return a cache with the new steps at their places."""
    assert cache.length is not None
    room = cache.length - int(str(past.shape[2]))
    if room:
        shape = x.op("Concat", *(
            x.ints(room) if dim == 2 else x.op("Gather", x.op("Shape", past), x.ints(dim), axis=0)
            for dim in range(4)
        ), axis=0)  # fmt: skip
        empty = x.op("Expand", x.number(0.0, past), shape)
        past = x.op("Concat", past, empty, axis=2)
    return x.op("TensorScatter", past, new, cache.earlier, version=SCATTER_VERSION, axis=2)


def _repeated(x: Composer, value: Value, heads: int) -> Value:
    """Give each query head its keys or values: (batch, groups, ...) to (batch, heads, ...)."""
    groups, size = value.shape[1], value.shape[3]
    if groups == heads:
        return value
    assert isinstance(groups, int) and isinstance(size, int)
    apart = x.op("Unsqueeze", value, x.ints(2))
    spread = x.op("Expand", apart, x.ints(1, 1, heads // groups, 1, 1))
    return x.op("Reshape", spread, x.ints(0, heads, -1, size))


def _attend(x: Composer, q: Value, k: Value, v: Value, cache: Cache) -> Value:
    size = q.shape[3]
    assert isinstance(size, int)
    scale = x.attr("scale", 0.0) or size**-0.5
    scores = x.op("Einsum", q, k, equation="bnsh,bnth->bnst")
    scores = x.op("Mul", scores, x.number(scale, q))
    if cap := x.attr("softcap", 0.0):
        capped = x.op("Tanh", x.op("Div", scores, x.number(cap, q)))
        scores = x.op("Mul", capped, x.number(cap, q))
    if x.has(10):
        scores = x.op("Add", scores, x[10])
    scores = x.op("Where", _seen(x, k, cache), scores, x.number(float("-inf"), q))
    weights = _softmax(x, scores, q)
    return x.op("Einsum", weights, v, equation="bnst,bnth->bnsh")


def _seen(x: Composer, k: Value, cache: Cache) -> Value:
    """Return which positions each step sees: those up to its own, in a window where there is one.

    Of shape (steps, positions), or (batch, 1, steps, positions).
    """
    columns = steps_from(x, k, 2)
    rows = x.op("Unsqueeze", cache.places, x.ints(-1))
    if cache.earlier is not None:
        rows = x.op("Unsqueeze", rows, x.ints(1))
    seen = x.op("LessOrEqual", columns, rows)
    window = x.attr("local_window_size", -1)
    if window > 0:
        first = x.op("Sub", rows, x.ints(window))
        seen = x.op("And", seen, x.op("Greater", columns, first))
    return seen


def _softmax(x: Composer, scores: Value, like: Value) -> Value:
    """Softmax over the positions, and over one more that has no value where sinks are asked for."""
    if not x.has(11) and x.attr("smooth_softmax", 0) != 1:
        return x.op("Softmax", scores, axis=-1)
    rows = x.op("ReduceMax", scores, x.ints(-1), keepdims=1)
    nothing = x.op("Mul", rows, x.number(0.0, like))
    if x.has(11):
        nothing = x.op("Add", nothing, x.op("Reshape", x[11], x.ints(1, -1, 1, 1)))
    weights = x.op("Softmax", x.op("Concat", scores, nothing, axis=-1), axis=-1)
    return x.op("Slice", weights, x.ints(0), x.ints(-1), x.ints(-1))


COMPOSITIONS: Mapping[str, Composition] = {"GroupQueryAttention": group_query_attention}
