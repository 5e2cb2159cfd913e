"""Convolutions of dequantised operands become ``flow.packed_contract`` with a window.

Channels come last there, as the dot products of bytes read them. What follows a convolution
pointwise is written with channels last too (:class:`ChannelsLast`), so that a chain of convolutions
never turns its images.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import PadOp, PointwiseOp, tensor
from irc.dialects.packed_products import PackedContractOp
from irc.dialects.types import TensorType
from irc.dialects.windows import ConvolutionOp
from irc.kernels.holds import shape_of
from irc.kernels.quantized.contract import IsFixed
from irc.kernels.quantized.dequantized import (
    BYTES,
    Integers,
    dequantized,
    exact_float,
    is_single,
    literal,
)
from irc.kernels.quantized.loads import LANES, QUAD
from irc.kernels.quantized.panels import (
    cut_to,
    pad_to,
    quad_panels,
    round_up,
    signed,
    transpose,
    unsigned,
)

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
"""Transpositions that put channels last, and back."""


@dataclass
class ChannelsLast:
    """Images that also exist with channels last.

    Attributes:
        twins: the value with channels last, by the value with channels second.
    """

    twins: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])

    def of(self, b: FlowBuilder, value: SSAValue) -> SSAValue:
        """Return a value with channels last; transposed where nobody has made it so."""
        return self.twins.get(value) or transpose(b, value, LAST)

    def turn(self, b: FlowBuilder, value: SSAValue) -> SSAValue:
        """Return the usual form of a value with channels last, and remember it."""
        turned = transpose(b, value, FIRST)
        self.twins[turned] = value
        return turned

    def pointwise(self, b: FlowBuilder, op: PointwiseOp) -> SSAValue | None:
        """Append a pointwise op of images with channels last; None where it has others."""
        shape = shape_of(op.outputs[0])
        if not any(value in self.twins and shape_of(value) == shape for value in op.inputs):
            return None
        operands: list[SSAValue] = []
        for value in op.inputs:
            own = shape_of(value)
            if value in self.twins:
                operands.append(self.twins[value])
            elif is_single(value):
                operands.append(value)
            elif len(own) >= 3 and own[-2:] == (1, 1):
                spread = b.reshape(value, (*[1] * (4 - len(own)), *own))
                operands.append(transpose(b, spread, LAST))
            else:
                return None
        kind = TensorType.of([shape[d] for d in LAST], tensor(op.outputs[0]).dtype)
        image = b.op(PointwiseOp, operands, result=kind, fn=op.fn)
        return self.turn(b, image)


def packed_convolution(
    b: FlowBuilder, op: ConvolutionOp, images: ChannelsLast, fixed: IsFixed
) -> SSAValue | None:
    """Append a convolution of dequantised bytes, channels last; None where it is none."""
    if len(shape_of(op.x)) != 4:
        return None
    whole = tensor(op.outputs[0]).dtype == "f64"
    read = exact_float if whole else dequantized
    x, w = read(op.x), read(op.weight)
    if x is None or w is None or not fixed(w.q) or {x.dtype, w.dtype} - set(BYTES):
        return None
    if _zero(w) != (128 if w.dtype == "u8" else 0) or (x.zero and not is_single(x.zero)):
        return None
    if not whole and not _scales_leave(op, x, w):
        return None
    image = unsigned(b, _image(b, x, images))
    weight = transpose(b, signed(b, w.spread(b, w.q)), LAST)
    shift, known = (128 if x.dtype == "i8" else 0), _zero(x)
    if known is not None:
        total = _sums(b, op, image, weight, known + shift)
    else:
        assert x.zero is not None
        total = _about(b, op, image, weight, x.zero, shift)
    return b.cast(total, "f64") if whole else _scaled(b, op, total, x, w)


def _scales_leave(op: ConvolutionOp, x: Integers, w: Integers) -> bool:
    """True where scales stay the same along what is summed."""
    summed = 1
    for size in shape_of(op.weight)[1:]:
        summed *= size
    single = x.scale is not None and is_single(x.scale)
    return single and w.period(w.scale, (0, 1, 2, 3), 1) == summed


def _image(b: FlowBuilder, x: Integers, images: ChannelsLast) -> SSAValue:
    """The integers of x, channels last."""
    if not x.chain:
        return images.of(b, x.q)
    if [op.plain.get("perm") for op in x.chain] == [FIRST]:
        return x.q
    return transpose(b, x.spread(b, x.q), LAST)


def _zero(side: Integers) -> int | None:
    known = 0.0 if side.zero is None else literal(side.zero)
    return None if known is None else int(known)


def _about(
    b: FlowBuilder,
    op: ConvolutionOp,
    image: SSAValue,
    weight: SSAValue,
    zero: SSAValue,
    shift: int,
) -> SSAValue:
    """Convolve bytes about a zero point that is known at run time.

    The border is zeros, so the zero point counts where a window lies inside: the sums of the
    weight there are a convolution of ones, made once.
    """
    ones = b.broadcast(b.scalar(1, "u8"), (1, *shape_of(image)[1:]))
    inside = _sums(b, op, ones, weight, 0)
    point = b.reshape(b.cast(zero, "i32"), ())
    if shift:
        point = b.pointwise("add", point, b.scalar(shift, "i32"))
    total = _sums(b, op, image, weight, 0)
    return b.pointwise("sub", total, b.pointwise("mul", inside, point))


def _sums(
    b: FlowBuilder, op: ConvolutionOp, image: SSAValue, weight: SSAValue, zero: int
) -> SSAValue:
    """Convolve bytes about the zero point of the image: i32, channels last."""
    groups, (count, *kernel, depth) = op.groups, shape_of(weight)
    window = (*kernel, *op.strides, *op.dilations)
    if groups == 1:
        total = _dense(b, _bordered(b, op, image, zero, -depth % QUAD), weight, window)
    elif depth == 1 and groups == count and kernel != [1, 1]:
        taps = transpose(b, b.reshape(weight, (count, *kernel)), (1, 2, 0))
        image = _bordered(b, op, image, zero, 0)
        total = b.op(PackedContractOp, [image, taps], bits=8, window=window)
    else:
        total = _by_groups(b, op, image, weight, zero)
    if not zero:
        return total
    sums = b.reduce("sum", b.cast(weight, "i32"), [1, 2, 3], keep_dims=False)
    return b.pointwise("sub", total, b.pointwise("mul", sums, b.scalar(zero, "i32")))


def _bordered(b: FlowBuilder, op: ConvolutionOp, image: SSAValue, zero: int, more: int) -> SSAValue:
    """Write zero points around the image, and ``more`` channels."""
    low, high = (0, *op.low, 0), (0, *op.high, more)
    if not any((*low, *high)):
        return image
    return b.op(PadOp, [image], low=low, high=high, value=float(zero))


def _dense(b: FlowBuilder, image: SSAValue, weight: SSAValue, window: tuple[int, ...]) -> SSAValue:
    """Convolve an image with its border, channels in fours: rows of a matmul where it is one."""
    panels, (n, height, width, depth) = quad_panels(b, weight), shape_of(image)
    if window[:4] == (1, 1, 1, 1):
        rows = b.reshape(image, (n * height * width, depth))
        flat = b.reshape(panels, (shape_of(panels)[0], *shape_of(panels)[3:]))
        total = b.op(PackedContractOp, [rows, flat], bits=8)
        total = b.reshape(total, (n, height, width, shape_of(total)[1]))
    else:
        total = b.op(PackedContractOp, [image, panels], bits=8, window=window)
    return cut_to(b, total, shape_of(weight)[0])


def _by_groups(
    b: FlowBuilder, op: ConvolutionOp, image: SSAValue, weight: SSAValue, zero: int
) -> SSAValue:
    """Convolve groups of channels, each padded to a power of two of columns or to panels.

    A panel then has columns of whole groups, or a group whole panels.
    """
    groups, (count, *kernel, depth) = op.groups, shape_of(weight)
    own = count // groups
    run = round_up(own, LANES) if own > LANES else 1 << (own - 1).bit_length()
    every = round_up(groups * run, LANES) // run
    quads = round_up(depth, QUAD)
    more = (every - 1) * depth + quads - groups * depth
    apart = b.reshape(weight, (groups, own, *kernel, depth))
    apart = pad_to(b, apart, (every, run, *kernel, quads))
    panels = quad_panels(b, b.reshape(apart, (every * run, *kernel, quads)))
    window = (*kernel, *op.strides, *op.dilations)
    operands = [_bordered(b, op, image, zero, more), panels]
    total = b.op(PackedContractOp, operands, bits=8, window=window, groups=(every, depth))
    if run == own:
        return cut_to(b, total, count)
    places = shape_of(total)[:3]
    apart = cut_to(b, b.reshape(total, (*places, every, run)), own)
    return cut_to(b, b.reshape(apart, (*places, every * own)), count)


def _scaled(
    b: FlowBuilder, op: ConvolutionOp, total: SSAValue, x: Integers, w: Integers
) -> SSAValue:
    """Append ``total * (scale of x * scale of w) + bias``."""
    assert x.scale is not None and w.scale is not None
    scale = w.scale
    if not is_single(scale):
        spread = w.spread(b, scale)
        count = shape_of(spread)[0]
        flat = b.reshape(spread, (count, -(-len_of(spread) // count)))
        scale = b.reshape(cut_to(b, flat, 1), (count,))
    else:
        scale = b.reshape(scale, ())
    both = b.pointwise("mul", b.reshape(x.scale, ()), scale)
    y = b.pointwise("mul", b.cast(total, "f32"), both)
    return y if op.bias is None else b.pointwise("add", y, op.bias)


def len_of(value: SSAValue) -> int:
    """Count the elements of a value."""
    total = 1
    for size in shape_of(value):
        total *= size
    return total
