"""Attention in ONNX's forms: scaled dot products, flexible, linear; rotary embedding."""

from __future__ import annotations

from typing import Any

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.math import matmul
from irc.runtime.onnx_ops.values import ELEMENTS, HALF, Array


def heads(x: Array, count: int) -> Array:
    """Reshape ``(batch, steps, heads * size)`` to ``(batch, heads, steps, size)``."""
    batch, steps, width = x.shape
    return x.reshape(batch, steps, count, width // count).transpose(0, 2, 1, 3)


def packed(x: Array) -> Array:
    """Undo :func:`heads`."""
    batch, count, steps, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, steps, count * size)


def shared(x: Array, count: int) -> Array:
    """Repeat each key or value head for the query heads that share it."""
    return x if x.shape[1] == count else np.repeat(x, count // x.shape[1], 1)


def masked_softmax(scores: Array, bias: Array) -> Array:
    """Softmax over the last dim; a row of which no key is allowed gives zeros."""
    top: Array = np.max(scores, -1, keepdims=True, initial=-np.inf)
    powers = np.exp(scores - np.where(np.isneginf(top), 0, top).astype(scores.dtype))
    total = powers.sum(-1, keepdims=True)
    chances = powers / np.where(total == 0, np.ones((), total.dtype), total)
    best: Array = np.max(bias, -1, keepdims=True, initial=-np.inf)
    closed = np.isneginf(best)
    return np.where(closed, np.zeros((), chances.dtype), chances).astype(scores.dtype)


def bias_of(call: Call, dtype: Any, steps: int, keys: int, past: int, batch: int) -> Array:
    """Return what is added to the scores: 0 where a key may be read, -inf where not.

    Query ``i`` is at position ``i + offset``: behind the keys of the past, or at the end of the
    valid ones of an outside cache.
    """
    mask, valid = call[3], call[6]
    nothing, never = np.zeros((), dtype), np.array(-np.inf, dtype)
    bias = np.zeros((steps, keys), dtype)
    if mask is not None:
        if (more := keys - mask.shape[-1]) > 0:
            fill = False if mask.dtype == np.bool_ else -np.inf
            mask = np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, more)], constant_values=fill)
        bias = bias + (np.where(mask, nothing, never) if mask.dtype == np.bool_ else mask)
    offset = np.full((1, 1, 1, 1), past)
    if valid is not None and call[4] is None:
        offset = valid.reshape(-1, 1, 1, 1) - steps
    ahead = np.arange(keys) - (np.arange(steps)[:, None] + offset)
    allowed = np.ones(ahead.shape, np.bool_)
    if call.attr("is_causal", 0):
        allowed &= ahead <= 0
    left, right = call.attr("left_window_size", -1), call.attr("right_window_size", -1)
    allowed &= (-ahead <= left) if left >= 0 else True
    allowed &= (ahead <= right) if right >= 0 else True
    if valid is not None:
        allowed = allowed & (np.arange(keys) < valid.reshape(-1, 1, 1, 1))
    return (bias + np.where(allowed, nothing, never)).astype(dtype)


def _attention(call: Call) -> tuple[Array, ...]:
    q, k, v = call[0], call[1], call[2]
    three, dtype = q.ndim == 3, q.dtype
    if three:
        q = heads(q, call.attr("q_num_heads"))
        k, v = (heads(x, call.attr("kv_num_heads")) for x in (k, v))
    past = 0 if call[4] is None else call[4].shape[2]
    if call[4] is not None:
        k, v = np.concatenate([call[4], k], 2), np.concatenate([call[5], v], 2)
    present = (k, v)
    k, v = shared(k, q.shape[1]), shared(v, q.shape[1])
    scale = call.attr("scale")
    root = np.sqrt(1 / np.sqrt(q.shape[-1]) if scale is None else scale).astype(dtype)
    scores = matmul(q * root, np.swapaxes(k * root, -1, -2))
    if cap := call.attr("softcap", 0.0):
        cap = np.asarray(cap, dtype)
        scores = (np.tanh(scores / cap) * cap).astype(dtype)
    capped = scores
    bias = bias_of(call, dtype, q.shape[2], k.shape[2], past, q.shape[0])
    scores = scores + bias
    precision = call.attr("softmax_precision")
    wide = scores.astype(ELEMENTS[precision]) if precision else scores
    chances = masked_softmax(wide, bias)
    stages: Any = (capped, capped, scores, chances)
    seen = stages[call.attr("qk_matmul_output_mode", 0)].astype(dtype)
    output = matmul(chances.astype(dtype), v)
    return packed(output) if three else output, *present, seen


