"""The derivative of every flow op.

Ops that take no smooth operand (constant, iota, random) and ops whose results are not smooth
(arg_reduce) have none, and no gradient goes through them.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import SSAValue

from irc.dialects import items
from irc.dialects.flow import FlowOp
from irc.dialects.types import TensorType
from irc.ops import (
    derivatives_extern,
    derivatives_layout,
    derivatives_pointwise,
    derivatives_reduce,
)
from irc.ops.derivative import Adjoint, Derivative, NotDifferentiable

DERIVATIVES: Mapping[str, Derivative] = {
    "flow.pointwise": derivatives_pointwise.pointwise,
    "flow.contract": derivatives_reduce.contract,
    "flow.reduce": derivatives_reduce.reduce,
    "flow.reshape": derivatives_layout.reshape,
    "flow.transpose": derivatives_layout.transpose,
    "flow.broadcast": derivatives_layout.broadcast,
    "flow.slice": derivatives_layout.slice_,
    "flow.concat": derivatives_layout.concat,
    "flow.pad": derivatives_layout.pad,
    "flow.extern": derivatives_extern.extern,
}


def is_flat(op: FlowOp) -> bool:
    """True for an op whose results do not change with small changes of its operands."""
    if op.RECORD is not None and op.RECORD.is_flat:
        return True
    return op.plain.get("fn") in derivatives_pointwise.FLAT


def is_smooth(value: SSAValue) -> bool:
    """True for values that have gradients: real and complex tensors."""
    return isinstance(value.type, TensorType) and items.is_smooth(value.type.dtype)


def gradient(at: Adjoint, operand: int) -> SSAValue | None:
    """Return the gradient of one operand of an op.

    Raises:
        NotDifferentiable: with the reason.
    """
    if at.op.name == "flow.extern" or not _is_of_library(at.op):
        record = at.op.RECORD
        written = DERIVATIVES.get(at.op.name) if record is None else record.derivative
        if written is None:
            raise NotDifferentiable(f"{at.op.name} has no derivative")
        return written(at, operand)
    # Of complex numbers torch knows the convention (the gradient of a product takes the conjugate).
    return derivatives_extern.library(at, operand)


def _is_of_library(op: FlowOp) -> bool:
    """True for an op on complex numbers, or on those of eight bits."""
    smooth = [v.type.dtype for v in (*op.inputs, *op.outputs)
              if isinstance(v.type, TensorType) and is_smooth(v)]  # fmt: skip
    return not all(map(items.is_float, smooth))
