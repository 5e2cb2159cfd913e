"""Converters of ops that move elements: reshape, slice, tile and their relatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import SSAValue

from irc.dialects.flow import CUT, ConcatOp, SliceOp, TransposeOp, tensor
from irc.dialects.indexing import TakeOp
from irc.dialects.literals import IotaOp
from irc.dialects.size import Dim, Size, decided, divide, is_traced, product, terms_of
from irc.dialects.types import Shape, TensorType
from irc.errors import IrcError
from irc.frontends.onnx.elementwise import Converter, scalar
from irc.frontends.onnx.node import (
    NeedsSize,
    Node,
    Unsupported,
    Value,
    check_axis,
    size_names,
    static,
)
from irc.ops.infer import ShapeError, broadcast_shapes, equal_sizes

FAR = 1 << 31
"""A bound of at least this many elements means the end, as exporters write it."""


def iota(node: Node, shape: Sequence[Dim], dim: int) -> SSAValue:
    """Return the index along a dim: i64."""
    return node.b.op(IotaOp, [], result=TensorType.of(shape, "i64"), dim=dim)


def transpose(node: Node, x: SSAValue, perm: Sequence[int]) -> SSAValue:
    """Permute dims; the value itself where the order stays."""
    if list(perm) == list(range(len(perm))):
        return x
    return node.b.op(TransposeOp, [x], perm=tuple(perm))


def cut(node: Node, x: SSAValue, dim: int, start: int, stop: int, step: int = 1) -> SSAValue:
    """Slice one dim between bounds that lie inside it."""
    ndim = tensor(x).ndim
    bounds = {"starts": [0] * ndim, "stops": [-1] * ndim, "steps": [1] * ndim}
    bounds["starts"][dim], bounds["stops"][dim], bounds["steps"][dim] = start, stop, step
    return node.b.op(SliceOp, [x], **{k: tuple(v) for k, v in bounds.items()})


def steps_of(node: Node, x: SSAValue, dim: int, start: Dim, count: Dim, step: int) -> SSAValue:
    """Take ``start, start + step, ..``: slices that run backwards, or whose size has a name."""
    b = node.b
    places = iota(node, [count], 0)
    if step != 1:
        places = b.pointwise("mul", places, b.scalar(step, "i64"))
    if start != 0:
        places = b.pointwise("add", places, node.owner.size(start, "i64"))
    taken = b.op(TakeOp, [x, places], dim=dim)
    if isinstance(taken.owner, TakeOp) and is_traced():
        taken.owner.attributes[CUT] = UnitAttr()
    return taken


def reverse(node: Node, x: SSAValue, dim: int) -> SSAValue:
    """Turn a dim around."""
    size = tensor(x).shape[dim]
    return steps_of(node, x, dim, size - 1, size, -1)


def convert_reshape(node: Node) -> SSAValue:
    """0 keeps a size (unless ``allowzero``), -1 is the rest."""
    shape, target = node.shape(), node.dims(1)
    if not node.attr("allowzero", 0):
        if any(d == 0 and i >= len(shape) for i, d in enumerate(target)):
            raise Unsupported(f"shape {target} keeps a dim that the operand does not have")
        target = [shape[i] if d == 0 else d for i, d in enumerate(target)]
    target = fill_rest(node, target, product(shape))
    if not equal_sizes(product(target), product(shape)):
        shown = ", ".join(map(str, target))
        raise ShapeError(f"{product(shape)} elements do not fit shape [{shown}]")
    return node.b.reshape(node[0], target)


def fill_rest(node: Node, target: list[Dim], total: Dim) -> list[Dim]:
    """Replace the -1 of a target shape."""
    if target.count(-1) == 0:
        return target
    place = target.index(-1)
    others = product(d for i, d in enumerate(target) if i != place)
    rest = 0 if total == 0 else divide(total, others)
    if rest is None:
        if names := size_names([total, others]):
            raise NeedsSize(names)
        raise IrcError(
            "onnx-invalid", f"{total} elements do not fit shape [{', '.join(map(str, target))}]"
        )
    return [*target[:place], rest, *target[place + 1 :]]


def convert_flatten(node: Node) -> SSAValue:
    """The dims before the axis are one, and so are those from it on."""
    axis, shape = int(node.attr("axis", 1)), node.shape()
    axis = axis if axis == len(shape) else check_axis(axis, len(shape))
    return node.b.reshape(node[0], [product(shape[:axis]), product(shape[axis:])])


def convert_squeeze(node: Node) -> SSAValue:
    """Drop dims of size 1."""
    axes, shape = node.axes(1), node.shape()
    if axes is None:
        static([d for d in shape if isinstance(d, Size)])
        axes = [i for i, d in enumerate(shape) if d == 1]
    if wrong := [i for i in axes if isinstance(shape[i], int) and shape[i] != 1]:
        raise IrcError("onnx-invalid", f"dim {wrong[0]} has size {shape[wrong[0]]}, not 1")
    # A trace holds where the sizes are 1 that are so in its example.
    if names := size_names([shape[i] for i in axes if not decided("==", shape[i] - 1)]):
        raise NeedsSize(names)
    return node.b.reshape(node[0], [d for i, d in enumerate(shape) if i not in axes])


def convert_unsqueeze(node: Node) -> SSAValue:
    """Insert dims of size 1."""
    count = len(node.attr("axes") or node.ints(1))
    axes = node.axes(1, ndim=node.ndim() + count) or []
    rest = iter(node.shape())
    return node.b.reshape(
        node[0], [1 if i in axes else next(rest) for i in range(node.ndim() + count)]
    )


def convert_transpose(node: Node) -> SSAValue:
    """Permute dims; by default, turn their order around."""
    return transpose(node, node[0], node.attr("perm") or list(range(node.ndim()))[::-1])


def convert_expand(node: Node) -> SSAValue:
    """Broadcast with a shape, which may have fewer dims or sizes of 1."""
    shape = broadcast_shapes([node.shape(), tuple(node.dims(1))])
    node.owner.check_volume(shape)
    return node.b.broadcast(node[0], shape)


def convert_tile(node: Node) -> SSAValue:
    """Insert a dim before each, stretch it, and join."""
    shape, repeats = node.shape(), node.dims(1)
    if all(r == 1 for r in repeats):
        return node[0]
    node.owner.check_volume([d * r for d, r in zip(shape, repeats, strict=True)])
    apart = [d for size in shape for d in (1, size)]
    wide = [d for size, r in zip(shape, repeats, strict=True) for d in (r, size)]
    x = node.b.broadcast(node.b.reshape(node[0], apart), wide)
    return node.b.reshape(x, [d * r for d, r in zip(shape, repeats, strict=True)])


def convert_concat(node: Node) -> SSAValue:
    """Join along a dim."""
    values = node.values()
    return values[0] if len(values) == 1 else node.b.op(ConcatOp, values, dim=node.axis(0))


def convert_split(node: Node) -> list[SSAValue]:
    """Sizes are an attribute, an operand, or equal (the last may be smaller)."""
    dim, count = node.axis(0), len(node.proto.output)
    (size,) = static([node.shape()[dim]])
    parts = node.attr("split") or (node.ints(1) if node.has(1) else None)
    if parts is None:
        each = -(-size // int(node.attr("num_outputs", count)))
        parts = [each] * (count - 1) + [size - each * (count - 1)]
    if sum(parts) != size or min(parts) < 0 or len(parts) != count:
        raise IrcError("onnx-invalid", f"parts {list(parts)} do not add up to size {size}")
    ends = np.cumsum(parts).tolist()
    return [cut(node, node[0], dim, end - part, end) for end, part in zip(ends, parts, strict=True)]


def convert_slice(node: Node) -> SSAValue:
    """Bounds count from the end where negative, and are cut to the dim."""
    if node.version < 10:
        starts, stops = list(node.attr("starts")), list(node.attr("ends"))
        axes = node.axes(99)
        steps = [1] * len(starts)
    else:
        starts, stops = node.dims(1), node.dims(2)
        axes = [check_axis(a, node.ndim()) for a in node.ints(3)] if node.has(3) else None
        steps = node.ints(4) if node.has(4) else [1] * len(starts)
    axes = range(min(len(starts), node.ndim())) if axes is None else axes
    if not len(starts) == len(stops) == len(axes) == len(steps):
        counts = ", ".join(f"{len(each)}" for each in (starts, stops, axes, steps))
        raise IrcError("onnx-invalid", f"{counts} starts, ends, axes and steps of a Slice")
    if 0 in steps:
        raise IrcError("onnx-invalid", "a slice of step 0")
    x = node[0]
    for dim, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        x = slice_dim(node, x, dim, start, stop, step)
    return x


def slice_dim(node: Node, x: SSAValue, dim: int, start: Dim, stop: Dim, step: int) -> SSAValue:
    """Slice one dim with numpy's meaning of the bounds, any of which may hold names."""
    size = tensor(x).shape[dim]
    if isinstance(size, int) and isinstance(start, int) and isinstance(stop, int):
        if step < 0 and start < -size:
            start = -size  # as in _from_behind
        # Bounds past the front mean the front; slice() takes them as they are.
        first, last, step = slice(start, None if step < 0 and stop < -size else stop, step).indices(
            size
        )
        count = len(range(first, last, step))
        if step < 0:
            return steps_of(node, x, dim, first, count, step)
        if (first, last, step) == (0, size, 1):
            return x
        return cut(node, x, dim, min(first, size), max(last, min(first, size)), step)
    if step < 0:
        first, last = _from_behind(start, size, 0), _from_behind(stop, size, -1)
        return steps_of(node, x, dim, first, steps_between(last, first, -step), step)
    first, last = inside(start, size), inside(stop, size)
    if (first, last, step) == (0, size, 1):
        return x
    if step == 1 and isinstance(first, int) and last == size:
        return cut(node, x, dim, first, -1)
    return steps_of(node, x, dim, first, steps_between(first, last, step), step)


