"""Converters of gathers, scatters, sorting, and tensors made of indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

import numpy as np
from xdsl.ir import SSAValue

from irc.dialects.indexing import GatherOp, ScatterOp, TakeOp
from irc.dialects.searches import TopKOp
from irc.dialects.size import Dim, decided, divide, is_traced, product
from irc.errors import IrcError
from irc.frontends.onnx.elementwise import Converter
from irc.frontends.onnx.external import NUMPY, dtype_of
from irc.frontends.onnx.fold import MAX_INTEGERS
from irc.frontends.onnx.node import Node, Unsupported, Value, check_axis, static
from irc.frontends.onnx.shapes import cut, iota
from irc.ops.infer import ShapeError

SCATTERS: Mapping[str, str] = {
    "none": "set", "add": "sum", "mul": "prod", "max": "max", "min": "min",
}  # fmt: skip


def from_front(node: Node, operand: int, size: Dim) -> SSAValue:
    """Return indices as i64 that count from 0; negative ones count from the end in ONNX."""
    value = node.operand(operand)
    if value.known is not None and value.known.dtype != object and isinstance(size, int):
        array = value.known.astype(np.int64)
        if array.size and (array.min() < -size or array.max() >= size):
            raise IrcError("onnx-invalid", f"an index of {node.kind} is outside of size {size}")
        return node.owner.constant(np.where(array < 0, array + size, array))
    b, index = node.b, node.b.cast(node[operand], "i64")
    behind = b.pointwise("add", index, node.owner.size(size, "i64"))
    return b.pointwise("where", b.pointwise("lt", index, b.scalar(0, "i64")), behind, index)


def convert_gather(node: Node) -> SSAValue:
    """A single known index is a slice; else it is a table look-up."""
    dim, shape, value = node.axis(0), node.shape(), node.operand(1)
    size = shape[dim]
    if value.known is not None and value.known.ndim == 0 and value.known.dtype != object:
        place = int(value.known)
        if isinstance(size, int) and not -size <= place < size:
            raise IrcError("onnx-invalid", f"index {place} is outside of size {size}")
        if isinstance(size, int):
            place %= size
            one = cut(node, node[0], dim, place, place + 1)
            return node.b.reshape(one, [*shape[:dim], *shape[dim + 1 :]])
    return node.b.op(TakeOp, [node[0], from_front(node, 1, size)], dim=dim)


def convert_feature_extractor(node: Node) -> SSAValue:
    """ArrayFeatureExtractor: take columns; a vector is a row."""
    b, shape = node.b, node.shape()
    size, count = shape[-1], product(node.shape(1))
    places = b.reshape(from_front(node, 1, size), [count])
    rows = b.reshape(node[0], [1, size]) if len(shape) == 1 else node[0]
    return b.op(TakeOp, [rows, places], dim=max(len(shape), 2) - 1)


def convert_gather_elements(node: Node) -> SSAValue:
    """An index for each element of the result; in its other dims it is no larger than the table.

    Raises:
        ShapeError: where that depends on sizes of which nothing is known, such as two counts.
    """
    dim = node.axis(0)
    for axis, (size, own) in enumerate(zip(node.shape(), node.shape(1), strict=False)):
        if axis != dim and is_traced() and size != own and decided("<", size - own) is not False:
            raise ShapeError(f"sizes {size} and {own} of a table and of indices into it differ")
    return node.b.op(GatherOp, [node[0], from_front(node, 1, node.shape()[dim])], dim=dim)


def convert_scatter_elements(node: Node) -> SSAValue:
    """An index for each element of the updates; Scatter is its old name."""
    dim = node.axis(0)
    fn = SCATTERS[node.choice("reduction", "none", SCATTERS)]
    index = from_front(node, 1, node.shape()[dim])
    return node.b.op(ScatterOp, [node[0], index, node[2]], dim=dim, fn=fn)


def linear_index(node: Node, dims: Sequence[Dim], batch: int) -> SSAValue:
    """Return the row-major place that each vector of indices (operand 1) stands for, [.., prod]."""
    b, shape = node.b, node.shape(1)
    index = b.cast(node[1], "i64")
    total: SSAValue | None = None
    (count,) = static(shape[-1:])
    for i in range(count):
        part = b.reshape(cut(node, index, len(shape) - 1, i, i + 1), shape[:-1])
        size = dims[batch + i]
        behind = b.pointwise("add", part, node.owner.size(size, "i64"))
        part = b.pointwise("where", b.pointwise("lt", part, b.scalar(0, "i64")), behind, part)
        if total is not None:
            total = b.pointwise("mul", total, node.owner.size(size, "i64"))
        total = part if total is None else b.pointwise("add", total, part)
    if total is None:
        total = b.constant([0], shape[:-1], "i64")
    # Batches follow one another: each starts after the elements of those before.
    stride: Dim = product(dims[batch : batch + count])
    for dim in reversed(range(batch)):
        line = [d if i == dim else 1 for i, d in enumerate(shape[:-1])]
        offset = b.pointwise("mul", iota(node, line, dim), node.owner.size(stride, "i64"))
        total = b.pointwise("add", total, offset)
        stride = stride * dims[dim]
    return total


def convert_gather_nd(node: Node) -> SSAValue:
    """Flatten the indexed dims, and take."""
    batch, dims, places = int(node.attr("batch_dims", 0)), node.shape(), node.shape(1)
    (count,) = static(places[-1:])
    inner = dims[batch + count :]
    index = linear_index(node, dims, batch)
    flat = node.b.reshape(node[0], [product(dims[: batch + count]), *inner])
    return node.b.op(TakeOp, [flat, index], dim=0)


def convert_scatter_nd(node: Node) -> SSAValue:
    """Flatten the indexed dims and the rest, and scatter rows."""
    b, dims, places = node.b, node.shape(), node.shape(1)
    (count,) = static(places[-1:])
    rows, width = product(places[:-1]), product(dims[count:])
    index = b.reshape(linear_index(node, dims, 0), [rows, 1])
    flat = b.reshape(node[0], [product(dims[:count]), width])
    updates = b.reshape(node[2], [rows, width])
    fn = SCATTERS[node.choice("reduction", "none", SCATTERS)]
    scattered = b.op(ScatterOp, [flat, b.broadcast(index, [rows, width]), updates], dim=0, fn=fn)
    return b.reshape(scattered, dims)


def convert_compress(node: Node) -> SSAValue:
    """A constant choice of elements; the result's size must be known."""
    keep = np.flatnonzero(node.numbers(1)).astype(np.int64)
    x, dim = node[0], 0
    if node.attr("axis") is None:
        x = node.b.reshape(x, [product(node.shape())])
    else:
        dim = node.axis(0)
    return node.b.op(TakeOp, [x, node.owner.constant(keep)], dim=dim)


