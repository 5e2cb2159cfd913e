"""Ops of level flow over windows: convolution and pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import ClassVar

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
from irc.ops.derivatives_extern import library
from irc.ops.derivatives_window import convolution
from irc.ops.infer import Attrs, ShapeError, Signature, equal_shapes, is_multiple, window_size
from irc.ops.op_record import OpRecord
from irc.ops.rule import Rule
from irc.ops.rules_window import convolution_rule, pool_rule


def _convolved(attrs: Attrs, operands: Sequence[Signature]) -> list[Signature]:
    (x, dtype), (w, _) = operands[0], operands[1]
    if len(x) != len(w) or len(w) != len(attrs["strides"]) + 2:
        raise ShapeError(f"convolution of {len(x)} dims by a kernel of {len(w)}")
    if not is_multiple(w[0], attrs["groups"]):
        raise ShapeError(f"{w[0]} channels of results in {attrs['groups']} groups")
    for bias, _ in operands[2:]:
        if not equal_shapes(bias, w[:1]):
            raise ShapeError(f"a bias of {[*map(str, bias)]} for {w[0]} channels")
    if x[1] != w[1] * attrs["groups"]:
        raise ShapeError(
            f"convolution of {x[1]} channels in {attrs['groups']} groups by a kernel of {w[1]}"
        )
    windows = [
        window_size(x[i + 2], int(w[i + 2]), s, lo, hi, d)
        for i, (s, lo, hi, d) in enumerate(
            zip(attrs["strides"], attrs["low"], attrs["high"], attrs["dilations"], strict=True)
        )
    ]
    return [((x[0], w[0], *windows), dtype)]


def _elements(rule: Rule, sizes: Mapping[str, int]) -> int:
    return prod(sizes[name] for name in rule.factors)


def _convolution_flops(attrs: Attrs, rule: Rule, sizes: Mapping[str, int]) -> int:
    return 2 * _elements(rule, sizes)


def _pool_flops(attrs: Attrs, rule: Rule, sizes: Mapping[str, int]) -> int:
    return prod(attrs["window"]) * _elements(rule, sizes)


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
    RECORD: ClassVar[OpRecord | None] = OpRecord(
        infer=_convolved,
        rule=convolution_rule,
        flops=_convolution_flops,
        derivative=convolution,
        refusal="a window reads rows of the neighbouring ranks: irc exchanges no halos, so "
        "only batch, groups and channels split",
    )


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
    RECORD: ClassVar[OpRecord | None] = OpRecord(
        infer=None,
        rule=pool_rule,
        flops=_pool_flops,
        derivative=library,
        refusal="a window reads rows of the neighbouring ranks: irc exchanges no halos, so only "
        "the dims before the windows split",
        fns=("max", "avg"),
    )


WINDOWS: tuple[type[FlowOp], ...] = (ConvolutionOp, PoolOp)
