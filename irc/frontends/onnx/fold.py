"""Arithmetic on known integers at import: what exporters compute from shapes.

Arrays hold numbers, or (dtype object) sizes that may still be names: numpy's structural functions
work on both, and polynomials are closed under sum and product. Where a size must be a number
(a quotient that is not exact, a comparison), folding declines and the node is converted as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import floor, prod
from typing import Any, TypeAlias

import numpy as np

from irc.dialects.size import Dim, Relation, Size, decided, divide, is_traced, terms_of
from irc.frontends.onnx.external import DTYPES, NUMPY, Array
from irc.frontends.onnx.node import Node, Value, check_axis

MAX_INTEGERS = 1 << 14
MAX_FLOATS = 64


class Declined(Exception):  # noqa: N818
    """The numbers are not known well enough to fold."""


Fold: TypeAlias = Callable[[Node, list[Array]], "Array | list[Array]"]


def fold(node: Node) -> list[Value] | None:
    """Return the results of a node as known values, or None where it must be computed."""
    rule = FOLD.get(node.kind)
    if rule is None or not node.inputs:
        return None
    arrays: list[Array] = []
    for value in node.inputs:
        if value is None or value.known is None or not small(value.shape, value.dtype):
            return None
        # Weights stay parameters under their names, however small.
        if value.role == "parameter" and value.dtype[0] in "fb" and value.known.size > 1:
            return None
        arrays.append(value.known)
    try:
        folded, dtype = rule(node, arrays), result_dtype(node)
    except (Declined, ArithmeticError, LookupError, MemoryError, TypeError, ValueError):
        # Whatever is wrong with the numbers, the converter says it better.
        return None
    results = [plain(array, dtype) for array in (folded if isinstance(folded, list) else [folded])]
    if not all(small(value.shape, value.dtype) for value in results):
        return None
    return results


def small(shape: tuple[Dim, ...], dtype: str) -> bool:
    """True where numbers of this shape are worth knowing: shapes and scalars, not weights."""
    limit = MAX_FLOATS if dtype[0] in "fbc" else MAX_INTEGERS
    return all(isinstance(dim, int) for dim in shape) and prod(int(str(d)) for d in shape) <= limit


def plain(array: Array, dtype: str) -> Value:
    """Wrap folded numbers; object arrays without names become plain ones."""
    array = np.asarray(array)
    if array.dtype == object and not any(isinstance(x, Size) for x in array.reshape(-1).tolist()):
        array = array.astype(np.float64) if dtype[0] == "f" else array.astype(np.int64)
    if array.dtype != object:
        array = array.astype(NUMPY[dtype], copy=False)
    return Value.of_array(array, dtype)


def result_dtype(node: Node) -> str:
    """Return the dtype of a folded node's results."""
    match node.kind:
        case "Cast":
            return DTYPES[node.attr("to")]
        case "Equal" | "Less" | "Greater" | "LessOrEqual" | "GreaterOrEqual" | "Not" | "And" | "Or":
            return "i1"
        case "Where":
            return node.dtype(1)
        case _:
            return node.dtype()


def _each(on_sizes: Callable[[Any, Any], Any], on_numbers: Callable[[Any, Any], Any]) -> Fold:
    def rule(node: Node, arrays: list[Array]) -> Array:
        total = arrays[0]
        for other in arrays[1:]:
            if total.dtype == object or other.dtype == object:
                left, right = np.broadcast_arrays(total, other)
                pairs = zip(left.reshape(-1).tolist(), right.reshape(-1).tolist(), strict=True)
                combined = np.empty(left.size, object)
                combined[:] = [on_sizes(_integral(a), _integral(b)) for a, b in pairs]
                total = combined.reshape(left.shape)
            else:
                with np.errstate(all="ignore"):
                    total = on_numbers(total, other)
        return total

    return rule


def _integral(number: Any) -> Dim:
    if isinstance(number, Size):
        return number
    if number != floor(number):
        raise Declined
    return int(number)


def _quotient(a: Dim, b: Dim) -> Dim:
    quotient = divide(a, b)
    if quotient is None:
        raise Declined
    return quotient


