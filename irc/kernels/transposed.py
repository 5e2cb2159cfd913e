"""Transposed convolutions as ordinary ones: one for each phase of the result.

Along one dim, with stride s, dilation d and taps k,

    y[t] = sum of w[k] x[i]   over   i s + k d = t + low

so the results at t = s q + p (phase p) meet only the taps with k d = p + low (mod s): every
(s / g)-th one, g = gcd(s, d). These slide over x by d / g, one step for each q: a convolution of
stride 1 (sub-pixel convolution, Shi et al. 2016, arXiv:1609.05158). No product with a zero is made.
Phases of one geometry are one convolution with more channels; all of them lie interleaved.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import ConcatOp, ExternOp, SliceOp, TransposeOp, tensor
from irc.dialects.indexing import TakeOp
from irc.dialects.types import is_float
from irc.dialects.windows import ConvolutionOp
from irc.kernels.holds import shape_of

ATEN, ONNX = "aten::convolution", "onnx::ConvTranspose"
TRANSPOSED, GROUPS = 6, 8
"""Positions of arguments of ``aten::convolution``; those between are strides, low, dilations."""


@dataclass(frozen=True)
class Transposed:
    """A transposed convolution of x [N, C, spatial..] by w [C, O / groups, taps..].

    Attributes:
        strides, dilations: for each spatial dim.
        low: how many results before the first one are left out.
        sizes: of the result's spatial dims.
        groups: of channels.
    """

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[int, ...]
    sizes: tuple[int, ...]
    groups: int


def transposed_convolution(
    b: FlowBuilder, op: ExternOp, fixed: Callable[[SSAValue], bool] = lambda _: True
) -> SSAValue | None:
    """Append what a library call computes, where it is a transposed convolution of floats.

    Taps of a ``fixed`` kernel are put in order once; others are met in reverse where they lie.
    """
    positional, rest = json.loads(op.arguments)
    x, w, *others = op.inputs
    if not is_float(tensor(x).dtype) or len(shape_of(x)) != len(shape_of(w)) < 3:
        return None
    if len({tensor(value).dtype for value in op.inputs}) > 1:
        return None  # the library refuses it
    if any(0 in shape_of(value) for value in (x, w, op.outputs[0])):
        return None
    sizes = shape_of(op.outputs[0])[2:]
    if op.target == ONNX:
        strides, low, dilations = (tuple(rest[n]) for n in ("strides", "low", "dilations"))
        attrs = Transposed(strides, dilations, low, sizes, rest["groups"])
    elif positional[TRANSPOSED] and not rest:
        strides, low, dilations = (_each(n, len(sizes)) for n in positional[3:TRANSPOSED])
        attrs = Transposed(strides, dilations, low, sizes, positional[GROUPS])
    else:
        return None
    return by_phases(b, attrs, x, w, others[0] if others else None, flips=not fixed(w))


def _each(numbers: Sequence[int], count: int) -> tuple[int, ...]:
    return tuple(numbers) * count if len(numbers) == 1 else tuple(numbers)


@dataclass(frozen=True)
class Phase:
    """The taps that the results of a phase meet, in the order in which x does.

    Attributes:
        taps: their numbers.
        first: the place of x that the first of them meets at q = 0.
        step: places of x from tap to tap.
    """

    taps: tuple[int, ...]
    first: int
    step: int


def phase_of(number: int, low: int, stride: int, dilation: int, taps: int) -> Phase:
    """Return a phase along one dim.

    >>> phase_of(0, low=1, stride=2, dilation=1, taps=4)
    Phase(taps=(3, 1), first=-1, step=1)
    >>> phase_of(1, low=1, stride=2, dilation=1, taps=4)
    Phase(taps=(2, 0), first=0, step=1)
    """
    own_taps = tuple(
        k for k in reversed(range(taps)) if (number + low - k * dilation) % stride == 0
    )
    first = (number + low - own_taps[0] * dilation) // stride if own_taps else 0
    return Phase(own_taps, first, dilation // gcd(stride, dilation))


def by_phases(
    b: FlowBuilder,
    op: Transposed,
    x: SSAValue,
    w: SSAValue,
    bias: SSAValue | None,
    *,
    flips: bool = False,
) -> SSAValue:
    """Append the convolutions of all phases, and what puts their results in order."""
    kernel = shape_of(w)[2:]
    counts = tuple(-(-size // s) for size, s in zip(op.sizes, op.strides, strict=True))
    per_dim = [
        [phase_of(p, low, s, d, k) for p in range(s)]
        for low, s, d, k in zip(op.low, op.strides, op.dilations, kernel, strict=True)
    ]
    phases = list(product(*per_dim))
    added = bias if all(p.taps for dim in phases for p in dim) else None
    convolutions = _Phases(b, op, x, w, added, flips)
    shapes = dict.fromkeys(tuple((len(p.taps), p.first, p.step) for p in dims) for dims in phases)
    if len(shapes) == 1 < len(phases):
        y = convolutions.together(phases, counts)
    else:
        y = interleaved(b, [convolutions.alone(dims, counts) for dims in phases], op.strides)
    y = cut(b, y, op.sizes)
    if bias is not None and convolutions.bias is None:
        y = b.pointwise("add", y, b.reshape(bias, (*shape_of(bias), *[1] * len(kernel))))
    return y


@dataclass
class _Phases:
    """What all phases read; the bias where every one of them adds it."""

    b: FlowBuilder
    op: Transposed
    x: SSAValue
    w: SSAValue
    bias: SSAValue | None
    flips: bool

    def together(self, phases: Sequence[tuple[Phase, ...]], counts: tuple[int, ...]) -> SSAValue:
        """One convolution whose channels are those of all phases, each group's side by side."""
        b, groups, strides = self.b, self.op.groups, self.op.strides
        each, rest = shape_of(self.w)[1], len(strides)
        weights = [self._weight(dims) for dims in phases]
        apart = [b.reshape(v, (groups, 1, each, *shape_of(v)[1:])) for v in weights]
        joined = b.op(ConcatOp, apart, dim=1)
        channels = groups * len(phases) * each
        weight = b.reshape(joined, (channels, *shape_of(weights[0])[1:]))
        bias = self.bias
        if bias is not None:
            wide = b.broadcast(b.reshape(bias, (groups, 1, each)), (groups, len(phases), each))
            bias = b.reshape(wide, (channels,))
        y = self._convolved(phases[0], counts, weight, bias)
        n = shape_of(y)[0]
        y = b.reshape(y, (n, groups, *strides, each, *counts))
        last = 2 + rest
        pairs = (d for i in range(rest) for d in (last + 1 + i, 2 + i))
        y = b.op(TransposeOp, [y], perm=(0, 1, last, *pairs))
        whole = (s * count for s, count in zip(strides, counts, strict=True))
        return b.reshape(y, (n, groups * each, *whole))

    def alone(self, dims: tuple[Phase, ...], counts: tuple[int, ...]) -> SSAValue:
        """The results of one phase; zeros where it meets no tap."""
        if not all(p.taps for p in dims):
            shape = (shape_of(self.x)[0], self.op.groups * shape_of(self.w)[1], *counts)
            return self.b.broadcast(self.b.scalar(0, tensor(self.x).dtype), shape)
        return self._convolved(dims, counts, self._weight(dims), self.bias)

    def _weight(self, dims: tuple[Phase, ...]) -> SSAValue:
        """A phase's taps as a convolution has them, [O, C / groups, taps..]."""
        b, value, groups = self.b, self.w, self.op.groups
        for dim, phase in enumerate(dims, 2):
            if self.flips:
                value = _each_of(b, value, dim, phase.taps)
            elif phase.taps != tuple(range(shape_of(value)[dim])):
                index = b.constant(phase.taps, (len(phase.taps),), "i64")
                value = b.op(TakeOp, [value, index], dim=dim)
        channels, each, *taps = shape_of(value)
        apart = b.reshape(value, (groups, channels // groups, each, *taps))
        order = (0, 2, 1, *range(3, 3 + len(taps)))
        turned = b.op(TransposeOp, [apart], perm=order)
        return b.reshape(turned, (groups * each, channels // groups, *taps))

    def _convolved(
        self,
        dims: tuple[Phase, ...],
        counts: tuple[int, ...],
        weight: SSAValue,
        bias: SSAValue | None,
    ) -> SSAValue:
        sizes, low = shape_of(self.x)[2:], tuple(-p.first for p in dims)
        high = tuple(
            count - 1 + p.first + p.step * (len(p.taps) - 1) - (size - 1)
            for count, p, size in zip(counts, dims, sizes, strict=True)
        )
        operands = [self.x, weight] if bias is None else [self.x, weight, bias]
        return self.b.op(
            ConvolutionOp,
            operands,
            strides=(1,) * len(dims),
            low=low,
            high=high,
            dilations=tuple(p.step for p in dims),
            groups=self.op.groups,
            flipped=True if self.flips and any(len(p.taps) > 1 for p in dims) else None,
        )


def _each_of(b: FlowBuilder, value: SSAValue, dim: int, taps: tuple[int, ...]) -> SSAValue:
    """Take taps, given from the last to the first, as they lie."""
    shape, (first, *others) = shape_of(value), taps
    if len(taps) == shape[dim]:
        return value
    starts, stops, steps = [0] * len(shape), [*shape], [1] * len(shape)
    starts[dim], stops[dim] = min(taps), first + 1
    steps[dim] = first - others[0] if others else 1
    return b.op(SliceOp, [value], starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


def interleaved(b: FlowBuilder, phases: list[SSAValue], strides: tuple[int, ...]) -> SSAValue:
    """Put results in order: along the last dim first, so that few pieces meet at a time."""
    for dim in reversed(range(len(strides))):
        stride, at = strides[dim], dim + 2
        if stride == 1:
            continue
        joined: list[SSAValue] = []
        for first in range(0, len(phases), stride):
            group = phases[first : first + stride]
            shape = shape_of(group[0])
            apart = (*shape[: at + 1], 1, *shape[at + 1 :])
            whole = (*shape[:at], shape[at] * stride, *shape[at + 1 :])
            pieces = [b.reshape(value, apart) for value in group]
            joined.append(b.reshape(b.op(ConcatOp, pieces, dim=at + 1), whole))
        phases = joined
    return phases[0]


def cut(b: FlowBuilder, value: SSAValue, sizes: tuple[int, ...]) -> SSAValue:
    """Leave out what the last phases have beyond the result."""
    shape = shape_of(value)
    stops = (*shape[:2], *sizes)
    if stops == shape:
        return value
    zeros, ones = (0,) * len(shape), (1,) * len(shape)
    return b.op(SliceOp, [value], starts=zeros, stops=stops, steps=ones)
