"""The derivative of a linear layer's cross-entropy, which stays whole (`irc.ops.linear_loss`)."""

from __future__ import annotations

from xdsl.ir import SSAValue

from irc.dialects.flow import ExternOp
from irc.ops.derivative import Adjoint
from irc.ops.linear_loss import BACKWARD, arguments

INDEX, BIAS = 2, 3
"""Positions of operands of ``irc::linear_cross_entropy``."""


def linear_loss(at: Adjoint, operand: int) -> SSAValue | None:
    """Return the gradient of h, w or the bias: one op gives all of them.

    The log-sums are for this op alone: nothing else depends on them.
    """
    if operand == INDEX:
        return None
    made: list[SSAValue] = at.shared("linear_loss", lambda: _gradients(at))
    return made[operand if operand < INDEX else operand - 1]


def _gradients(at: Adjoint) -> list[SSAValue]:
    h, w, index, *bias = at.inputs
    given = [at.g, h, w, index, at.op.outputs[1], *bias]
    kinds = [at.kind(i) for i in range(len(at.inputs)) if i != INDEX]
    call = arguments(len(given), biased=bool(bias))
    return at.b.ops(ExternOp, given, results=kinds, target=BACKWARD, arguments=call)
