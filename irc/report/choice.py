"""Why a convolution is a kernel of irc's own or a library's call: what each would take.

Prices are those of the roofline, so arithmetic costs the same either way (both reach about nine
tenths of the peak, ``tests/benchmarks/convolution.py``); what differs is what follows. A library
writes the convolution's result, and each op behind it reads that and writes its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from irc.cluster.topology import Device
from irc.cost.roofline import roofline_s
from irc.dialects.flow import FlowOp, tensor
from irc.dialects.windows import ConvolutionOp
from irc.kernels.fusion.profit import tensor_bytes
from irc.kernels.holds import COMPUTE_OPS
from irc.ops.work import bytes_moved, flops
from irc.report.table import seconds

LIBRARY = {"cpu": "oneDNN", "triton": "cuDNN", "cuda": "cuDNN"}
"""What torch calls, by backend."""


def convolution_choice(
    kind: str,
    ops: Sequence[Operation],
    outputs: Sequence[SSAValue],
    device: Device,
    backend: str,
) -> str:
    """Say who computes the convolution of a group, and what both would take; else nothing.

    Args:
        kind: of the group: ``library`` or that of a kernel.
        ops: of the group, in order.
        outputs: what a kernel of the group stores.
        device: whose peak and bandwidth count.
        backend: of the plan.
    """
    compute = [op for op in ops if isinstance(op, FlowOp) and op.name in COMPUTE_OPS]
    if not any(isinstance(op, ConvolutionOp) for op in compute):
        return ""
    library = LIBRARY.get(backend, "the library")
    if kind == "library":
        return f"{library} through torch: irc has no kernel of convolutions for {backend}"
    theirs = sum(_alone_s(op, device) for op in compute)
    ours = _fused_s(compute, outputs, device)
    reason = "nothing follows it, so it stays in the segment of its neighbours"
    if len(compute) > 1:
        reason = "what follows it never leaves the registers"
    return f"irc's own kernel, {seconds(ours)}; {library} {seconds(theirs)}: {reason}"


def _alone_s(op: FlowOp, device: Device) -> float:
    """An op as a library runs it: operands read, result written."""
    dtype = tensor(op.outputs[0]).dtype
    return roofline_s(device, flops=flops(op), num_bytes=bytes_moved(op), dtype=dtype)


def _fused_s(ops: Sequence[FlowOp], outputs: Sequence[SSAValue], device: Device) -> float:
    """All ops as one kernel: what comes from outside is read once, and outputs are written."""
    inside = {value for op in ops for value in op.outputs}
    read = dict.fromkeys(v for op in ops for v in op.inputs if v not in inside)
    moved = sum(map(tensor_bytes, (*read, *outputs)))
    work = sum(flops(op) for op in ops)
    return roofline_s(device, flops=work, num_bytes=moved, dtype=tensor(outputs[0]).dtype)
