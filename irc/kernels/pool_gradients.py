"""Gradients of pools without a scatter: each element gathers from the windows that hold it.

Along one dim element t = s q + p is tap k of the window at place y where ``s y + d k - low = t``:
for each phase p of the stride a few taps, at places that move by one with q (the phases of
:mod:`irc.kernels.transposed`). So

    average   dx[t] = sum over those windows of  g[y] / count[y]
    maximum   dx[t] = sum over those windows of  g[y] where index[y] = t

are sums of shifted views. An index is the place of a maximum in the flattened spatial dims, as
torch has it: the first of equal ones, or the last NaN.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, prod
from typing import Any

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import ExternOp, PadOp, SliceOp, tensor
from irc.dialects.literals import IotaOp
from irc.dialects.types import TensorType, is_float
from irc.dialects.windows import PoolOp
from irc.kernels.holds import shape_of
from irc.kernels.transposed import Phase, cut, interleaved, phase_of
from irc.kernels.view import contiguous_strides

MAXIMUM = ("aten::max_pool2d_with_indices", "aten::max_pool3d_with_indices")
MAXIMUM_BACKWARD = tuple(f"{name}_backward" for name in MAXIMUM)
AVERAGE_BACKWARD = tuple(f"aten::avg_pool{n}d_backward" for n in (1, 2, 3))
POOLS = frozenset({*MAXIMUM, *MAXIMUM_BACKWARD, *AVERAGE_BACKWARD})
MOST_TAPS = 64
"""Taps of a window up to which its sums are written out."""


@dataclass(frozen=True)
class Pool:
    """How the windows of a pool lie along each spatial dim.

    Attributes:
        window, strides, low, dilations: see :class:`irc.dialects.windows.PoolOp`.
        sizes: of the image.
        places: of the result.
    """

    window: tuple[int, ...]
    strides: tuple[int, ...]
    low: tuple[int, ...]
    dilations: tuple[int, ...]
    sizes: tuple[int, ...]
    places: tuple[int, ...]

    @property
    def reach(self) -> tuple[int, ...]:
        """How far the last windows reach beyond the image; less than 0 where they end before."""
        return tuple(
            (y - 1) * s + (k - 1) * d + 1 - lo - n
            for k, s, lo, d, n, y in zip(
                self.window, self.strides, self.low, self.dilations, self.sizes, self.places,
                strict=True,
            )
        )  # fmt: skip


def pool_call(b: FlowBuilder, op: ExternOp) -> list[SSAValue] | None:
    """Append what a library call of a pool computes; None where it stays.

    Declines on windows of many taps, integers and tensors without elements.
    """
    target, (positional, options) = op.target, json.loads(op.arguments)
    if options or not _is_plain(op):
        return None
    is_gradient, ndim = target not in MAXIMUM, int(target.partition("pool")[2][0])
    y, x, *_ = (*(() if is_gradient else op.outputs[:1]), *op.inputs)
    sizes, places = shape_of(x)[-ndim:], shape_of(y)[-ndim:]
    dilated = target not in AVERAGE_BACKWARD
    at = _pool(positional, 1 + is_gradient, sizes, places, dilated=dilated)
    if at is None:
        return None
    one = len(shape_of(x)) == ndim + 1  # image, a batch without its dim
    values = [b.reshape(v, (1, *shape_of(v))) if one else v for v in op.inputs]
    if not is_gradient:
        results = max_places(b, values[0], at)
    elif dilated:
        results = (max_gradient(b, values[0], values[2], at),)
    else:
        counts, divisor = ([*positional[6:8], True, None][i] for i in (0, 1))
        results = (avg_gradient(b, values[0], at, counts=bool(counts), divisor=divisor),)
    return [b.reshape(v, shape_of(o)) for v, o in zip(results, op.outputs, strict=True)]


def _pool(
    positional: Sequence[Any],
    first: int,
    sizes: tuple[int, ...],
    places: tuple[int, ...],
    *,
    dilated: bool,
) -> Pool | None:
    """Read window, stride, padding (and dilation) of a call of torch from position ``first`` on."""
    window, ndim = positional[first], len(sizes)
    rest = [*positional[first + 1 :], *[None] * 4]
    stride, padding, dilation = rest[0] or window, rest[1] or 0, rest[2] if dilated else 1
    numbers = [
        (n,) * ndim if isinstance(n, int) else tuple(n) * ndim if len(n) == 1 else tuple(n)
        for n in (window, stride, padding, dilation or 1)
    ]
    if any(len(n) != ndim for n in numbers) or prod(numbers[0]) > MOST_TAPS:
        return None
    taps, strides, low, dilations = numbers
    return Pool(taps, strides, low, dilations, sizes, places)


def _is_plain(op: ExternOp) -> bool:
    """True for floats that are not empty."""
    values = (*op.inputs, *op.outputs)
    if any(not isinstance(v.type, TensorType) or 0 in shape_of(v) for v in values):
        return False
    x, *_ = op.inputs
    return is_float(tensor(x).dtype)


def pool_derivative(b: FlowBuilder, op: ExternOp) -> list[SSAValue] | None:
    """Append the derivative of ``flow.pool`` (`irc.ops.derivatives_extern`); None for others."""
    name, attrs, count, reached, wanted = json.loads(op.arguments)
    if name != PoolOp.name or (count, reached, wanted) != (1, [0], [0]) or not _is_plain(op):
        return None
    x, g = op.inputs
    ndim = len(attrs["window"])
    if len(shape_of(x)) != ndim + 2 or prod(attrs["window"]) > MOST_TAPS:
        return None
    taps, strides, low, dilations = (
        tuple(attrs[n]) for n in ("window", "strides", "low", "dilations")
    )
    at = Pool(taps, strides, low, dilations, shape_of(x)[2:], shape_of(g)[2:])
    if attrs["fn"] == "max":
        return [max_gradient(b, g, max_places(b, x, at)[1], at)]
    # Windows that end beyond the padding count no more of it than there is.
    counts = attrs["count_padding"]
    return [avg_gradient(b, g, at, counts=counts, high=tuple(attrs["high"]))]


def max_places(b: FlowBuilder, x: SSAValue, at: Pool) -> tuple[SSAValue, SSAValue]:
    """Append the maxima of windows, and their places in the flattened spatial dims (i64)."""
    lead, dtype = shape_of(x)[:2], tensor(x).dtype
    high = tuple(max(n, 0) for n in at.reach)
    wide = x
    if any((*at.low, *high)):
        wide = b.op(PadOp, [x], low=(0, 0, *at.low), high=(0, 0, *high), value=-inf)
    shape, steps = (*lead, *at.places), contiguous_strides(at.sizes)
    start = -sum(lo * n for lo, n in zip(at.low, steps, strict=True))
    moves = tuple(s * n for s, n in zip(at.strides, steps, strict=True))
    base = _linear(b, at.places, moves, start)
    best = b.broadcast(b.scalar(-inf, dtype), shape)
    index = b.broadcast(_first_inside(b, at), shape)
    for taps in product(*map(range, at.window)):
        skip = tuple(k * d for k, d in zip(taps, at.dilations, strict=True))
        value = _slice(b, wide, skip, at.places, at.strides)
        over = b.pointwise("gt", value, best)
        taken = b.pointwise("logical_or", over, b.pointwise("ne", value, value))
        place = sum(n * step for n, step in zip(skip, steps, strict=True))
        here = b.pointwise("add", base, b.scalar(place, "i64"))
        best = b.pointwise("where", taken, value, best)
        index = b.pointwise("where", taken, here, index)
    return best, index


def _linear(b: FlowBuilder, sizes: Sequence[int], steps: Sequence[int], start: int) -> SSAValue:
    """``start + sum(steps * position)``, i64 of ``sizes``."""
    total = b.scalar(start, "i64")
    for dim, (size, step) in enumerate(zip(sizes, steps, strict=True)):
        place = b.op(IotaOp, [], result=TensorType.of((size,), "i64"), dim=0)
        part = b.pointwise("mul", place, b.scalar(step, "i64"))
        shaped = b.reshape(part, tuple(size if d == dim else 1 for d in range(len(sizes))))
        total = b.pointwise("add", total, shaped)
    return b.broadcast(total, tuple(sizes))


def _first_inside(b: FlowBuilder, at: Pool) -> SSAValue:
    """The place of each window's first tap inside of the image: of what is nowhere exceeded."""
    steps, total = contiguous_strides(at.sizes), b.scalar(0, "i64")
    for dim, (size, step) in enumerate(zip(at.places, steps, strict=True)):
        first = [
            next(
                (
                    t
                    for k in range(at.window[dim])
                    if 0
                    <= (t := y * at.strides[dim] - at.low[dim] + k * at.dilations[dim])
                    < at.sizes[dim]
                ),
                0,
            )
            * step
            for y in range(size)
        ]
        shape = tuple(size if d == dim else 1 for d in range(len(at.places)))
        total = b.pointwise("add", total, b.constant(first, shape, "i64"))
    return b.broadcast(total, at.places)


