"""What a layout is to divide among the ranks of an axis, and each computes whole.

Shards of what is computed come out even. Of 3 heads over 2 ranks none is divided: a plan is there,
and its attention takes as long as on one rank. Nobody asked for that, so it is said.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp

from irc.dialects.builder import functions
from irc.dialects.flow import ContractOp, ExternOp, FlowOp, loc_of, phase_of
from irc.dialects.placement import B, Mesh
from irc.dialects.types import TensorType
from irc.dialects.whole_attention import AttentionOp
from irc.dialects.windows import ConvolutionOp
from irc.ops.work import flops
from irc.sharding.signatures import axis_signatures

HEAVY = (AttentionOp, ContractOp, ConvolutionOp, ExternOp)
"""Ops that layouts are there to divide."""
SMALL = 0.01
"""What has less than this part of all work is not worth a word."""
SHOWN = 3


class WholeWorkWarning(UserWarning):
    """A size keeps a layout from dividing what it is to divide."""


def whole_work(module: ModuleOp, mesh: Mesh, axes: Sequence[str], layout: str) -> str:
    """Say what each rank computes whole since an axis does not divide its sizes; empty: nothing.

    Args:
        module: level flow+sbp.
        mesh: of the plan.
        axes: that are to divide matrices.
        layout: its name.
    """
    heavy = [
        op
        for func in functions(module).values()
        for op in func.body.block.ops
        if isinstance(op, HEAVY) and phase_of(op) in ("", "forward")
    ]
    work = {op: flops(op) for op in heavy}
    least = SMALL * sum(work.values())
    said = dict.fromkeys(
        text
        for op in heavy
        for axis in axes
        if work[op] >= least and (text := _whole_on(op, mesh, axis))
    )
    if not said:
        return ""
    more = f" (and {len(said) - SHOWN} more)" if len(said) > SHOWN else ""
    return (
        f"layout '{layout}' leaves work whole to each rank: {'; '.join([*said][:SHOWN])}{more}. "
        "Sizes that the axis divides, or an axis of another size, would share it"
    )


def _whole_on(op: FlowOp, mesh: Mesh, axis: str) -> str:
    """Say that an op is computed whole by each rank of an axis, and which sizes are why."""
    count = mesh.size(axis)
    kinds = [v.type for v in (*op.inputs, *op.outputs) if isinstance(v.type, TensorType)]
    if count == 1 or any(k.placement is None or k.placement[axis] != B for k in kinds):
        return ""
    sizes = dict.fromkeys(s.size for s in axis_signatures(op) if s.split and s.size % count)
    if not sizes:
        return ""
    what = op.plain.get("target", op.short_name()).rpartition("::")[2]
    return f"{what} at {loc_of(op)}, as {axis}={count} does not divide {', '.join(map(str, sizes))}"
