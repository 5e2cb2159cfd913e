"""If, Loop and Scan: bodies that run as often as the values say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.values import Array, Item


def truth(value: Array) -> bool:
    """Return a condition of one element as a bool."""
    return bool(value.reshape(-1)[0])


def _if(call: Call) -> tuple[Item, ...]:
    return tuple(call.attr("then_branch" if truth(call[0]) else "else_branch")())


def _loop(call: Call) -> tuple[Item, ...]:
    body: Callable[..., list[Item]] = call.attr("body")
    trips, going = call.number(0), True if call[1] is None else truth(call[1])
    _, _, *carried = call.inputs
    columns: list[list[Array]] | None = None
    trip = 0
    while going and (trips is None or trip < trips):
        condition, *values = body(np.array(trip, np.int64), np.array(going), *carried)
        carried, rows = values[: len(carried)], values[len(carried) :]
        columns = columns or [[] for _ in rows]
        for column, row in zip(columns, rows, strict=True):
            column.append(row)
        going, trip = truth(condition), trip + 1
    if columns is None:
        return *carried, *_no_rows(call, len(carried))
    return *carried, *(np.stack(column) for column in columns)


def _no_rows(call: Call, states: int) -> list[Array]:
    """Return the collected results of no trip: the types that the program states, without rows."""
    empty: Any = call.attr("empty") or [None] * call.outputs
    empty = empty() if callable(empty) else empty
    return [np.zeros((0,), np.float32) if e is None else e for e in empty[states : call.outputs]]


def _scan(call: Call) -> tuple[Item, ...]:
    if call.version < 9:
        return _scan_of_batches(call)
    return _scan_once(call, list(call.inputs), call.attr("body"))


def _scan_of_batches(call: Call) -> tuple[Item, ...]:
    """Scan before opset 9: a first operand of lengths, and a batch dim in front of everything."""
    lengths, *operands = call.inputs
    count = call.attr("num_scan_inputs")
    batch = operands[0].shape[0]
    runs: list[tuple[Item, ...]] = []
    for b in range(batch):
        sample = [x[b] for x in operands]
        if lengths is not None:
            steps = int(lengths[b])
            sample = [x[:steps] if i >= len(sample) - count else x for i, x in enumerate(sample)]
        runs.append(_scan_once(call, sample, call.attr("body"), "directions"))
    return tuple(np.stack([_padded(run[i], runs, i) for run in runs]) for i in range(len(runs[0])))


def _padded(value: Array, runs: list[tuple[Item, ...]], index: int) -> Array:
    longest = max(run[index].shape[0] if run[index].ndim else 0 for run in runs)
    more = longest - value.shape[0] if value.ndim else 0
    return np.pad(value, [(0, more)] + [(0, 0)] * (value.ndim - 1)) if more else value


def _scan_once(
    call: Call,
    operands: list[Array],
    body: Callable[..., list[Item]],
    directions: str = "scan_input_directions",
) -> tuple[Item, ...]:
    count: int = call.attr("num_scan_inputs")
    states, scanned = operands[:-count], operands[-count:]
    axes = call.attr("scan_input_axes") or [0] * count
    backwards = call.attr(directions) or [0] * count
    steps = scanned[0].shape[axes[0]]
    columns: list[list[Array]] = [[] for _ in range(call.outputs - len(states))]
    for step in range(steps):
        rows = [
            np.take(x, steps - 1 - step if back else step, axis)
            for x, axis, back in zip(scanned, axes, backwards, strict=True)
        ]
        values = body(*states, *rows)
        states = values[: len(states)]
        for column, value in zip(columns, values[len(states) :], strict=True):
            column.append(value)
    if not steps:
        return *states, *_no_rows(call, len(states))
    turned = call.attr("scan_output_directions") or [0] * len(columns)
    places = call.attr("scan_output_axes") or [0] * len(columns)
    joined = [
        np.stack(column[::-1] if turn else column, axis)
        for column, turn, axis in zip(columns, turned, places, strict=True)
    ]
    return *states, *joined


def _sequence_map(call: Call) -> tuple[Any, ...]:
    """SequenceMap: the body on each item; what is not a sequence is the same for all."""
    body: Callable[..., list[Item]] = call.attr("body")
    count = len(call[0])
    columns: list[list[Item]] = [[] for _ in range(call.outputs)]
    for i in range(count):
        arguments: list[Any] = [x[i] if isinstance(x, list) else x for x in call.inputs]
        for column, value in zip(columns, body(*arguments), strict=True):
            column.append(value)
    return tuple(columns)


KERNELS: Kernels = {"If": _if, "Loop": _loop, "Scan": _scan, "SequenceMap": _sequence_map}
