"""Lowering of the derivatives of convolutions, as AOTAutograd's backward graphs have them."""

# ruff: noqa: A002 - arguments have the names of ATen's schemas
from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from irc.dialects.flow import ConvolutionOp, tensor
from irc.dialects.size import Size
from irc.dialects.types import is_float
from irc.frontends.torch.lowering import Lowering, lowers
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
        image = _convolved(t, at, g, w) if wanted_x else None
        kernel = kernel_gradient(t.b, at, x, g, w) if wanted_w else None
    else:
        image = image_gradient(t.b, at, g, w, kinds[1]) if wanted_x else None
        kernel = kernel_gradient(t.b, at, g, x, w) if wanted_w else None
    return [image, kernel, bias_gradient(t.b, g) if wanted_b else None]


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
