"""Values out of nothing: constants, ranges, random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.values import ELEMENTS, HALF, Array, strings


def _constant(call: Call) -> Array:
    for name, dtype in (("value_float", np.float32), ("value_int", np.int64)):
        if call.attr(name) is not None:
            return np.array(call.attr(name), dtype)
    for name, dtype in (("value_floats", np.float32), ("value_ints", np.int64)):
        if call.attr(name) is not None:
            return np.array(call.attr(name), dtype)
    if call.attr("value_string") is not None:
        return np.array(call.attr("value_string"), object)
    if call.attr("value_strings") is not None:
        return strings(call.attr("value_strings"))
    return call.attr("value")


def _constant_of_shape(call: Call) -> Array:
    value = call.attr("value")
    value = np.zeros((), np.float32) if value is None else value.reshape(-1)[0]
    return np.full(tuple(call.ints(0)), value)


def _range(call: Call) -> Array:
    start, limit, delta = (call[i].reshape(()) for i in range(3))
    dtype = start.dtype
    if dtype in HALF:
        start, limit, delta = (x.astype(np.float32) for x in (start, limit, delta))
    count = max(0, int(np.ceil((limit - start) / delta)))
    return (start + np.arange(count).astype(start.dtype) * delta).astype(dtype)


def _eye_like(call: Call) -> Array:
    x, element = call[0], call.attr("dtype")
    dtype = x.dtype if element is None else ELEMENTS[element]
    return np.eye(*x.shape, k=call.attr("k", 0)).astype(dtype)


def _generator(call: Call) -> np.random.Generator:
    """Return the stream of a node: its own where it has a seed, else a new one each time."""
    seed = call.attr("seed")
    return np.random.default_rng(None if seed is None else int(np.float32(seed).view(np.uint32)))


def _drawn(call: Call, shape: Sequence[int], like: Any = None) -> Array:
    generator = _generator(call)
    element = call.attr("dtype")
    dtype = ELEMENTS[element] if element else like or np.dtype(np.float32)
    if call.op.startswith("RandomNormal"):
        drawn = generator.normal(call.attr("mean", 0.0), call.attr("scale", 1.0), shape)
    else:
        drawn = generator.uniform(call.attr("low", 0.0), call.attr("high", 1.0), shape)
    return np.asarray(drawn).astype(dtype)


def _bernoulli(call: Call) -> Array:
    element = call.attr("dtype")
    dtype = ELEMENTS[element] if element else call[0].dtype
    shape: tuple[int, ...] = call[0].shape
    return (_generator(call).random(shape) < call[0].astype(np.float64)).astype(dtype)


def _multinomial(call: Call) -> Array:
    logits, count = call[0].astype(np.float64), call.attr("sample_size", 1)
    noise = _generator(call).gumbel(size=(logits.shape[0], count, logits.shape[1]))
    best = np.argmax(logits[:, None, :] + noise, -1)
    return best.astype(ELEMENTS[call.attr("dtype", 6)])


def _dropout(call: Call) -> tuple[Array, Array]:
    x = call[0]
    shape: tuple[int, ...] = x.shape
    ratio: float = call.attr("ratio", 0.5) if call.version < 12 else call.number(1, 0.5)
    training = call.version >= 12 and bool(call.number(2, False))
    if not training or ratio == 0:
        return x, np.ones(shape, np.bool_)
    kept = _generator(call).random(shape) >= ratio
    return np.where(kept, x / np.asarray(1 - ratio, x.dtype), np.zeros((), x.dtype)), kept


KERNELS: Kernels = {
    "Bernoulli": _bernoulli,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Dropout": _dropout,
    "EyeLike": _eye_like,
    "Multinomial": _multinomial,
    "RandomNormal": lambda call: _drawn(call, call.attr("shape")),
    "RandomNormalLike": lambda call: _drawn(call, call[0].shape, call[0].dtype),
    "RandomUniform": lambda call: _drawn(call, call.attr("shape")),
    "RandomUniformLike": lambda call: _drawn(call, call[0].shape, call[0].dtype),
    "Range": _range,
}
