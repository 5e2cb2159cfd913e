"""Sequences (Python lists) and optionals (a value, or None)."""

from __future__ import annotations

from typing import Any

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.values import Array, Item


def _place(call: Call, index: int) -> int:
    return int(call.number(index))


def _insert(call: Call) -> list[Item]:
    items = list(call[0])
    place = _place(call, 2) if call.has(2) else len(items)
    items.insert(place + len(items) if place < 0 else place, call[1])
    return items


def _erase(call: Call) -> list[Item]:
    items = list(call[0])
    del items[_place(call, 1) if call.has(1) else -1]
    return items


def _concat(call: Call) -> Array:
    items, axis = call[0], call.attr("axis")
    return np.stack(items, axis) if call.attr("new_axis", 0) else np.concatenate(items, axis)


def _split(call: Call) -> list[Item]:
    x, axis = call[0], call.attr("axis", 0)
    if not call.has(1):
        rows = np.split(x, x.shape[axis], axis)
        return rows if call.attr("keepdims", 1) else [np.squeeze(row, axis) for row in rows]
    sizes = call.ints(1)
    if call[1].ndim == 0:
        (each,) = sizes
        sizes = [min(each, x.shape[axis] - at) for at in range(0, x.shape[axis], each)]
    return np.split(x, np.cumsum(sizes)[:-1].tolist(), axis)


def _get(call: Call) -> Any:
    if call[0] is None:
        raise ValueError("OptionalGetElement of an optional that is empty")
    return call[0]


KERNELS: Kernels = {
    "ConcatFromSequence": _concat,
    "Optional": lambda call: call[0],
    "OptionalGetElement": _get,
    "OptionalHasElement": lambda call: np.array(call[0] is not None),
    "SequenceAt": lambda call: call[0][_place(call, 1)],
    "SequenceConstruct": lambda call: list(call.inputs),
    "SequenceEmpty": lambda call: [],
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": lambda call: np.array(len(call[0]), np.int64),
    "SplitToSequence": _split,
}
