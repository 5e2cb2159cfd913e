"""Gradient kernels as the emitter calls them."""

from __future__ import annotations

from irc.backends.cpu.attention_backward.plan import plan_gradients
from irc.backends.cpu.attention_backward.writer import GradientWriter
from irc.backends.cpu.features import Features
from irc.backends.cpu.loops.units import pieces_of
from irc.backends.cpu.vector.builder import Builder, Operand
from irc.dialects.attention_backward import KernelAttentionBackwardOp
from irc.dialects.task import KernelOp
from irc.errors import InternalError


def write_attention_backward(
    b: Builder, kernel: KernelOp, features: Features, buffers: dict[int, Operand]
) -> tuple[int, bool, str, int]:
    """Write a gradient kernel; returns what :class:`irc.backends.cpu.emit.Written` has."""
    op = kernel.body.block.first_op
    if not isinstance(op, KernelAttentionBackwardOp):
        raise InternalError(f"kernel @{kernel.sym_name.data} has no task.attention_backward")
    plan = plan_gradients(op.form, features, max(2, kernel.task_mapping.num_workers))
    writer = GradientWriter(b, plan, buffers)
    writer.write()
    form = "pairs" if plan.pairs else "lanes"
    pieces = pieces_of(plan.blocks.products)
    return writer.size, plan.blocks.parallel, f"attention backward {form}", pieces
