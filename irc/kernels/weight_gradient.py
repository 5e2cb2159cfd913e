"""The gradient of a convolution's kernel as a convolution: the gradient slides over the image.

    dw[o, c, k] = sum over n, y of  g[n, o, y] x[n, c, s y + d k - low]

is a convolution of the image by the gradient in which the batch is what is summed and the channels
of the image are the batch; strides and dilations change places. Its windows are as large as the
layer's result and its places as few as the kernel's taps, so it is computed as a sum of outer
products (template ``outer``): nothing is packed, and no window is gathered.
"""

from __future__ import annotations

import json
from typing import Any

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import ExternOp, TransposeOp, tensor
from irc.dialects.types import is_float
from irc.dialects.windows import ConvolutionOp
from irc.kernels.holds import shape_of

ATEN_BACKWARD = "aten::convolution_backward"
STRIDES, PADDING, DILATIONS, TRANSPOSED, GROUPS, MASK = 4, 5, 6, 7, 9, 10
"""Positions of arguments of ``aten::convolution_backward``."""


def weight_gradient(b: FlowBuilder, op: ExternOp) -> SSAValue | None:
    """Append what a library call computes, where it asks for the kernel's gradient alone."""
    call: tuple[list[Any], dict[str, Any]] = json.loads(op.arguments)
    positional, options = call
    if options or positional[TRANSPOSED] or positional[MASK] != [False, True, False]:
        return None
    g, x, w = op.inputs
    ndim = len(shape_of(w)) - 2
    if not is_float(tensor(w).dtype) or ndim < 1 or len(shape_of(x)) != ndim + 2:
        return None
    if any(0 in shape_of(value) for value in op.inputs):
        return None
    strides, low, dilations = (
        tuple(n) * ndim if len(n) == 1 else tuple(n)
        for n in (positional[STRIDES], positional[PADDING], positional[DILATIONS])
    )
    groups = positional[GROUPS]
    sizes, places, taps = (shape_of(value)[2:] for value in (x, g, w))
    high = tuple(
        (k - 1) * d + s * (p - 1) + 1 - n - lo
        for k, d, s, p, n, lo in zip(taps, dilations, strides, places, sizes, low, strict=True)
    )
    gradient = b.op(
        ConvolutionOp,
        [_image(b, x, groups), _swapped(b, g)],
        strides=dilations,
        low=low,
        high=high,
        dilations=strides,
        groups=groups,
        of_kernel=True,
    )
    return _swapped(b, gradient)


def _swapped(b: FlowBuilder, value: SSAValue) -> SSAValue:
    """The first two dims change places."""
    return b.op(TransposeOp, [value], perm=(1, 0, *range(2, tensor(value).ndim)))


def _image(b: FlowBuilder, x: SSAValue, groups: int) -> SSAValue:
    """``[N, G C, spatial..]`` as ``[C, G N, spatial..]``: a group sums over the batch."""
    if groups == 1:
        return _swapped(b, x)
    n, channels, *sizes = shape_of(x)
    apart = b.reshape(x, (n, groups, channels // groups, *sizes))
    turned = b.op(TransposeOp, [apart], perm=(2, 1, 0, *range(3, 3 + len(sizes))))
    return b.reshape(turned, (channels // groups, groups * n, *sizes))
