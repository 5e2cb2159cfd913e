"""Reductions, running sums, softmax, and the places of extremes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernel, Kernels
from irc.runtime.onnx_ops.values import HALF, Array, is_float


def _reduce(fn: Callable[..., Any], *, wide: bool = True) -> Kernel:
    def kernel(call: Call) -> Array:
        x, axes = call[0], call.axes(1)
        if not axes:
            if axes is not None and not axes and not call.attr("noop_with_empty_axes", 0):
                axes = None
            elif call.attr("noop_with_empty_axes", 0):
                axes = ()
        operand = x.astype(np.float32) if wide and x.dtype in HALF else x
        reduced = fn(operand, axis=axes, keepdims=bool(call.attr("keepdims", 1)))
        return np.asarray(reduced).astype(x.dtype)

    return kernel


def _mean(x: Array, **where: Any) -> Array:
    if is_float(x.dtype):
        return np.mean(x, **where)
    total, count = np.sum(x, **where), np.sum(np.ones_like(x), **where)
    return np.trunc(total / count)


def _sum_of_sizes(x: Array, **where: Any) -> Array:
    return np.sum(np.abs(x), **where)


def _sum_of_squares(x: Array, **where: Any) -> Array:
    return np.sum(np.square(x), **where)


def _length(x: Array, **where: Any) -> Array:
    return np.sqrt(_sum_of_squares(x, **where))


def _log_sum(x: Array, **where: Any) -> Array:
    return np.log(np.sum(x, **where))


def _log_sum_exp(x: Array, axis: Any, keepdims: bool) -> Array:
    if not is_float(x.dtype):
        x = x.astype(np.float64)
    if x.size == 0:
        return np.log(np.sum(x, axis=axis, keepdims=keepdims))
    top = np.max(x, axis=axis, keepdims=True)
    safe = np.where(np.isfinite(top), top, 0)
    log_sums = np.log(np.sum(np.exp(x - safe), axis=axis, keepdims=True)) + safe
    return log_sums if keepdims else np.squeeze(log_sums, axis)


def _extreme(fn: Callable[..., Any], *, lowest: bool) -> Callable[..., Array]:
    def found(x: Array, **where: Any) -> Array:
        if x.dtype == np.bool_:
            return fn(x.astype(np.uint8), initial=0 if lowest else 1, **where)
        if is_float(x.dtype):
            empty: Any = -np.inf if lowest else np.inf
        else:
            empty = np.iinfo(x.dtype).min if lowest else np.iinfo(x.dtype).max
        return fn(x, initial=empty, **where)

    return found


def _arg(fn: Callable[..., Any]) -> Kernel:
    def kernel(call: Call) -> Array:
        x, axis = call[0], call.attr("axis", 0)
        if call.attr("select_last_index", 0):
            flipped = fn(np.flip(x, axis), axis=axis, keepdims=True)
            indices = x.shape[axis] - 1 - flipped
        else:
            indices = fn(x, axis=axis, keepdims=True)
        return (indices if call.attr("keepdims", 1) else np.squeeze(indices, axis)).astype(np.int64)

    return kernel


def _running(fn: Callable[..., Any], empty: int) -> Kernel:
    def kernel(call: Call) -> Array:
        x, axis = call[0], int(call.number(1))
        reverse = call.attr("reverse", 0)
        x = np.flip(x, axis) if reverse else x
        cumulative = fn(x, axis=axis, dtype=x.dtype)
        if call.attr("exclusive", 0):
            first = np.full_like(np.take(x, [0], axis), empty) if x.shape[axis] else x
            cumulative = np.concatenate(
                [first, np.take(cumulative, range(x.shape[axis] - 1), axis)], axis
            )
        return np.ascontiguousarray(np.flip(cumulative, axis) if reverse else cumulative)

    return kernel


def softmax(x: Array, axis: int) -> Array:
    """Softmax along an axis; half types in float32."""
    wide = x.astype(np.float32) if x.dtype in HALF else x
    powers = np.exp(wide - np.max(wide, axis, keepdims=True, initial=-np.inf))
    return (powers / powers.sum(axis, keepdims=True)).astype(x.dtype)


def log_softmax(x: Array, axis: int) -> Array:
    """The logarithm of softmax along an axis; half types in float32."""
    wide = x.astype(np.float32) if x.dtype in HALF else x
    shifted = wide - np.max(wide, axis, keepdims=True, initial=-np.inf)
    return (shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))).astype(x.dtype)


def _hardmax(x: Array, axis: int) -> Array:
    best = np.expand_dims(np.argmax(x, axis), axis)
    one_hot = np.zeros_like(x)
    np.put_along_axis(one_hot, best, np.ones((), x.dtype), axis)
    return one_hot


def _along(fn: Callable[[Array, int], Array]) -> Kernel:
    def kernel(call: Call) -> Array:
        x = call[0]
        if call.version >= 13:
            return fn(x, call.attr("axis", -1))
        # Before opset 13 the dims from the axis on are one.
        axis = call.attr("axis", 1) % max(x.ndim, 1)
        sizes: tuple[int, ...] = x.shape
        flat = x.reshape(int(np.prod(sizes[:axis])), -1)
        return fn(flat, 1).reshape(x.shape)

    return kernel


def _top_k(call: Call) -> tuple[Array, Array]:
    x, axis = call[0], call.attr("axis", -1)
    count = call.attr("k") if call.version < 10 else int(call.number(1))
    lowest = not call.attr("largest", 1)
    # Stable, and the lower index first among equals: descending order is that of the negated rank.
    order = np.argsort(x, axis, kind="stable")
    if not lowest:
        back = np.argsort(np.flip(x, axis), axis, kind="stable")
        order = np.flip(x.shape[axis] - 1 - back, axis)
    chosen = np.take(order, range(count), axis)
    return np.take_along_axis(x, chosen, axis), chosen.astype(np.int64)


KERNELS: Kernels = {
    "ArgMax": _arg(np.argmax),
    "ArgMin": _arg(np.argmin),
    "CumProd": _running(np.cumprod, 1),
    "CumSum": _running(np.cumsum, 0),
    "Hardmax": _along(_hardmax),
    "LogSoftmax": _along(log_softmax),
    "ReduceL1": _reduce(_sum_of_sizes),
    "ReduceL2": _reduce(_length),
    "ReduceLogSum": _reduce(_log_sum),
    "ReduceLogSumExp": _reduce(_log_sum_exp),
    "ReduceMax": _reduce(_extreme(np.max, lowest=True), wide=False),
    "ReduceMean": _reduce(_mean),
    "ReduceMin": _reduce(_extreme(np.min, lowest=False), wide=False),
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "ReduceSumSquare": _reduce(_sum_of_squares),
    "Softmax": _along(softmax),
    "TopK": _top_k,
}
