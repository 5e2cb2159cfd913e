"""Products of flow with weights in panels: made of plain ones where weights are packed."""

from __future__ import annotations

from irc.dialects.fields import (
    integer_field,
    operand,
    opt_integers_field,
    opt_number_field,
)
from irc.dialects.flow import FlowOp, flow_op


@flow_op
class PackedContractOp(FlowOp):
    """x times integer weights packed in panels of 16 columns (:mod:`irc.kernels.quantized.loads`).

    Floats x [M, K] (result f32 [M, 16 P]), by ``bits`` of a weight:

    * 4: w i32 [P, K/8, 16]; bits 4j..4j+3 of word [p, i, c] are of k = 8i + j, n = 16p + c
    * 8: w i8 or u8 [P, K, 16]

    each weight being ``(q - zero) * scale``: scales f32 [P, G, 16], one for K/G values of k, and
    zeros alike, or the literal ``zero``.

    Bytes x u8 [M, K] (result i32): w i8 [P, K/4, 16, 4], exact. With ``window`` (kernel, strides,
    dilations: six numbers) x is u8 [N, H, W, C] with its border, w i8 [P, KH, KW, C/4, 16, 4], and
    the result [N, OH, OW, 16 P]: a convolution. ``groups`` (G, step) cuts its columns into G equal
    runs, each a divisor or a multiple of 16 long, of which number g reads the channels from
    ``g * step`` on: w is i8 [P, KH, KW, J, 16, 4] and C at least ``(G - 1) * step + 4 J``. With w
    i8 [KH, KW, C] each channel has a weight of its own (depthwise): the result is [N, OH, OW, C].
    """

    name = "flow.packed_contract"
    x = operand(0)
    weight = operand(1)
    bits = integer_field()
    zero = opt_number_field()
    window = opt_integers_field()
    groups = opt_integers_field()


EXPECTED = "expected"
"""Attribute of ops over rows that may come, and of their kernels: the part that is expected to."""


@flow_op
class GroupedContractOp(FlowOp):
    """Rows times one matrix of several each: ``sum over k of x[r, k] w[index[r], n, k]``.

    x [R, K] floats, w [E, P, K/q, 64, q] (element [e, p, i, c, j] is of n = 64p + c, k = qi + j),
    index [R] integers; the result is [R, 64 P], zeros where an index names no matrix. ``fill`` is
    the part of the rows that is expected to name one, for prices; all where it is not said.
    """

    name = "flow.grouped_contract"
    x = operand(0)
    weight = operand(1)
    index = operand(2)
    fill = opt_number_field()


@flow_op
class GroupedOuterOp(FlowOp):
    """Products of rows, summed by group: ``sum over r where index[r] = e of  x[r, m] g[r, n]``.

    x [R, M] and g [R, N] floats, index [R] i64; the result is [E, M, N], E the ``count``.
    A row whose index names no group counts nothing (the gradient of experts' matrices). ``fill``
    is the part of the rows that is expected to name one, for prices; all where it is not said.
    """

    name = "flow.grouped_outer"
    x = operand(0)
    g = operand(1)
    index = operand(2)
    count = integer_field()
    fill = opt_number_field()


PACKED: tuple[type[FlowOp], ...] = (PackedContractOp, GroupedContractOp, GroupedOuterOp)
