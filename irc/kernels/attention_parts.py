"""Attention of few rows over many keys, the keys in parts: flash decoding (Dao et al., 2023).

One kernel gives the result and the log-sum of each part, so that there is work for all cores where
heads are few; what joins them is a softmax over the log-sums and a weighted sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from math import prod

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import ExternOp, FlowOp, carry, loc_of, tensor
from irc.dialects.types import TensorType
from irc.kernels.holds import shape_of
from irc.ops.attention_ops import form_of

PARTS = "parts"
"""The attribute of an attention op that says into how many parts its keys are divided."""
ROWS, HEADS, MIN_KEYS = 8, 8, 512
"""Parts are made for at most so many rows and so many heads, of at least so many keys."""
WANTED = 16
"""Heads times parts: enough for the cores of a small server, little to join."""


def parts_of(op: FlowOp, target: str) -> int:
    """Return into how many parts an attention op's keys are to be divided; 1 for whole."""
    q, k = (shape_of(value) for value in op.operands[:2])
    if target != "cpu" or form_of(op.plain, len(op.inputs)).before:
        return 1
    # Heads that share a key are its rows where each has one row alone.
    heads = prod(k[:-2]) if q[-2] == 1 else prod(q[:-2])
    rows = prod(q[:-1]) // heads
    if rows > ROWS or heads >= HEADS or k[-2] < 2 * MIN_KEYS:
        return 1
    parts = min(-(-WANTED // heads), k[-2] // MIN_KEYS)
    chunk = -(-k[-2] // parts)
    return -(-k[-2] // chunk)


@dataclass(frozen=True)
class Parted:
    """An attention op in parts, as ops that are in no program.

    Attributes:
        partial: gives y and log-sums of each part, [.., S, P, E] and [.., S, P].
        weigh: gives the weight of each part, and the log-sums of the whole.
        join: gives y.
    """

    partial: FlowOp
    weigh: tuple[FlowOp, ...]
    join: tuple[FlowOp, ...]
    weights: SSAValue
    sums: SSAValue
    y: SSAValue

    def erase(self) -> None:
        """Drop the ops, once they are kernels."""
        for op in (*reversed(self.join), *reversed(self.weigh), self.partial):
            op.detach()
            op.erase()


def part(op: FlowOp, parts: int) -> Parted:
    """Return an attention op in parts."""
    shape, block = shape_of(op.outputs[0]), Block()
    form = replace(form_of(op.plain, len(op.inputs)), with_sums=True)
    kinds = [
        TensorType.of((*shape[:-1], parts, shape[-1]), "f32"),
        TensorType.of((*shape[:-1], parts), "f32"),
    ]
    partial = ExternOp.make(list(op.inputs), kinds, loc=loc_of(op), **form.forward())
    partial.attributes[PARTS] = IntegerAttr(parts, i64)
    b = FlowBuilder(block)
    b.loc = loc_of(op)
    block.add_op(partial)
    y, sums = partial.outputs
    weights, whole = _weights(b, sums)
    weigh = _after(block, partial)
    joined = b.pointwise("mul", b.reshape(weights, (*shape_of(sums), 1)), y)
    total = b.reduce("sum", joined, (len(shape) - 1,), keep_dims=False)
    dtype = tensor(op.outputs[0]).dtype
    result = b.cast(total, dtype) if dtype != "f32" else total
    join = _after(block, weigh[-1])
    carry(join[-1], op)
    return Parted(partial, weigh, join, weights, whole, result)


def _weights(b: FlowBuilder, sums: SSAValue) -> tuple[SSAValue, SSAValue]:
    """Return the softmax of log-sums over parts, zeros where all are empty, and their log-sum."""
    last, zero = len(shape_of(sums)) - 1, b.scalar(0.0, "f32")
    top = b.reduce("max", sums, (last,), keep_dims=True)
    empty = b.pointwise("eq", top, b.scalar(-math.inf, "f32"))
    top = b.pointwise("where", empty, zero, top)
    powers = b.pointwise("exp", b.pointwise("sub", sums, top))
    total = b.reduce("sum", powers, (last,), keep_dims=True)
    weights = b.pointwise("div", powers, b.pointwise("maximum", total, b.scalar(1.0, "f32")))
    whole = b.pointwise("add", top, b.pointwise("log", total))
    return weights, b.reshape(whole, shape_of(sums)[:-1])


def _after(block: Block, first: Operation) -> tuple[FlowOp, ...]:
    ops = list(block.ops)
    return tuple(op for op in ops[ops.index(first) + 1 :] if isinstance(op, FlowOp))


def parts_attribute(op: Operation) -> int:
    """Return into how many parts the keys of an attention op are divided."""
    attribute = op.attributes.get(PARTS)
    return attribute.value.data if isinstance(attribute, IntegerAttr) else 1
