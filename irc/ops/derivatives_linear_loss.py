"""The derivative of a linear layer's cross-entropy, which stays whole (`irc.ops.linear_loss`)."""

from __future__ import annotations

from xdsl.ir import SSAValue

from irc.dialects.flow import ExternOp
from irc.ops.derivative import Adjoint
from irc.ops.linear_loss import BACKWARD, arguments, operand_roles

UNTRAINED = "index"


def linear_loss(at: Adjoint, operand: int) -> SSAValue | None:
    """Return the gradient of h, w or the bias: one op gives all of them."""
    roles = operand_roles(at.attrs["target"], at.attrs["arguments"])
    if roles[operand] == UNTRAINED:
        return None
    gradients: list[SSAValue] = at.shared("linear_loss", lambda: _gradients(at, roles))
    return gradients[[role for role in roles if role != UNTRAINED].index(roles[operand])]


def _gradients(at: Adjoint, roles: tuple[str, ...]) -> list[SSAValue]:
    operands = {"g": at.g, **dict(zip(roles, at.inputs, strict=True)), "sums": at.op.outputs[1]}
    if "bias" in operands:
        operands["bias"] = operands.pop("bias")  # after the log-sums
    if (gs := at.gradients[1]) is not None:
        operands["gs"] = gs
    kinds = [at.kind(i) for i, role in enumerate(roles) if role != UNTRAINED]
    call = arguments(BACKWARD, operands)
    return at.b.ops(
        ExternOp, list(operands.values()), results=kinds, target=BACKWARD, arguments=call
    )
