"""Softmax and its logarithm, recognised in their parts: one short derivative for five ops.

Part by part, a gradient would run through the maximum that only guards against overflow: more work,
more values kept, and noise where the exact answer is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.ir import SSAValue

from irc.dialects.flow import FlowOp, PointwiseOp, ReduceOp
from irc.ops.derivative import PhaseBuilder


@dataclass(frozen=True)
class Softmax:
    """A softmax, or its logarithm, whose inner values nothing else reads.

    Attributes:
        kind: what ``result`` is.
        x: the operand.
        result: the last op's result.
        dims: what is normalised over.
    """

    kind: Literal["softmax", "log_softmax"]
    x: SSAValue
    result: SSAValue
    dims: tuple[int, ...]

    def gradient(self, b: PhaseBuilder, g: SSAValue) -> SSAValue:
        """``y (g - sum(g y))``, or of the logarithm ``g - exp(y) sum(g)``: only y is kept."""
        if self.kind == "softmax":
            share = b.reduce("sum", b.pointwise("mul", g, self.result), self.dims, keep_dims=True)
            return b.pointwise("mul", self.result, b.pointwise("sub", g, share))
        share = b.reduce("sum", g, self.dims, keep_dims=True)
        chances = b.pointwise("exp", self.result)
        return b.pointwise("sub", g, b.pointwise("mul", chances, share))


def find_softmax(op: FlowOp) -> Softmax | None:
    """Return the softmax that an op ends, or None.

    ``off = x - max(x)``, ``e = exp(off)``, ``s = sum(e)``, then ``e / s`` or ``off - log(s)``.
    """
    match op.plain.get("fn") if isinstance(op, PointwiseOp) else None:
        case "div":
            powers, total = op.inputs
            off = _operand(powers, "exp")
            whole = off is not None and _shifted(off, powers, total, readers=(1, 2))
            kind = "softmax"
        case "sub":
            off, log = op.inputs
            total = _operand(log, "log")
            powers = None if total is None else _summed(total)
            same = powers is not None and _operand(powers, "exp") is off and _readers(log) == 1
            whole = (
                same
                and total is not None
                and powers is not None
                and _shifted(off, powers, total, readers=(2, 1))
            )
            kind = "log_softmax"
        case _:
            return None
    if not whole or off is None:
        return None
    x, dims = _source(off)
    return Softmax(kind, x, op.outputs[0], dims)


def _shifted(off: SSAValue, powers: SSAValue, total: SSAValue, readers: tuple[int, int]) -> bool:
    """True where ``off`` is ``x - max(x)`` and ``total`` a sum of ``powers``, read here alone."""
    if (_readers(off), _readers(powers), _readers(total)) != (*readers, 1):
        return False
    sub, add = off.owner, total.owner
    if not (isinstance(sub, PointwiseOp) and sub.plain["fn"] == "sub"):
        return False
    top = sub.inputs[1].owner
    if not (isinstance(top, ReduceOp) and isinstance(add, ReduceOp)):
        return False
    over = {"dims": top.plain["dims"], "keep_dims": True}
    return (
        top.plain == {"fn": "max", **over}
        and add.plain == {"fn": "sum", **over}
        and top.inputs[0] is sub.inputs[0]
        and add.inputs[0] is powers
        and _readers(top.outputs[0]) == 1
    )


def _source(off: SSAValue) -> tuple[SSAValue, tuple[int, ...]]:
    """Return what is shifted, and the dims of its maximum."""
    sub = off.owner
    assert isinstance(sub, PointwiseOp)
    top = sub.inputs[1].owner
    assert isinstance(top, ReduceOp)
    return sub.inputs[0], top.plain["dims"]


def _operand(value: SSAValue, fn: str) -> SSAValue | None:
    """Return the operand of a pointwise function, where that made the value."""
    op = value.owner
    return op.inputs[0] if isinstance(op, PointwiseOp) and op.plain["fn"] == fn else None


def _summed(value: SSAValue) -> SSAValue | None:
    return value.owner.inputs[0] if isinstance(value.owner, ReduceOp) else None


def _readers(value: SSAValue) -> int:
    return sum(1 for _ in value.uses)