def _whole_quotient(a: Dim, b: Dim) -> Dim:
    """The quotient of integers, towards zero; one that is not exact only in a trace."""
    quotient = divide(a, b)
    if quotient is None and is_traced() and isinstance(b, int) and not _settled("<", a):
        quotient = a // b
    if quotient is None:
        raise Declined
    return quotient


def _quotients(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return a / b
    if not np.all(b):
        raise Declined
    # ONNX divides integers towards zero.
    return (np.sign(a) * np.sign(b) * (abs(a) // abs(b))).astype(a.dtype)


def _same(a: Dim, b: Dim) -> bool:
    difference = a - b
    if isinstance(difference, int):
        return difference == 0
    # A size is not negative: `S == -1` is how exporters ask for "keep this dim".
    if all(c > 0 for _, c in terms_of(difference)) and isinstance(b, int) and b < 0:
        return False
    return _settled("==", difference)


def _settled(relation: Relation, difference: Dim) -> bool:
    """Say whether a difference compares so with 0: by its numbers, of a program being traced."""
    answer = decided(relation, difference)
    if answer is None:
        raise Declined
    return answer


def _less(a: Dim, b: Dim) -> bool:
    return _settled("<", a - b)


def _extreme(pick: Callable[[int, int], int]) -> Callable[[Dim, Dim], Dim]:
    def of(a: Dim, b: Dim) -> Dim:
        return a if (pick is min) == _settled("<", a - b) else b

    return of


def _div(node: Node, arrays: list[Array]) -> Array:
    on_sizes = _whole_quotient if node.dtype()[0] in "iu" else _quotient
    # Of 0-d arrays, numpy returns scalars.
    return np.asarray(_each(on_sizes, _quotients)(node, arrays))


def _where(node: Node, arrays: list[Array]) -> Array:
    condition, a, b = arrays
    if condition.dtype == object:
        raise Declined
    return np.where(condition, a.astype(object), b.astype(object))


def _cast(node: Node, arrays: list[Array]) -> Array:
    if arrays[0].dtype == object:
        if DTYPES[node.attr("to")] not in ("i64", "i32", "f32", "f64"):
            raise Declined
        return arrays[0]
    with np.errstate(all="ignore"):
        return arrays[0].astype(NUMPY[DTYPES[node.attr("to")]])


def _rounding(fn: Callable[[Array], Array]) -> Fold:
    return lambda node, arrays: arrays[0] if arrays[0].dtype == object else fn(arrays[0])


def _gather(node: Node, arrays: list[Array]) -> Array:
    data, indices = arrays
    axis = node.axis(0)
    if indices.dtype == object or (abs(indices) > data.shape[axis]).any():
        raise Declined
    return np.take(data, indices, axis)


def _slice(node: Node, arrays: list[Array]) -> Array:
    data = arrays[0]
    if node.version < 10:
        starts, stops = node.attr("starts"), node.attr("ends")
        axes, steps = node.attr("axes", range(len(starts))), [1] * len(starts)
    else:
        starts, stops = (array.tolist() for array in arrays[1:3])
        axes = arrays[3].tolist() if node.has(3) else range(len(starts))
        steps = arrays[4].tolist() if node.has(4) else [1] * len(starts)
    if any(isinstance(bound, Size) for bound in (*starts, *stops)):
        raise Declined
    where = [slice(None)] * data.ndim
    for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        floor_of = -data.shape[axis] - 1
        # Backwards to the front: -1 would mean the last element.
        stop = None if step < 0 and stop <= floor_of else stop
        where[check_axis(axis, data.ndim)] = slice(start, stop, step)
    return data[tuple(where)]


def _unsqueeze(node: Node, arrays: list[Array]) -> Array:
    count = len(node.attr("axes") or arrays[1].reshape(-1))
    axes = node.axes(1, ndim=arrays[0].ndim + count)
    return np.expand_dims(arrays[0], tuple(axes or ()))


def _squeeze(node: Node, arrays: list[Array]) -> Array:
    axes = node.axes(1)
    return np.squeeze(arrays[0], None if axes is None else tuple(axes))


def _reshape(node: Node, arrays: list[Array]) -> Array:
    target = arrays[1].tolist()
    return arrays[0].reshape([arrays[0].shape[i] if d == 0 else d for i, d in enumerate(target)])


def _reduce(fn: Fold) -> Fold:
    def rule(node: Node, arrays: list[Array]) -> Array:
        data, axes = arrays[0], node.axes(1)
        if axes is None and not node.attr("noop_with_empty_axes", 0):
            axes = list(range(data.ndim))
        for axis in sorted(axes or [], reverse=True):
            parts = [np.take(data, i, axis) for i in range(data.shape[axis])]
            if not parts:
                raise Declined
            data = fn(node, [np.asarray(part) for part in parts])
            data = np.expand_dims(data, axis) if node.attr("keepdims", 1) else data
        return np.asarray(data)

    return rule


def _range(node: Node, arrays: list[Array]) -> Array:
    start, stop, step = (array.reshape(-1)[0] for array in arrays)
    if any(isinstance(x, Size) for x in (start, stop, step)):
        raise Declined
    if step == 0 or abs((stop - start) / step) > MAX_INTEGERS:
        raise Declined
    return np.arange(start, stop, step, dtype=arrays[0].dtype)


def _tile(node: Node, arrays: list[Array]) -> Array:
    if prod(arrays[1].tolist()) * arrays[0].size > MAX_INTEGERS:
        raise Declined
    return np.tile(arrays[0], arrays[1].tolist())


def _expand(node: Node, arrays: list[Array]) -> Array:
    target = arrays[1].tolist()
    if arrays[1].dtype == object or prod(target) > MAX_INTEGERS:
        raise Declined
    return arrays[0] * np.ones(target, arrays[0].dtype) if arrays[0].dtype != object else arrays[0]


def _split(node: Node, arrays: list[Array]) -> list[Array]:
    axis = node.axis(0)
    parts = node.attr("split") or (arrays[1].tolist() if node.has(1) else None)
    count = len(node.proto.output)
    if parts is None:
        each = -(-arrays[0].shape[axis] // count)
        return np.split(arrays[0], [each * (i + 1) for i in range(count - 1)], axis)
    return np.split(arrays[0], np.cumsum(parts)[:-1].tolist(), axis)


_add = _each(lambda a, b: a + b, np.add)
_mul = _each(lambda a, b: a * b, np.multiply)
_max = _each(_extreme(max), np.maximum)
_min = _each(_extreme(min), np.minimum)

FOLD: Mapping[str, Fold] = {
    "Add": _add,
    "Sub": _each(lambda a, b: a - b, np.subtract),
    "Mul": _mul,
    "Div": _div,
    "Max": _max,
    "Min": _min,
    "Equal": _each(_same, np.equal),
    "Less": _each(_less, np.less),
    "Greater": _each(lambda a, b: _less(b, a), np.greater),
    "LessOrEqual": _each(lambda a, b: not _less(b, a), np.less_equal),
    "GreaterOrEqual": _each(lambda a, b: not _less(a, b), np.greater_equal),
    "And": _each(lambda a, b: bool(a) and bool(b), np.logical_and),
    "Or": _each(lambda a, b: bool(a) or bool(b), np.logical_or),
    "Not": lambda node, arrays: np.logical_not(arrays[0]),
    "Neg": lambda node, arrays: arrays[0] * -1,
    "Abs": lambda node, arrays: abs(arrays[0]),
    "Sqrt": lambda node, arrays: np.sqrt(arrays[0]),
    "Where": _where,
    "Cast": _cast,
    "Identity": lambda node, arrays: arrays[0],
    "Floor": _rounding(np.floor),
    "Ceil": _rounding(np.ceil),
    "Round": _rounding(np.rint),
    "Gather": _gather,
    "Slice": _slice,
    "Concat": lambda node, arrays: np.concatenate(arrays, node.axis(0)),
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Transpose": lambda node, arrays: np.transpose(arrays[0], node.attr("perm")),
    "ReduceProd": _reduce(_mul),
    "ReduceSum": _reduce(_add),
    "ReduceMax": _reduce(_max),
    "ReduceMin": _reduce(_min),
    "Range": _range,
    "Tile": _tile,
    "Expand": _expand,
    "Split": _split,
}
"""Foldable op types. Each agrees with its converter, which the tests check."""