def convert_top_k(node: Node) -> list[SSAValue]:
    """The count is an attribute before opset 10."""
    count = int(node.attr("k")) if node.version < 10 else int(node.number(1))
    dim = node.axis(-1)
    (size,) = static([node.shape()[dim]]) if isinstance(node.shape()[dim], int) else (count,)
    if not 0 <= count <= size:
        raise IrcError("onnx-invalid", f"the {count} largest of {size} elements")
    return node.b.ops(TopKOp, [node[0]], k=count, dim=dim, largest=bool(node.attr("largest", 1)))


def convert_one_hot(node: Node) -> SSAValue:
    """Compare indices with ``0..depth``; ``values`` is (off, on). Indices outside give all off."""
    b, shape = node.b, node.shape()
    depth = int(node.number(1))
    dim = check_axis(int(node.attr("axis", -1)), len(shape) + 1)
    node.owner.check_volume([*shape, depth])
    index = b.cast(node[0], "i64")
    behind = b.pointwise("add", index, b.scalar(depth, "i64"))
    index = b.pointwise("where", b.pointwise("lt", index, b.scalar(0, "i64")), behind, index)
    index = b.reshape(index, [*shape[:dim], 1, *shape[dim:]])
    places = iota(node, [depth if i == dim else 1 for i in range(len(shape) + 1)], dim)
    off, on = (b.reshape(cut(node, node[2], 0, i, i + 1), ()) for i in (0, 1))
    return b.pointwise("where", b.pointwise("eq", index, places), on, off)


def convert_eye(node: Node) -> SSAValue:
    """Ones on a diagonal."""
    rows, columns = node.shape()
    dtype = dtype_of(int(node.attr("dtype"))) if node.attr("dtype") else node.dtype()
    left = node.b.pointwise(
        "add", iota(node, [rows, 1], 0), node.b.scalar(int(node.attr("k", 0)), "i64")
    )
    return node.b.cast(node.b.pointwise("eq", left, iota(node, [1, columns], 1)), dtype)


def convert_range(node: Node) -> SSAValue:
    """``start + i * delta``; the bounds may be named sizes, and must not depend on inputs."""
    start, stop, step = (_whole(node, i) for i in range(3))
    if start is None or stop is None or step is None:
        first, last, delta = (float(node.number(i)) for i in range(3))
        if not (delta and isfinite(first) and isfinite(last)):
            raise IrcError("onnx-invalid", f"a range from {first} to {last} by {delta}")
        count = max(0, int(np.ceil((last - first) / delta)))
        node.owner.check_table(count)
        return node.owner.constant((first + delta * np.arange(count)).astype(NUMPY[node.dtype()]))
    if step == 0:
        raise IrcError("onnx-invalid", "a range of step 0")
    if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int):
        count: Dim = len(range(start, stop, step))
    else:
        quotient = divide(stop - start, step)
        if quotient is None:
            static([start, stop, step])
            raise Unsupported("a range whose size is not known")
        count = 0 if decided("<", quotient) else quotient
    b = node.b
    places = iota(node, [count], 0)
    if step != 1:
        places = b.pointwise("mul", places, node.owner.size(step, "i64"))
    if start != 0:
        places = b.pointwise("add", places, node.owner.size(start, "i64"))
    return b.cast(places, node.dtype())


