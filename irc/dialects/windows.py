"""Ops of level flow over windows: convolution and pooling."""

from __future__ import annotations

from irc.dialects.fields import (
    flag_field,
    integer_field,
    integers_field,
    operand,
    opt_flag_field,
    opt_operand,
    text_field,
)
from irc.dialects.flow import FlowOp, flow_op


@flow_op
class ConvolutionOp(FlowOp):
    """Convolve x [N, C, spatial..] with w [O, C/groups, kernel..] and an optional bias [O].

    ``flipped`` taps meet the image in reverse order, as those of a transposed convolution do.
    ``of_kernel`` says that it is the derivative of a kernel, whose windows are larger than its
    result: how it is best computed, not what it is.
    """

    name = "flow.convolution"
    x = operand(0)
    weight = operand(1)
    bias = opt_operand(2)
    strides = integers_field()
    low = integers_field()
    high = integers_field()
    dilations = integers_field()
    groups = integer_field()
    flipped = opt_flag_field()
    of_kernel = opt_flag_field()


@flow_op
class PoolOp(FlowOp):
    """Max or average (``fn`` max, avg) over windows of the last dims; ``count_padding`` for avg."""

    name = "flow.pool"
    x = operand(0)
    fn = text_field()
    window = integers_field()
    strides = integers_field()
    low = integers_field()
    high = integers_field()
    dilations = integers_field()
    count_padding = flag_field()


WINDOWS: tuple[type[FlowOp], ...] = (ConvolutionOp, PoolOp)
