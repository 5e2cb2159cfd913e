"""Ops of level flow that read no tensor: literals, counts, random numbers, with their records."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import ClassVar

from irc.dialects.fields import (
    integer_field,
    numbers_field,
    operand,
    opt_integers_field,
    opt_operand,
    text_field,
)
from irc.dialects.flow import FlowOp, flow_op
from irc.dialects.placement import B, Partial, Split
from irc.ops.infer import Attrs, Signature
from irc.ops.op_record import OpRecord
from irc.ops.rule import Rule
from irc.ops.rules import opaque
from irc.ops.rules_naming import dim_of, letters
from irc.ops.strategies import AS_IT_IS, Strategy


def _constant_rule(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> Rule:
    names = letters(results[0][0])
    splat = len(attrs["value"]) == 1
    return Rule((), (names,), whole=() if splat else tuple(chain(*names)))


def _iota_rule(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
    names = letters(results[0][0])
    return Rule((), (names,), whole=names[dim_of(attrs)])


def _offset_iota(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> list[Strategy]:
    """Split the counted dim: each rank counts from where its shard starts."""
    (shape, _), dim = results[0], dim_of(attrs)
    return [] if shape[dim] == 1 else [Strategy("offset-iota", (), (Split(dim),), shape[dim])]


def _offset_random(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> list[Strategy]:
    """Split any dim: each rank draws the numbers of its own places in the whole tensor."""
    shape, _ = results[0]
    return [
        Strategy("offset-random", (B,), (Split(dim),), size, split=f"dim {dim}")
        for dim, size in enumerate(shape)
        if size != 1 and len(operands) == 1
    ]


def _zeros(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> list[Strategy]:
    """Zeros are the sum of zeros: what is added into them may then differ from rank to rank."""
    if attrs["value"] in ((0,), (0.0,)):
        return [Strategy(AS_IT_IS, (), (Partial("sum"),), 0, split="nothing")]
    return []


@flow_op
class ConstantOp(FlowOp):
    """A literal: one value for all elements, or all values row-major.

    It has 64 values at most; what has more is an argument.

    ```mlir
    %c = flow.constant() {value = array<f64: 1.0>, loc = "m.py:3"} : () -> !flow.tensor<[], f32>
    ```
    """

    name = "flow.constant"
    value = numbers_field()
    RECORD: ClassVar[OpRecord | None] = OpRecord(
        infer=None, rule=_constant_rule, strategies=_zeros, is_flat=True
    )


@flow_op
class IotaOp(FlowOp):
    """``result[..., i, ...] = i`` along ``dim``.

    ```mlir
    %i = flow.iota() {dim = 0 : i64, loc = "m.py:3"} : () -> !flow.tensor<[16], i64>
    ```
    """

    name = "flow.iota"
    dim = integer_field()
    RECORD: ClassVar[OpRecord | None] = OpRecord(
        infer=None, rule=_iota_rule, strategies=_offset_iota, is_flat=True
    )


@flow_op
class RandomOp(FlowOp):
    """Counter-based random numbers: element i is a function of (seed, stream, i) alone.

    A shard has a second operand, the row-major place of its first element in the whole tensor, and
    ``strides``, the places from one element to the next in each dim.
    """

    name = "flow.random"
    seed = operand(0)
    first = opt_operand(1)
    distribution = text_field()
    stream = integer_field()
    strides = opt_integers_field()
    RECORD: ClassVar[OpRecord | None] = OpRecord(
        infer=None, rule=opaque, strategies=_offset_random, is_flat=True
    )


LITERALS: tuple[type[FlowOp], ...] = (ConstantOp, IotaOp, RandomOp)