def _whole(node: Node, operand: int) -> Dim | None:
    """Return a bound of a range as a size; None for a number that is not whole.

    Exporters cast sizes to float32 and count with those.
    """
    array = node.known(operand).reshape(-1)
    if array.dtype != object and node.dtype()[0] != "i":
        return int(array[0]) if array.size and float(array[0]).is_integer() else None
    return node.dims(operand)[0]


def convert_constant(node: Node) -> Value:
    """A literal, of one of the forms that the attribute may have."""
    name = node.proto.output[0]
    if (literal := node.attr("value")) is not None:
        return Value.of_array(node.owner.array(literal), role="parameter", name=name)
    if node.attr("sparse_value") is not None:
        return Value.of_array(_sparse(node), role="parameter", name=name)
    for form, kind in (("float", np.float32), ("int", np.int64)):
        for plural in ("", "s"):
            if (numbers := node.attr(f"value_{form}{plural}")) is not None:
                return Value.of_array(np.array(numbers, kind), role="parameter", name=name)
    raise Unsupported("a constant of text")


def _sparse(node: Node) -> np.ndarray:
    sparse = node.attr("sparse_value")
    values, indices = node.owner.array(sparse.values), node.owner.array(sparse.indices)
    shape = tuple(sparse.dims)
    node.owner.check_volume(shape)
    if np.prod(shape, dtype=object) > 1 << 28:
        raise Unsupported(f"a sparse constant of shape {list(shape)}")
    dense = np.zeros(shape, values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return dense


def convert_constant_of_shape(node: Node) -> Value | SSAValue:
    """One value for all elements; small ones of known shape fold further."""
    shape = node.dims(0)
    if any(isinstance(d, int) and d < 0 for d in shape):
        raise IrcError("onnx-invalid", f"shape {list(map(str, shape))} cannot be")
    node.owner.check_volume(shape)
    literal = node.attr("value")
    value = np.zeros(1, np.float32) if literal is None else node.owner.array(literal)
    dtype = Value.of_array(value).dtype
    count = product(shape)
    if isinstance(count, int) and count <= MAX_INTEGERS:
        return Value.of_array(np.full(static(shape), value.reshape(-1)[0]))
    return node.b.constant(value.reshape(-1)[:1].tolist(), shape, dtype)


def convert_reverse_sequence(node: Node) -> SSAValue:
    """Turn around the first ``lengths[i]`` steps of each sequence."""
    b, shape = node.b, node.shape()
    time, batch = int(node.attr("time_axis", 0)), int(node.attr("batch_axis", 1))
    places = iota(node, [d if i == time else 1 for i, d in enumerate(shape)], time)
    lengths = b.reshape(
        b.cast(node[1], "i64"), [d if i == batch else 1 for i, d in enumerate(shape)]
    )
    last = b.pointwise("sub", lengths, b.scalar(1, "i64"))
    turned = b.pointwise("sub", last, places)
    index = b.pointwise("where", b.pointwise("lt", places, lengths), turned, places)
    return b.op(GatherOp, [node[0], b.broadcast(index, shape)], dim=time)


def convert_tensor_scatter(node: Node) -> SSAValue:
    """Write the update into a cache at each sample's own position (key-value caches)."""
    b, shape, update = node.b, node.shape(), node.shape(1)
    dim = node.axis(-2)
    places = iota(node, [d if i == dim else 1 for i, d in enumerate(update)], dim)
    if node.has(2):
        starts = b.reshape(b.cast(node[2], "i64"), [shape[0], *[1] * (len(shape) - 1)])
        places = b.pointwise("add", places, starts)
    if node.attr("mode", "linear") == "circular":
        places = b.pointwise("remainder", places, node.owner.size(shape[dim], "i64"))
    index = b.broadcast(places, update)
    return b.op(ScatterOp, [node[0], index, node[1]], dim=dim, fn="set")


CONVERTERS: Mapping[str, Converter] = {
    "ai.onnx.ml::ArrayFeatureExtractor": convert_feature_extractor,
    "Compress": convert_compress,
    "Constant": convert_constant,
    "ConstantOfShape": convert_constant_of_shape,
    "EyeLike": convert_eye,
    "Gather": convert_gather,
    "GatherElements": convert_gather_elements,
    "GatherND": convert_gather_nd,
    "OneHot": convert_one_hot,
    "Range": convert_range,
    "ReverseSequence": convert_reverse_sequence,
    "Scatter": convert_scatter_elements,
    "ScatterElements": convert_scatter_elements,
    "ScatterND": convert_scatter_nd,
    "TensorScatter": convert_tensor_scatter,
    "TopK": convert_top_k,
}