def _flex_attention(call: Call) -> Array:
    q, k, v = call[0], call[1], call[2]
    scale = call.attr("scale")
    root = np.sqrt(np.float32(1 / np.sqrt(q.shape[-1]) if scale is None else scale)).astype(q.dtype)
    k, v = shared(k, q.shape[1]), shared(v, q.shape[1])
    scores = matmul(q * root, np.swapaxes(k * root, -1, -2))
    precision = call.attr("softmax_precision")
    wide = ELEMENTS[precision] if precision else np.float32 if q.dtype in HALF else q.dtype
    scores = scores.astype(wide)
    if (body := call.attr("score_mod")) is not None:
        (scores,) = body(scores)
    powers = np.exp(scores - np.max(scores, -1, keepdims=True))
    chances = powers / powers.sum(-1, keepdims=True)
    if (body := call.attr("prob_mod")) is not None:
        (chances,) = body(chances)
    return np.matmul(chances, v.astype(wide)).astype(v.dtype)


def _linear_attention(call: Call) -> tuple[Array, Array]:
    """The recurrence of a state of shape (batch, kv heads, key size, value size), step by step."""
    q, k, v, state, decay, beta = (call[i] for i in range(6))
    rule, dtype = call.attr("update_rule", "gated_delta"), q.dtype
    count, shares = call.attr("kv_num_heads"), call.attr("q_num_heads") // call.attr("kv_num_heads")
    q4, k4, v4 = (
        heads(x, n).astype(np.float32) for x, n in ((q, count * shares), (k, count), (v, count))
    )
    kind = dtype if state is None else state.dtype
    size = (q4.shape[0], count, k4.shape[-1], v4.shape[-1])
    state = np.zeros(size, np.float32) if state is None else state.astype(np.float32)
    # A rule reads the gates that it needs; the others may be absent.
    nothing = np.zeros((*q.shape[:2], count), np.float32)
    decay = heads(nothing if decay is None else decay, count).astype(np.float32)
    beta = nothing if beta is None else beta
    beta = heads(beta, beta.shape[-1]).astype(np.float32)
    scale = call.attr("scale", 0.0) or 1 / np.sqrt(q4.shape[-1])
    outputs: list[Array] = []
    for t in range(q4.shape[2]):
        key, value = k4[:, :, t], v4[:, :, t]
        if rule in ("gated", "gated_delta"):
            state = state * np.exp(decay[:, :, t])[..., None]
        if rule in ("delta", "gated_delta"):
            value = (value - np.einsum("bhkv,bhk->bhv", state, key)) * beta[:, :, t]
        state = state + key[..., None] * value[..., None, :]
        full = np.repeat(state, shares, 1)
        outputs.append(np.einsum("bhk,bhkv->bhv", q4[:, :, t], full) * scale)
    output = (
        packed(np.stack(outputs, 2))
        if outputs
        else np.zeros((*q.shape[:2], count * shares * v4.shape[-1]))
    )
    return output.astype(dtype), state.astype(kind)


def rotated(x: Array, cos: Array, sin: Array, *, interleaved: bool) -> Array:
    """Rotate pairs of the first dims of ``(batch, steps, heads, size)`` by angles of each step."""
    width = cos.shape[-1] * 2
    turn, rest = x[..., :width], x[..., width:]
    cos, sin = np.expand_dims(cos, 2), np.expand_dims(sin, 2)
    a, b = (turn[..., ::2], turn[..., 1::2]) if interleaved else np.split(turn, 2, -1)
    real, imaginary = cos * a - sin * b, sin * a + cos * b
    if interleaved:
        turn = np.stack([real, imaginary], -1).reshape(turn.shape)
    else:
        turn = np.concatenate([real, imaginary], -1)
    return np.concatenate([turn, rest], -1).astype(x.dtype)


def _rotary(call: Call) -> Array:
    x, cos, sin, places = (call[i] for i in range(4))
    four = x.ndim == 4
    apart = x.transpose(0, 2, 1, 3) if four else x.reshape(*x.shape[:2], call.attr("num_heads"), -1)
    if places is not None:
        cos, sin = cos[places], sin[places]
    width = call.attr("rotary_embedding_dim", 0) or apart.shape[-1]
    cos, sin = cos[..., : width // 2], sin[..., : width // 2]
    output = rotated(apart, cos, sin, interleaved=bool(call.attr("interleaved", 0)))
    return output.transpose(0, 2, 1, 3) if four else output.reshape(x.shape)


KERNELS: Kernels = {
    "Attention": _attention,
    "LinearAttention": _linear_attention,
    "RotaryEmbedding": _rotary,
    "ai.onnx.preview::FlexAttention": _flex_attention,
}
