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
            powers, total = (v.owner for v in op.inputs)
            ends = 2
        case "sub":
            log = _made_by(op.inputs[1], "log")
            total = log.inputs[0].owner if log is not None and _uses(log) == 1 else None
            powers = total.inputs[0].owner if isinstance(total, ReduceOp) else None
            ends = 1
        case _:
            return None
    if not (isinstance(total, ReduceOp) and isinstance(powers, PointwiseOp)):
        return None
    dims: tuple[int, ...] = total.plain["dims"]
    if powers.plain["fn"] != "exp" or not _sums(total, powers) or (_uses(powers), _uses(total)) != (
        ends,
        1,
    ):
        return None
    off = _made_by(powers.inputs[0], "sub")
    if off is None or _uses(off) != 3 - ends or (ends == 1 and op.inputs[0] is not off.outputs[0]):
        return None
    top = off.inputs[1].owner
    same = isinstance(top, ReduceOp) and top.plain == {"fn": "max", "dims": dims, "keep_dims": True}
    if not same or top.inputs[0] is not off.inputs[0] or _uses(top) != 1:
        return None
    kind = "softmax" if ends == 2 else "log_softmax"
    return Softmax(kind, off.inputs[0], op.outputs[0], dims)


def _sums(total: ReduceOp, powers: FlowOp) -> bool:
    attrs = total.plain
    return attrs["fn"] == "sum" and attrs["keep_dims"] and total.inputs[0] is powers.outputs[0]


def _made_by(value: SSAValue, fn: str) -> PointwiseOp | None:
    op = value.owner
    return op if isinstance(op, PointwiseOp) and op.plain["fn"] == fn else None


def _uses(op: FlowOp) -> int:
    return sum(1 for _ in op.outputs[0].uses)