def steps_between(first: Dim, last: Dim, step: int) -> Dim:
    """Return how many steps of a slice lie before ``last``; none where it is not after ``first``.

    Raises:
        NeedsSize: where names do not allow to tell.
    """
    length = last - first
    if decided("<", length):
        return 0
    if step == 1:
        return length
    if isinstance(length, int):
        return -(-length // step)
    if not is_traced():
        raise NeedsSize(size_names([length]))
    return (length + (step - 1)) // step


def _from_behind(bound: Dim, size: Dim, low: int) -> Dim:
    """Cut a bound of a slice that runs backwards to ``low..size - 1``, as `inside` does.

    A slice that begins before the front begins there, as the specification of Slice says; numpy's
    would be empty.
    """
    if isinstance(bound, int) and abs(bound) >= FAR:
        return size - 1 if bound > 0 else low
    return _between(_from_front(bound, size), low, size - 1)


def inside(bound: Dim, size: Dim) -> Dim:
    """Cut a bound to ``0..size``, as far as names allow to tell."""
    if isinstance(bound, int) and abs(bound) >= FAR:
        return size if bound > 0 else 0
    return _between(_from_front(bound, size), 0, size)


def _from_front(bound: Dim, size: Dim) -> Dim:
    """Return a bound that counts from the end, as negative ones do, counted from the front."""
    negative = decided("<", bound)
    # What is a sum of negative terms is negative, or 0, which is the front: a number tells.
    if negative is None and all(count < 0 for _, count in terms_of(bound)):
        raise NeedsSize(size_names([bound]))
    return bound + size if negative else bound


def _between(bound: Dim, low: int, high: Dim) -> Dim:
    """Cut a bound to what lies between a number and a size."""
    if decided("<", bound - low):
        return low
    difference = high - bound
    if (beyond := decided("<", difference)) is not None:
        return high if beyond else bound
    if isinstance(bound, int) and bound not in (0, 1):
        # `[:2]` of a dim S is 2 long only if S is.
        raise NeedsSize(size_names([high]))
    # Polynomials with no negative term are not negative; `5 - S` is for the user to keep.
    negative = [c for _, c in terms_of(difference) if c < 0]
    return high if negative and len(negative) == len(terms_of(difference)) else bound


def convert_depth_to_space(node: Node) -> SSAValue:
    """Blocks of channels become blocks of pixels; DCR and CRD say which index is outermost."""
    (n, c, h, w), k = node.shape(), int(node.attr("blocksize"))
    (deep,) = static([c])
    if node.attr("mode", "DCR") == "DCR":
        parts, perm = [n, k, k, deep // (k * k), h, w], [0, 3, 4, 1, 5, 2]
    else:
        parts, perm = [n, deep // (k * k), k, k, h, w], [0, 1, 4, 2, 5, 3]
    x = transpose(node, node.b.reshape(node[0], parts), perm)
    return node.b.reshape(x, [n, deep // (k * k), h * k, w * k])


def convert_space_to_depth(node: Node) -> SSAValue:
    """Blocks of pixels become channels."""
    (n, c, h, w), k = node.shape(), int(node.attr("blocksize"))
    high, wide = divide(h, k), divide(w, k)
    if high is None or wide is None:
        raise (
            NeedsSize(size_names([h, w]))
            if size_names([h, w])
            else Unsupported(f"blocks of {k} in [{h}, {w}]")
        )
    perm = [0, 3, 5, 1, 2, 4] if node.attr("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
    x = transpose(node, node.b.reshape(node[0], [n, c, high, k, wide, k]), perm)
    return node.b.reshape(x, [n, c * k * k, high, wide])


def convert_shape(node: Node) -> Value:
    """The sizes, which fold further even while they are names."""
    shape = node.shape()
    sizes = shape[slice(node.attr("start"), node.attr("end"))]
    return sizes_value(sizes)


def sizes_value(dims: Shape) -> Value:
    """Wrap sizes as a known i64 vector."""
    array = np.empty(len(dims), object)
    array[:] = list(dims)
    if not size_names(dims):
        array = array.astype(np.int64)
    return Value.of_array(array, "i64")


def convert_size(node: Node) -> Value:
    """How many elements there are."""
    count = sizes_value((product(node.shape()),))
    assert count.known is not None
    return Value.of_array(count.known.reshape(()), "i64")


def convert_trilu(node: Node) -> SSAValue:
    """Keep the upper or lower triangle."""
    b, x, shape = node.b, node[0], node.shape()
    k = int(node.number(1, 0)) if node.has(1) else 0
    rows, columns = iota(node, [shape[-2], 1], 0), iota(node, [1, shape[-1]], 1)
    if k:
        rows = b.pointwise("add", rows, b.scalar(k, "i64"))
    keep = b.pointwise("ge" if node.attr("upper", 1) else "le", columns, rows)
    return b.pointwise("where", keep, x, scalar(node, 0, x))


CONVERTERS: Mapping[str, Converter] = {
    "Concat": convert_concat,
    "DepthToSpace": convert_depth_to_space,
    "Expand": convert_expand,
    "Flatten": convert_flatten,
    "Reshape": convert_reshape,
    "Shape": convert_shape,
    "Size": convert_size,
    "Slice": convert_slice,
    "SpaceToDepth": convert_space_to_depth,
    "Split": convert_split,
    "Squeeze": convert_squeeze,
    "Tile": convert_tile,
    "Transpose": convert_transpose,
    "Trilu": convert_trilu,
    "Unsqueeze": convert_unsqueeze,
}
