"""Attention kernels as the emitter calls them."""

from __future__ import annotations

from irc.backends.cpu.attention.blocks import plan_attention
from irc.backends.cpu.attention.few import FewWriter, suits_few
from irc.backends.cpu.attention.lanes import LanesWriter
from irc.backends.cpu.features import Features
from irc.backends.cpu.vector.builder import Builder, Operand
from irc.dialects.attention import KernelAttentionOp
from irc.dialects.task import KernelOp
from irc.errors import InternalError


def write_attention(
    b: Builder, kernel: KernelOp, features: Features, buffers: dict[int, Operand]
) -> tuple[int, bool, str]:
    """Write an attention kernel; returns scratch bytes, parallel, the name of its form."""
    op = kernel.body.block.first_op
    if not isinstance(op, KernelAttentionOp):
        raise InternalError(f"kernel @{kernel.sym_name.data} has no task.attention")
    plan = plan_attention(op.form, features, kernel.task_mapping.num_workers)
    few = suits_few(plan)
    writer = FewWriter(b, plan, buffers) if few else LanesWriter(b, plan, buffers)
    writer.write()
    return writer.size, plan.parallel, f"attention {'few' if few else 'lanes'}"
