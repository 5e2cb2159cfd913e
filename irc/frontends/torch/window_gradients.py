"""Lowering of the derivatives of convolutions, as AOTAutograd's backward graphs have them."""

# ruff: noqa: A002 - arguments have the names of ATen's schemas
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xdsl.ir import SSAValue

from irc.dialects.flow import SliceOp, tensor
from irc.dialects.size import Size
from irc.dialects.types import is_float
from irc.dialects.windows import ConvolutionOp
from irc.frontends.torch.lowering import Lowering, lowers, number
from irc.frontends.torch.windows import Ints, each
from irc.ops.derivatives_window import Geometry, bias_gradient, image_gradient, kernel_gradient


@lowers("convolution_backward")
def convolution_backward(
    t: Lowering,
    grad_output: SSAValue,
    input: SSAValue,
    weight: SSAValue,
    bias_sizes: Sequence[int] | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    output_mask: Sequence[bool],
) -> list[SSAValue | None]:
    """Give the gradients of image, kernel and bias that the mask asks for."""
    kinds = [tensor(value) for value in (grad_output, input, weight)]
    ndim = kinds[2].ndim - 2
    sizes = [size for kind in kinds for size in kind.shape[2:]]
    if any(isinstance(size, Size) for size in (*sizes, *kinds[2].shape)):
        t.decline()
    if any(kind.ndim != ndim + 2 or not is_float(kind.dtype) for kind in kinds) or ndim < 1:
        t.decline()
    low = each(padding, ndim)
    at = Geometry(each(stride, ndim), low, low, each(dilation, ndim), groups)
    wanted_x, wanted_w, wanted_b = output_mask
    g, x, w = grad_output, input, weight
    if transposed:
        g, at = _reached(t, at, g, each(output_padding, ndim))
        image = _convolved(t, at, g, w) if wanted_x else None
        kernel = kernel_gradient(t.b, at, x, g, w) if wanted_w else None
    else:
        image = image_gradient(t.b, at, g, w, kinds[1]) if wanted_x else None
        kernel = kernel_gradient(t.b, at, g, x, w) if wanted_w else None
    return [image, kernel, bias_gradient(t.b, grad_output) if wanted_b else None]


def _reached(
    t: Lowering, at: Geometry, g: SSAValue, more: Sequence[int]
) -> tuple[SSAValue, Geometry]:
    """Return the gradient and windows of which there are as many as the input has elements.

    Where the output was padded by a stride and more (kernels are dilated), more windows fit.
    """
    if all(extra < stride for extra, stride in zip(more, at.strides, strict=True)):
        return g, at
    high = [pad - extra for pad, extra in zip(at.high, more, strict=True)]
    shape = tensor(g).shape
    stops = [*shape[:2], *(n + min(pad, 0) for n, pad in zip(shape[2:], high, strict=True))]
    if tuple(stops) != shape:
        starts, steps = (0,) * len(stops), (1,) * len(stops)
        g = t.b.op(SliceOp, [g], starts=starts, stops=tuple(map(number, stops)), steps=steps)
    return g, replace(at, high=tuple(max(pad, 0) for pad in high))


def _convolved(t: Lowering, at: Geometry, g: SSAValue, w: SSAValue) -> SSAValue:
    """The image's gradient of a transposed convolution: an ordinary one by the same kernel."""
    return t.b.op(
        ConvolutionOp,
        [g, w],
        strides=at.strides,
        low=at.low,
        high=at.high,
        dilations=at.dilations,
        groups=at.groups,
    )