def max_gradient(b: FlowBuilder, g: SSAValue, index: SSAValue, at: Pool) -> SSAValue:
    """Append the gradient of the image from that of the maxima and from where they were."""
    steps = contiguous_strides(at.sizes)
    zero = b.scalar(0, tensor(g).dtype)

    def part(numbers: tuple[int, ...], counts: tuple[int, ...]) -> Tap:
        start = sum(p * n for p, n in zip(numbers, steps, strict=True))
        moves = tuple(s * n for s, n in zip(at.strides, steps, strict=True))
        own = _linear(b, counts, moves, start)

        def tap(slices: Sequence[SSAValue]) -> SSAValue:
            value, place = slices
            return b.pointwise("where", b.pointwise("eq", place, own), value, zero)

        return tap

    return _gathered(b, (g, index), (0.0, -1), at, part)


def avg_gradient(
    b: FlowBuilder,
    g: SSAValue,
    at: Pool,
    *,
    counts: bool,
    divisor: int | None = None,
    high: tuple[int, ...] | None = None,
) -> SSAValue:
    """Append the gradient of the image from that of the averages.

    Args:
        b: where to write.
        g: the gradient of the averages.
        at: how the windows lie.
        counts: whether padding counts.
        divisor: what is divided by instead of the number of elements.
        high: the padding after the image, where it is not that before it.
    """
    share = b.pointwise("div", g, _counts(b, at, counts, divisor, high or at.low, tensor(g).dtype))
    return _gathered(b, (share,), (0.0,), at, lambda _, __: lambda slices: slices[0])


