"""Converters of pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.ir import SSAValue

from irc.dialects.flow import tensor
from irc.dialects.size import Dim, Size, is_traced
from irc.dialects.types import TensorType
from irc.dialects.windows import PoolOp
from irc.frontends.onnx.elementwise import Converter, scalar
from irc.frontends.onnx.extern import extern
from irc.frontends.onnx.node import NeedsSize, Node, static
from irc.frontends.onnx.products import window
from irc.ops.infer import window_size


def pool_attrs(node: Node) -> tuple[dict[str, tuple[int, ...]], list[Dim]]:
    """Return the attributes of a window, and the sizes that it leaves."""
    kernel = tuple(int(k) for k in node.attr("kernel_shape"))
    sizes = node.shape()[2:]
    attrs = window(node, kernel, sizes)
    ceil = bool(node.attr("ceil_mode", 0))
    for size, stride in zip(sizes, attrs["strides"], strict=True):
        if isinstance(size, Size) and stride != 1 and not is_traced():
            raise NeedsSize(size.names())
    result = [
        window_size(size, k, s, lo, hi, d, ceil)
        for size, k, s, lo, hi, d in zip(
            sizes, kernel, *(attrs[a] for a in ("strides", "low", "high", "dilations")), strict=True
        )
    ]
    return {"window": kernel, **attrs}, result


def pool(node: Node, x: SSAValue, fn: str, *, count_padding: bool) -> SSAValue:
    """Append a pooling of a value in the shape of operand 0."""
    attrs, sizes = pool_attrs(node)
    result = TensorType.of([*node.shape()[:2], *sizes], tensor(x).dtype)
    return node.b.op(PoolOp, [x], result=result, fn=fn, **attrs, count_padding=count_padding)


def convert_max_pool(node: Node) -> list[SSAValue] | SSAValue:
    """Where the places of the maxima are asked for, the library gives both."""
    if len([name for name in node.proto.output if name]) < 2:
        return pool(node, node[0], "max", count_padding=False)
    attrs, sizes = pool_attrs(node)
    static(node.shape()[2:])
    shape: Sequence[Dim] = [*node.shape()[:2], *sizes]
    order = node.attr("storage_order", 0)
    return extern(
        node, [shape, shape], dtypes=[node.dtype(), "i64"], **attrs, storage_order=order,
        result=list(sizes),
    )  # fmt: skip


def convert_average_pool(node: Node) -> SSAValue:
    """AveragePool."""
    return pool(node, node[0], "avg", count_padding=bool(node.attr("count_include_pad", 0)))


def convert_lp_pool(node: Node) -> SSAValue:
    """The p-norm of each window: the mean of powers, times the size of the window."""
    b, x, p = node.b, node[0], float(node.attr("p", 2))
    powers = b.pointwise("pow", b.pointwise("abs", x), scalar(node, p, x))
    means = pool(node, powers, "avg", count_padding=True)
    count = 1
    for k in node.attr("kernel_shape"):
        count *= int(k)
    return b.pointwise(
        "pow", b.pointwise("mul", means, scalar(node, count, x)), scalar(node, 1 / p, x)
    )


def convert_max_unpool(node: Node) -> SSAValue:
    """Write the maxima back to their places; all else is zero."""
    from irc.dialects.indexing import ScatterOp

    kernel = [int(k) for k in node.attr("kernel_shape")]
    n, shape = len(kernel), static(node.shape())
    strides, pads = node.attr("strides") or [1] * n, node.attr("pads") or [0] * 2 * n
    own = [
        (size - 1) * s - pads[i] - pads[i + n] + k
        for i, (size, s, k) in enumerate(zip(shape[2:], strides, kernel, strict=True))
    ]
    sizes = node.ints(2)[2:] if node.has(2) else own
    # Places count within the whole of a tensor whose spatial sizes are the computed ones.
    images = shape[0] * shape[1]
    count = int(images)
    for size in own:
        count *= size
    b = node.b
    zeros = b.constant([0], [count], node.dtype())
    flat = b.reshape(node[0], [_volume(shape)])
    index = b.reshape(b.cast(node[1], "i64"), [_volume(shape)])
    unpooled = b.op(ScatterOp, [zeros, index, flat], dim=0, fn="set")
    unpooled = b.reshape(unpooled, [shape[0], shape[1], *own])
    if sizes != own:
        from irc.dialects.flow import PadOp

        high = (0, 0, *(size - mine for size, mine in zip(sizes, own, strict=True)))
        unpooled = b.op(PadOp, [unpooled], low=(0,) * (n + 2), high=high, value=0.0)
    return unpooled


def _volume(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


CONVERTERS: Mapping[str, Converter] = {
    "AveragePool": convert_average_pool,
    "LpPool": convert_lp_pool,
    "MaxPool": convert_max_pool,
    "MaxUnpool": convert_max_unpool,
}
