"""Converters of reductions, norms and softmax."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.ir import SSAValue

from irc.dialects.flow import ReduceOp, tensor
from irc.dialects.scans import CumulativeOp
from irc.dialects.searches import ArgReduceOp
from irc.dialects.size import product
from irc.dialects.types import TensorType, is_float
from irc.dialects.windows import PoolOp
from irc.frontends.onnx.elementwise import Converter, scalar, widen
from irc.frontends.onnx.external import dtype_of
from irc.frontends.onnx.node import Node, Unsupported, Value, check_axis
from irc.ops.infer import ShapeError


def mean(node: Node, x: SSAValue, dims: Sequence[int], *, keep_dims: bool) -> SSAValue:
    """Sum over dims, divided by how many elements they have (which may be named)."""
    total = node.b.reduce("sum", x, dims, keep_dims=keep_dims)
    kind = tensor(x)
    count = node.owner.size(product(kind.shape[d] for d in dims), kind.dtype)
    return node.b.pointwise("div" if is_float(kind.dtype) else "trunc_div", total, count)


def _plain(fn: str) -> Callable[[Node, SSAValue, Sequence[int], bool], SSAValue]:
    return lambda node, x, dims, keep: node.b.reduce(fn, x, dims, keep_dims=keep)


def _sum_of(before: str) -> Callable[[Node, SSAValue, Sequence[int], bool], SSAValue]:
    def rule(node: Node, x: SSAValue, dims: Sequence[int], keep: bool) -> SSAValue:
        x = node.b.pointwise("mul", x, x) if before == "square" else node.b.pointwise(before, x)
        return node.b.reduce("sum", x, dims, keep_dims=keep)

    return rule


def _l2(node: Node, x: SSAValue, dims: Sequence[int], keep: bool) -> SSAValue:
    dtype = tensor(x).dtype
    x = x if is_float(dtype) else node.b.cast(x, "f64")
    total = node.b.reduce("sum", node.b.pointwise("mul", x, x), dims, keep_dims=keep)
    return node.b.cast(node.b.pointwise("sqrt", total), dtype)


def _log_sum(node: Node, x: SSAValue, dims: Sequence[int], keep: bool) -> SSAValue:
    dtype = tensor(x).dtype
    x = x if is_float(dtype) else node.b.cast(x, "f64")
    total = node.b.reduce("sum", x, dims, keep_dims=keep)
    return node.b.cast(node.b.pointwise("log", total), dtype)


def _log_sum_exp(node: Node, x: SSAValue, dims: Sequence[int], keep: bool) -> SSAValue:
    b, dtype = node.b, tensor(x).dtype
    x = x if is_float(dtype) else b.cast(x, "f64")
    top = b.reduce("max", x, dims, keep_dims=True)
    # An infinite maximum would give infinity minus infinity.
    finite = b.pointwise("where", b.pointwise("is_inf", top), scalar(node, 0, top), top)
    exps = b.reduce("sum", b.pointwise("exp", b.pointwise("sub", x, finite)), dims, keep_dims=True)
    logs = b.pointwise("add", b.pointwise("log", exps), finite)
    if not keep:
        shape = [d for i, d in enumerate(tensor(logs).shape) if i not in dims]
        logs = b.reshape(logs, shape)
    return b.cast(logs, dtype)


REDUCTIONS: Mapping[str, Callable[[Node, SSAValue, Sequence[int], bool], SSAValue]] = {
    "ReduceL1": _sum_of("abs"),
    "ReduceL2": _l2,
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _plain("max"),
    "ReduceMean": lambda node, x, dims, keep: mean(node, x, dims, keep_dims=keep),
    "ReduceMin": _plain("min"),
    "ReduceProd": _plain("prod"),
    "ReduceSum": _plain("sum"),
    "ReduceSumSquare": _sum_of("square"),
}


EXTREMES: Mapping[str, float] = {
    "ReduceLogSumExp": float("-inf"),
    "ReduceMax": float("-inf"),
    "ReduceMin": float("inf"),
}
"""What these give for no elements."""


def convert_reduce(node: Node) -> SSAValue | Value:
    """Axes are an attribute, from opset 13 or 18 an operand; none means all, unless declined."""
    axes = node.axes(1)
    if not axes:
        # A reduction over nothing still squares, or takes the absolute.
        axes = [] if node.attr("noop_with_empty_axes", 0) else list(range(node.ndim()))
    x, keep = node[0], bool(node.attr("keepdims", 1))
    if tensor(x).dtype == "i1":
        fn = {"ReduceMax": "any", "ReduceMin": "all"}.get(node.kind)
        if fn is None:
            raise Unsupported("a reduction of booleans")
        return node.b.reduce(fn, x, axes, keep_dims=keep)
    if 0 in [node.shape()[a] for a in axes] and node.kind in EXTREMES:
        return _empty_extreme(node, axes, keep)
    return REDUCTIONS[node.kind](node, x, axes, keep)


def _empty_extreme(node: Node, axes: Sequence[int], keep: bool) -> SSAValue:
    if not is_float(node.dtype()):
        raise Unsupported("the extreme of no integers")
    shape = [1 if i in axes else d for i, d in enumerate(node.shape()) if keep or i not in axes]
    return node.b.constant([EXTREMES[node.kind]], shape, node.dtype())


def convert_arg(node: Node) -> SSAValue:
    """ArgMax and ArgMin; the last of equals is the first of the reversed dim."""
    from irc.frontends.onnx.shapes import reverse

    dim, keep = node.axis(0), bool(node.attr("keepdims", 1))
    fn = "max" if node.kind == "ArgMax" else "min"
    if node.shape()[dim] == 0:
        raise ShapeError(f"the {fn}imum of no elements has no index")
    last = node.attr("select_last_index", 0)
    x = reverse(node, node[0], dim) if last else node[0]
    indices = node.b.op(ArgReduceOp, [x], fn=fn, dim=dim, keep_dims=keep)
    if not last:
        return indices
    top = node.owner.size(node.shape()[dim] - 1, "i64")
    return node.b.pointwise("sub", top, indices)


def convert_cumulative(node: Node) -> SSAValue:
    """CumSum and CumProd."""
    dim = check_axis(int(node.number(1)), node.ndim())
    fn = "sum" if node.kind == "CumSum" else "prod"
    flags = {name: bool(node.attr(name, 0)) for name in ("exclusive", "reverse")}
    return node.b.op(CumulativeOp, [node[0]], fn=fn, dim=dim, **flags)


def softmax(node: Node, x: SSAValue, dims: Sequence[int], *, log: bool) -> SSAValue:
    """``exp(x - max) / sum``, or its logarithm, in float32 at least."""
    b, dtype = node.b, tensor(x).dtype
    x = widen(node, x)
    shifted = b.pointwise("sub", x, b.reduce("max", x, dims, keep_dims=True))
    exps = b.pointwise("exp", shifted)
    total = b.reduce("sum", exps, dims, keep_dims=True)
    if log:
        return b.cast(b.pointwise("sub", shifted, b.pointwise("log", total)), dtype)
    return b.cast(b.pointwise("div", exps, total), dtype)


def convert_softmax(node: Node) -> SSAValue:
    """Before opset 13 the dims from the axis on are one; the axis was 1 by default."""
    old = node.version < 13
    axis = node.axis(1 if old else -1)
    dims = list(range(axis, node.ndim())) if old else [axis]
    if node.kind == "Hardmax":
        return _hardmax(node, dims)
    if not dims or not node.ndim():
        dims = list(range(node.ndim()))
    return softmax(node, node[0], dims, log=node.kind == "LogSoftmax")


def _hardmax(node: Node, dims: Sequence[int]) -> SSAValue:
    b, x, shape = node.b, node[0], node.shape()
    flat = b.reshape(
        x, [*shape[: dims[0]], product(shape[d] for d in dims), *shape[dims[-1] + 1 :]]
    )
    dim = dims[0]
    best = b.op(ArgReduceOp, [flat], fn="max", dim=dim, keep_dims=True)
    from irc.frontends.onnx.shapes import iota

    places = iota(node, tensor(flat).shape, dim)
    return b.reshape(b.cast(b.pointwise("eq", places, best), node.dtype()), shape)


def moments(
    node: Node, x: SSAValue, dims: Sequence[int], epsilon: float
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """Return the mean, ``1 / sqrt(variance + epsilon)``, and the normalised x."""
    b = node.b
    center = mean(node, x, dims, keep_dims=True)
    apart = b.pointwise("sub", x, center)
    variance = mean(node, b.pointwise("mul", apart, apart), dims, keep_dims=True)
    scale = b.pointwise("rsqrt", b.pointwise("add", variance, scalar(node, epsilon, x)))
    return center, scale, b.pointwise("mul", apart, scale)


def channels(node: Node, vector: SSAValue, ndim: int) -> SSAValue:
    """Reshape ``[C]`` to ``[C, 1, ..]``, so that it broadcasts against ``[N, C, ..]``."""
    if tensor(vector).ndim != 1 or ndim < 2:
        shape = [*map(str, tensor(vector).shape)]
        raise ShapeError(f"{shape} is no vector for the channels of {ndim} dims")
    return node.b.reshape(vector, [tensor(vector).shape[0], *[1] * (ndim - 2)])


def convert_layer_norm(node: Node) -> list[SSAValue]:
    """LayerNormalization over the dims from the axis on, in the stash type (float32)."""
    b, x = node.b, node[0]
    stash = dtype_of(int(node.attr("stash_type", 1)))
    dims = range(node.axis(-1), node.ndim())
    work = x if node.dtype() == "f64" else b.cast(x, stash)
    center, scale, normal = moments(node, work, dims, node.attr("epsilon", 1e-5))
    y = b.pointwise("mul", b.cast(normal, node.dtype()), node[1])
    if node.has(2):
        y = b.pointwise("add", y, node[2])
    return [y, center, scale][: len(node.proto.output)]


def convert_rms_norm(node: Node) -> SSAValue:
    """``x / sqrt(mean(x^2) + epsilon) * weight`` over the dims from the axis on."""
    b, x = node.b, node[0]
    dims = range(node.axis(-1), node.ndim())
    work = x if node.dtype() == "f64" else b.cast(x, dtype_of(int(node.attr("stash_type", 1))))
    square = mean(node, b.pointwise("mul", work, work), dims, keep_dims=True)
    scale = b.pointwise(
        "rsqrt", b.pointwise("add", square, scalar(node, node.attr("epsilon", 1e-5), work))
    )
    normal = b.cast(b.pointwise("mul", work, scale), node.dtype())
    return b.pointwise("mul", normal, node[1])


def convert_instance_norm(node: Node) -> SSAValue:
    """Each channel of each sample has its own statistics."""
    b, dims = node.b, range(2, node.ndim())
    _, _, normal = moments(node, widen(node, node[0]), dims, node.attr("epsilon", 1e-5))
    return scale_channels(node, b.cast(normal, node.dtype()), node[1], node[2])


def scale_channels(node: Node, x: SSAValue, weight: SSAValue, bias: SSAValue) -> SSAValue:
    """``x * weight + bias``, both a number a channel."""
    ndim = tensor(x).ndim
    scaled = node.b.pointwise("mul", x, channels(node, weight, ndim))
    return node.b.pointwise("add", scaled, channels(node, bias, ndim))


def convert_group_norm(node: Node) -> SSAValue:
    """Groups of channels share statistics; before opset 21 the weights are a number a group."""
    b, x, shape = node.b, node[0], node.shape()
    groups = int(node.attr("num_groups"))
    if not isinstance(shape[1], int) or shape[1] % groups:
        raise Unsupported(f"{groups} groups of {shape[1]} channels")
    grouped = b.reshape(widen(node, x), [shape[0], groups, shape[1] // groups, *shape[2:]])
    dims = range(2, node.ndim() + 1)
    _, _, normal = moments(node, grouped, dims, node.attr("epsilon", 1e-5))
    normal = b.cast(normal, node.dtype())
    if node.version < 21:
        return b.reshape(scale_channels(node, normal, node[1], node[2]), shape)
    return scale_channels(node, b.reshape(normal, shape), node[1], node[2])


def convert_mean_variance(node: Node) -> SSAValue:
    """``(x - mean) / (deviation + 1e-9)`` over the axes."""
    b, x = node.b, node[0]
    dims = [check_axis(int(a), node.ndim()) for a in node.attr("axes") or (0, 2, 3)]
    apart = b.pointwise("sub", x, mean(node, x, dims, keep_dims=True))
    variance = mean(node, b.pointwise("mul", apart, apart), dims, keep_dims=True)
    deviation = b.pointwise("add", b.pointwise("sqrt", variance), scalar(node, 1e-9, x))
    return b.pointwise("div", apart, deviation)


def convert_lp_norm(node: Node) -> SSAValue:
    """``x / |x|_p`` along the axis."""
    b, x, dims = node.b, node[0], [node.axis(-1)]
    rule = _sum_of("abs") if node.attr("p", 2) == 1 else _l2
    norm = rule(node, x, dims, True)
    zero = b.pointwise("eq", norm, scalar(node, 0, norm))
    return b.pointwise("div", x, b.pointwise("where", zero, scalar(node, 1, norm), norm))


def convert_lrn(node: Node) -> SSAValue:
    """``x / (bias + alpha / n * sum of squares of n channels around) ^ beta``."""
    b, x, shape = node.b, node[0], node.shape()
    size = int(node.attr("size"))
    if size < 1:
        raise ShapeError(f"a sum over {size} channels")
    square = b.reshape(b.pointwise("mul", x, x), [shape[0], 1, shape[1], product(shape[2:])])
    low, high = (size - 1) // 2, size - 1 - (size - 1) // 2
    if isinstance(shape[1], int):
        # Further away there is no channel, however large the size is.
        low, high = min(low, max(shape[1] - 1, 0)), min(high, max(shape[1] - 1, 0))
    window = low + 1 + high
    around = b.op(
        PoolOp, [square], result=TensorType.of(tensor(square).shape, node.dtype()), fn="avg",
        window=(window, 1), strides=(1, 1), low=(low, 0), high=(high, 0), dilations=(1, 1),
        count_padding=True,
    )  # fmt: skip
    alpha = node.attr("alpha", 1e-4) * (window / size)
    around = b.reshape(b.pointwise("mul", around, scalar(node, alpha, x)), shape)
    base = b.pointwise("add", around, scalar(node, node.attr("bias", 1.0), x))
    return b.pointwise("div", x, b.pointwise("pow", base, scalar(node, node.attr("beta", 0.75), x)))


def spatial(node: Node) -> list[int]:
    """Return the dims after samples and channels."""
    return list(range(2, node.ndim()))


def convert_global_lp_pool(node: Node) -> SSAValue:
    """The p-norm of each channel."""
    b, x, p = node.b, node[0], float(node.attr("p", 2))
    powers = b.pointwise("pow", b.pointwise("abs", x), scalar(node, p, x))
    total = b.op(ReduceOp, [powers], fn="sum", dims=tuple(spatial(node)), keep_dims=True)
    return b.pointwise("pow", total, scalar(node, 1 / p, x))


CONVERTERS: Mapping[str, Converter] = {
    **dict.fromkeys(REDUCTIONS, convert_reduce),
    "ArgMax": convert_arg,
    "ArgMin": convert_arg,
    "CumProd": convert_cumulative,
    "CumSum": convert_cumulative,
    "GlobalAveragePool": lambda node: mean(node, node[0], spatial(node), keep_dims=True),
    "GlobalLpPool": convert_global_lp_pool,
    "GlobalMaxPool": lambda node: node.b.reduce("max", node[0], spatial(node), keep_dims=True),
    "GroupNormalization": convert_group_norm,
    "Hardmax": convert_softmax,
    "InstanceNormalization": convert_instance_norm,
    "LRN": convert_lrn,
    "LayerNormalization": convert_layer_norm,
    "LogSoftmax": convert_softmax,
    "LpNormalization": convert_lp_norm,
    "MeanVarianceNormalization": convert_mean_variance,
    "RMSNormalization": convert_rms_norm,
    "Softmax": convert_softmax,
}
