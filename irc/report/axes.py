"""What each mesh axis is for: tensor, data, sharded data or sequence parallelism."""

from __future__ import annotations

from collections import Counter
from typing import Literal, TypeAlias

from xdsl.ir import SSAValue

from irc.dialects.flow import ContractOp
from irc.dialects.placement import AxisPlacement, B, Split
from irc.ops.work import flops
from irc.report.evidence import Evidence
from irc.report.modules import module_use, on, unboxed, walk

Role: TypeAlias = Literal["tensor", "data", "sharded data", "sequence", "whole"]

MEANING: dict[Role, str] = {
    "tensor": "splits weights: tensor parallelism",
    "data": "splits the batch; weights are whole: data parallelism",
    "sharded data": "splits the batch; weights are stored in parts: FSDP",
    "sequence": "splits positions; weights are whole: context parallelism",
    "whole": "splits nothing: every rank computes the same",
}


def axis_roles(evidence: Evidence) -> dict[str, Role]:
    """Return the role of each axis: what most of the products' arithmetic does on it."""
    votes: dict[str, Counter[Role]] = {axis: Counter() for axis in evidence.mesh.names}
    for op, origins in walk(evidence):
        if not isinstance(op, ContractOp) or not any(v in origins for v in op.inputs):
            continue
        use = module_use(op, origins)
        weight = use.weight if use else next(i for i, v in enumerate(op.inputs) if v in origins)
        for axis, count in votes.items():
            role = _role(op.operands[weight], op.operands[1 - weight], axis)
            count[role] += flops(op)
    return {axis: _most(count) for axis, count in votes.items()}


def _most(count: Counter[Role]) -> Role:
    return count.most_common(1)[0][0] if count else "whole"


def _role(weight: SSAValue, x: SSAValue, axis: str) -> Role:
    stored: AxisPlacement = on(unboxed(weight), axis)
    match on(weight, axis), on(x, axis):
        case Split(), _:
            return "tensor"
        case _, Split(0):
            return "data" if stored == B else "sharded data"
        case _, Split():
            return "sequence" if stored == B else "sharded data"
        case _:
            return "whole" if stored == B else "sharded data"
