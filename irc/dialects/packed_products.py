"""Products of flow with weights in panels: made of plain ones where weights are packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar

from irc.dialects.fields import (
    integer_field,
    operand,
    opt_integers_field,
    opt_number_field,
)
from irc.dialects.flow import FlowOp, flow_op
from irc.dialects.items import Shape
from irc.ops.infer import Attrs, ShapeError, Signature, window_size
from irc.ops.op_record import OpRecord
from irc.ops.rule import Rule
from irc.ops.rules import opaque


def _packed_product(attrs: Attrs, operands: Sequence[Signature]) -> list[Signature]:
    (x, dtype), (w, _), *scales = operands
    exact, window = dtype == "u8", attrs.get("window")
    if window is not None:
        return [(_packed_window(window, attrs.get("groups"), x, w), "i32")]
    (m, k), panels = x, w[0]
    inner = {4: (k // 8, 16), 8: (k // 4, 16, 4) if exact else (k, 16)}[attrs["bits"]]
    depth: Any = k
    if w[1:] != inner or any(s[0] != panels or s[2] != 16 or depth % s[1] for (s, _) in scales):
        raise ShapeError(f"packed weights {list(w)} do not fit {list(x)}")
    return [((m, panels * 16), "i32" if exact else "f32")]


def _packed_window(window: Sequence[int], groups: Sequence[int] | None, x: Any, w: Any) -> Shape:
    """The shape of a convolution of bytes by packed weights."""
    kernel, strides, dilations = window[:2], window[2:4], window[4:]
    spatial = map(window_size, x[1:3], kernel, strides, (0, 0), (0, 0), dilations)
    if len(w) == 3:
        columns, fits = w[2], tuple(w) == (*kernel, x[3])
    else:
        columns, (count, step) = w[0] * 16, groups or (1, 0)
        run = max(columns // count, 1)
        fits = run * count == columns and (run % 16 == 0 or 16 % run == 0)
        fits &= tuple(w[1:3]) == tuple(kernel) and tuple(w[4:]) == (16, 4)
        read = (count - 1) * step + 4 * w[3]
        fits &= read <= x[3] if groups else read == x[3]
    if not fits:
        raise ShapeError(f"packed weights {list(w)} do not fit {list(x)}")
    return (x[0], *spatial, columns)


def _product_of_groups(attrs: Attrs, operands: Sequence[Signature]) -> list[Signature]:
    ((rows, depth), dtype), (w, other), (index, _) = operands
    _, panels, steps, columns, pair = w
    if steps * pair != depth or other != dtype or index != (rows,):
        raise ShapeError(f"matrices {list(w)} do not fit rows [{rows}, {depth}]")
    return [((rows, panels * columns), dtype)]


def _outer_of_groups(attrs: Attrs, operands: Sequence[Signature]) -> list[Signature]:
    ((rows, m), dtype), ((others, n), other), index = operands
    if (others, other, index) != (rows, dtype, ((rows,), "i64")):
        raise ShapeError(f"rows [{rows}, {m}] and [{others}, {n}] of groups {index}")
    return [((attrs["count"], m, n), dtype)]


def _packed_flops(attrs: Attrs, rule: Rule, sizes: Mapping[str, int]) -> int:
    """A product and a sum for each weight and each row or place of a window."""
    rows, weights = rule.results[0][:-1], rule.operands[1]
    each = {4: 8, 8: 1}[attrs["bits"]]
    return 2 * each * prod(sizes[name] for dim in (*rows, *weights) for name in dim)


def _grouped_flops(attrs: Attrs, rule: Rule, sizes: Mapping[str, int]) -> int:
    """Each row that is expected to name a matrix meets one."""
    x, panels = rule.operands[0], rule.operands[1][1::2]
    each = 2 * attrs.get("fill", 1.0)
    return round(each * prod(sizes[name] for dim in (*x, *panels) for name in dim))


def _outer_flops(attrs: Attrs, rule: Rule, sizes: Mapping[str, int]) -> int:
    """Each row that is expected to be of a group is of one."""
    x, (_, n) = rule.operands[:2]
    each = 2 * attrs.get("fill", 1.0)
    return round(each * prod(sizes[name] for dim in (*x, n) for name in dim))


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
    RECORD: ClassVar[OpRecord | None] = OpRecord(
        infer=_packed_product, rule=opaque, flops=_packed_flops
    )


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
    RECORD: ClassVar[OpRecord | None] = OpRecord(
        infer=_product_of_groups, rule=opaque, flops=_grouped_flops
    )


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
    RECORD: ClassVar[OpRecord | None] = OpRecord(
        infer=_outer_of_groups, rule=opaque, flops=_outer_flops
    )


PACKED: tuple[type[FlowOp], ...] = (PackedContractOp, GroupedContractOp, GroupedOuterOp)
