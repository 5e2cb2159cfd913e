"""Convolutions and pools as loads along two axes at once: a place and a tap share each dim.

A window's element lies at ``place * stride + tap * dilation - low``; outside the tensor it is not
loaded but is the fill of the load (0, or what a maximum ignores). So a convolution is a contraction
over taps and channels (implicit GEMM: Chetlur et al., cuDNN, arXiv:1410.0759), a pool a reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from xdsl.ir import SSAValue

from irc.dialects.flow import tensor
from irc.dialects.types import is_float
from irc.dialects.windows import ConvolutionOp, PoolOp
from irc.kernels.axes import Axes, Axis, axes_of
from irc.kernels.holds import shape_of
from irc.kernels.trace import GroupError, Node, Term, Trace
from irc.kernels.view import Factor, View

INTEGER_LOWEST = {"i64": -(1 << 63), "i32": -(1 << 31), "i16": -(1 << 15), "i8": -(1 << 7), "u8": 0}


@dataclass(frozen=True)
class Bound:
    """A load touches memory only where ``start + sum(stride * axis)`` lies in 0..size-1."""

    size: int
    start: int
    along: tuple[tuple[Axis, int], ...]


@dataclass(frozen=True)
class Window:
    """The windows of an op: per spatial dim the axes of places and taps, and how they step."""

    places: tuple[Axes, ...]
    taps: tuple[Axes, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[int, ...]
    flipped: bool = False

    def first(self, dim: int) -> int:
        """Return where the first tap of the first place lies."""
        taps = sum(axis.size - 1 for axis in self.taps[dim]) if self.flipped else 0
        return taps * self.dilations[dim] - self.low[dim]

    def step(self, dim: int) -> int:
        """Return how far it is from tap to tap."""
        return -self.dilations[dim] if self.flipped else self.dilations[dim]

    def bounds(
        self, sizes: Sequence[int], margins: Sequence[tuple[int, int]] = ()
    ) -> tuple[Bound, ...]:
        """Return the bounds that some window crosses; margins of zeros may be read."""
        bounds: list[Bound] = []
        for i, size in enumerate(sizes):
            along = [(axis, self.strides[i]) for axis in self.places[i]]
            along += [(axis, self.step(i)) for axis in self.taps[i]]
            last = sum(abs(stride) * (axis.size - 1) for axis, stride in along) - self.low[i]
            before, after = margins[i] if margins else (0, 0)
            if self.low[i] > before or last >= size + after:
                bounds.append(Bound(size, self.first(i), tuple(along)))
        return tuple(bounds)

    def load(self, walk: Trace, value: SSAValue, lead: Sequence[Axes], fill: float) -> Node:
        """Load a value whose last dims the windows slide over, and its others over ``lead``."""
        count, axes, steps = len(self.places), list[Axis](), list[int]()
        root, view = stored_plainly(walk, value, count)
        for own, factors in zip(lead, view.dims[: len(lead)], strict=True):
            axes += reversed(own)
            steps += _strides_over(own, factors, value)
        shift = 0
        for i, factors in enumerate(view.dims[-count:]):
            stride = factors[0][1] if factors else 0
            shift += self.first(i) * stride
            for own, step in ((self.places[i], self.strides[i]), (self.taps[i], self.step(i))):
                axes += own
                steps += [stride * step] * len(own)
        margins = view.margins[-count:] if fill == 0 else ()
        bounds = self.bounds(shape_of(value)[-count:], margins)
        return walk.node(
            "load",
            tensor(value).dtype,
            tuple(axes),
            stored=(root, view),
            source=value,
            attrs={
                "strides": tuple(steps),
                "shift": shift,
                "bounds": bounds,
                "fill": fill if is_float(tensor(value).dtype) else int(fill),
            },
        )


def stored_plainly(walk: Trace, value: SSAValue, count: int) -> tuple[SSAValue, View]:
    """Return where a value lies, with one stride for each of its last dims.

    Raises:
        GroupError: where the group computes it, or its view has such dims of two strides.
    """
    stored = walk.stored(value)
    if stored is None:
        raise GroupError("windows over a value that the kernel computes")
    if any(len(factors) > 1 for factors in stored[1].dims[-count:]):
        raise GroupError("windows over a dim of two strides", [(value, ())])
    return stored


def _strides_over(own: Axes, factors: Sequence[Factor], value: SSAValue) -> list[int]:
    """Return how far the axes of a dim step, innermost first."""
    if len(factors) > 1:
        if [axis.size for axis in own] != [size for size, _ in factors]:
            raise GroupError("windows over a dim of two strides", [(value, ())])
        return [stride for _, stride in reversed(factors)]
    strides, stride = list[int](), factors[0][1] if factors else 0
    for axis in reversed(own):
        strides.append(stride)
        stride *= axis.size
    return strides


def window_of(op: ConvolutionOp | PoolOp, taps: Sequence[int]) -> Window:
    """Return the windows of a convolution or a pool, on new axes."""
    places = shape_of(op.outputs[0])[-len(taps) :]
    return Window(
        tuple(axes_of(n) for n in places),
        tuple(axes_of(n) for n in taps),
        op.strides,
        op.dilations,
        op.low,
        isinstance(op, ConvolutionOp) and bool(op.flipped),
    )


def convolution(walk: Trace, op: ConvolutionOp) -> Term:
    """Contract input windows with weights over taps, then input channels.

    The derivative of a kernel sums the batch first, and all places of an image after another.
    """
    x, w = op.x, op.weight
    groups, (out, each, *taps) = op.groups, shape_of(w)
    window = window_of(op, taps)
    batch, group = axes_of(shape_of(x)[0]), axes_of(groups)
    out_channel, channel = axes_of(out // groups), axes_of(each)
    left = window.load(walk, x, (batch, (*group, *channel)), 0.0)
    if (stored := walk.stored(w)) is None:
        raise GroupError("a convolution with weights that the kernel computes")
    right = walk.load(w, stored)
    wanted = ((*group, *out_channel), channel, *window.taps)
    for axes, own in zip(right.dims, wanted, strict=True):
        walk.unify(axes, own, op.name)
    kept = (*batch, *group, *out_channel, *(a for axes in window.places for a in axes))
    slid = (*(a for axes in window.taps for a in axes),)
    reduced = (*channel, *slid) if op.of_kernel else (*slid, *channel)
    node = _contraction(walk, op, (left, right.node), kept, reduced)
    dims = (batch, (*group, *out_channel), *window.places)
    if op.bias is None:
        return Term(node, dims)
    bias = walk.term(op.bias)
    walk.unify(bias.dims[0], dims[1], op.name)
    total = walk.node(
        "pointwise", node.dtype, kept, operands=(node, bias.node), attrs={"fn": "add"}
    )
    return Term(total, dims)


def _contraction(
    walk: Trace, op: ConvolutionOp, factors: tuple[Node, Node], kept: Axes, reduced: Axes
) -> Node:
    """Return the sum of products: a contraction where each factor has a dim of its own.

    One output channel a group (depthwise) is a sum down the taps for lanes of channels: as a
    contraction it would have one column.
    """
    dtype, groups = tensor(op.outputs[0]).dtype, op.groups
    attrs = {"windows": True, "outer": bool(op.of_kernel)}
    columns = shape_of(op.weight)[0] // groups
    if reduced and columns > 1:
        node = walk.node("contract", dtype, kept, operands=factors, attrs=attrs)
    else:
        axes = (*kept, *reduced)
        node = walk.node("pointwise", dtype, axes, operands=factors, attrs={"fn": "mul"})
        if not reduced:
            return node
        node = walk.node("reduce", dtype, kept, operands=(node,), attrs={"fn": "sum", **attrs})
    walk.reductions.append((node, reduced))
    return node


def pool(walk: Trace, op: PoolOp) -> Term:
    """Reduce windows by their maximum or their average."""
    x, taps = op.x, op.window
    kind = tensor(x)
    window = window_of(op, taps)
    lead = [axes_of(n) for n in shape_of(x)[: -len(taps)]]
    is_max = op.fn == "max"
    lowest = -inf if is_float(kind.dtype) else INTEGER_LOWEST.get(kind.dtype, 0)
    loaded = window.load(walk, x, lead, lowest if is_max else 0.0)
    kept = (*(a for axes in (*lead, *window.places) for a in axes),)
    reduced = tuple(a for axes in window.taps for a in axes)
    node, fn = loaded, "max" if is_max else "sum"
    if reduced:
        node = walk.node("reduce", kind.dtype, kept, operands=(loaded,), attrs={"fn": fn})
        walk.reductions.append((node, reduced))
    if not is_max:
        node = _divided(walk, op, node, window, kept)
    return Term(node, (*lead, *window.places))


def _divided(walk: Trace, op: PoolOp, total: Node, window: Window, kept: Axes) -> Node:
    """Divide a sum by the number of taps that count; padding counts where the op says so."""
    low, high, taps, dtype = op.low, op.high, op.window, total.dtype
    sizes = shape_of(op.x)[-len(taps) :]
    if op.count_padding:
        low, high = (0,) * len(low), tuple(a + b for a, b in zip(low, high, strict=True))
        sizes = tuple(n + h for n, h in zip(sizes, high, strict=True))
    count: Node | None = None
    for i, size in enumerate(sizes):
        counts = _counts(window, i, size, low[i])
        if len(set(counts)) == 1:
            factor = walk.node("constant", dtype, (), attrs={"value": counts[0]})
        else:
            factor = _steps(walk, counts, window.places[i], dtype)
        if count is not None:
            axes = (*count.axes, *factor.axes)
            factor = walk.node(
                "pointwise", dtype, axes, operands=(count, factor), attrs={"fn": "mul"}
            )
        count = factor
    assert count is not None
    return walk.node("pointwise", dtype, kept, operands=(total, count), attrs={"fn": "div"})


def _counts(window: Window, dim: int, size: int, low: int) -> list[int]:
    """Return how many taps of each place lie inside."""
    places = [axis.size for axis in window.places[dim]] or [1]
    taps = [axis.size for axis in window.taps[dim]] or [1]
    step, spread = window.strides[dim], window.dilations[dim]
    starts = [place * step - low for place in range(places[0])]
    return [sum(0 <= s + t * spread < size for t in range(taps[0])) for s in starts]


def _steps(walk: Trace, values: Sequence[int], axes: Axes, dtype: str) -> Node:
    """Return a value that changes from place to place: the runs of equal ones as selections."""
    position = walk.node("index", "i64", axes, attrs={"strides": (1,)})
    starts = [i for i in range(1, len(values)) if values[i] != values[i - 1]]
    result = walk.node("constant", dtype, (), attrs={"value": values[-1]})
    for start in reversed(starts):
        limit = walk.node("constant", "i64", (), attrs={"value": start})
        before = walk.node("pointwise", "i1", axes, operands=(position, limit), attrs={"fn": "lt"})
        literal = walk.node("constant", dtype, (), attrs={"value": values[start - 1]})
        result = walk.node(
            "pointwise", dtype, axes, operands=(before, literal, result), attrs={"fn": "where"}
        )
    return result