def _counts(
    b: FlowBuilder,
    at: Pool,
    padded: bool,
    divisor: int | None,
    high: tuple[int, ...],
    dtype: str,
) -> SSAValue:
    """How many elements each window averages, of its places."""
    if divisor is not None:
        return b.scalar(divisor, dtype)
    total = b.scalar(1, dtype)
    for dim, size in enumerate(at.places):
        low, end = (at.low[dim], at.sizes[dim] + high[dim]) if padded else (0, at.sizes[dim])
        covered = [
            sum(
                -low <= y * at.strides[dim] - at.low[dim] + k * at.dilations[dim] < end
                for k in range(at.window[dim])
            )
            for y in range(size)
        ]
        shape = tuple(size if d == dim else 1 for d in range(len(at.places)))
        part = (
            b.scalar(covered[0], dtype)
            if len(set(covered)) == 1
            else b.constant(covered, shape, dtype)
        )
        total = b.pointwise("mul", total, part)
    return total


Tap = Callable[[Sequence[SSAValue]], SSAValue]
"""Makes what one tap gives, of shifted values."""
Part = Callable[[tuple[int, ...], tuple[int, ...]], Tap]
"""Makes what all taps of a phase share, of the phase's numbers and its sizes."""


def _gathered(
    b: FlowBuilder, values: Sequence[SSAValue], fills: Sequence[float], at: Pool, part: Part
) -> SSAValue:
    """Sum over the windows that hold an element, phase by phase."""
    counts = tuple(-(-n // s) for n, s in zip(at.sizes, at.strides, strict=True))
    per_dim = [
        [phase_of(p, lo, s, d, k) for p in range(s)]
        for lo, s, d, k in zip(at.low, at.strides, at.dilations, at.window, strict=True)
    ]
    low, high = _margins(per_dim, at.places, counts)
    wide = [_padded(b, v, low, high, fill) for v, fill in zip(values, fills, strict=True)]
    totals: list[SSAValue] = []
    for numbers in product(*map(range, at.strides)):
        phases = [dim[p] for dim, p in zip(per_dim, numbers, strict=True)]
        total: SSAValue | None = None
        tap = part(numbers, counts) if all(p.taps for p in phases) else None
        for which in product(*(range(len(p.taps)) for p in phases)):
            assert tap is not None
            start = tuple(
                p.first + j * p.step + lo for p, j, lo in zip(phases, which, low, strict=True)
            )
            slices = [_slice(b, value, start, counts, (1,) * len(counts)) for value in wide]
            value = tap(slices)
            total = value if total is None else b.pointwise("add", total, value)
        if total is None:
            zero = b.scalar(0, tensor(values[0]).dtype)
            total = b.broadcast(zero, (*shape_of(values[0])[:2], *counts))
        totals.append(total)
    return cut(b, interleaved(b, totals, at.strides), at.sizes)


def _margins(
    per_dim: Sequence[Sequence[Phase]], places: Sequence[int], counts: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How far the phases reach beyond the places of windows, before and after."""
    low, high = list[int](), list[int]()
    for phases, size, count in zip(per_dim, places, counts, strict=True):
        starts = [p.first for p in phases if p.taps]
        ends = [p.first + p.step * (len(p.taps) - 1) + count for p in phases if p.taps]
        low.append(max(0, -min(starts, default=0)))
        high.append(max(0, max(ends, default=0) - size))
    return tuple(low), tuple(high)


def _padded(
    b: FlowBuilder, value: SSAValue, low: Sequence[int], high: Sequence[int], fill: float
) -> SSAValue:
    if not any((*low, *high)):
        return value
    return b.op(PadOp, [value], low=(0, 0, *low), high=(0, 0, *high), value=float(fill))


def _slice(
    b: FlowBuilder,
    value: SSAValue,
    start: Sequence[int],
    counts: Sequence[int],
    steps: Sequence[int],
) -> SSAValue:
    """Take ``counts`` elements of the spatial dims from ``start`` on."""
    shape = shape_of(value)
    stops = tuple(at + (n - 1) * step + 1 for at, n, step in zip(start, counts, steps, strict=True))
    if (0, *start) == (0,) * (len(shape) - 1) and stops == shape[2:] and set(steps) == {1}:
        return value
    return b.op(
        SliceOp,
        [value],
        starts=(0, 0, *start),
        stops=(*shape[:2], *stops),
        steps=(1, 1, *steps),
    )
