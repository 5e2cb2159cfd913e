"""Attention kernels as the emitter calls them."""

from __future__ import annotations

from irc.backends.cpu.attention.amx_lanes import AmxWriter
from irc.backends.cpu.attention.amx_tiles import plan_amx, suits_amx
from irc.backends.cpu.attention.blocks import plan_attention
from irc.backends.cpu.attention.few import FewWriter, suits_few
from irc.backends.cpu.attention.lanes import LanesWriter
from irc.backends.cpu.features import Features
from irc.backends.cpu.loops.units import pieces_of
from irc.backends.cpu.vector.builder import Builder, Operand
from irc.dialects.attention import KernelAttentionOp
from irc.dialects.size import Dim
from irc.dialects.task import KernelOp
from irc.errors import InternalError

OPEN_WORKERS = 32
"""Among how many the work is divided at most where sizes are known only at run time."""


def write_attention(
    b: Builder, kernel: KernelOp, features: Features, buffers: dict[int, Operand]
) -> tuple[int, bool, str, int, Dim]:
    """Write an attention kernel; returns what :class:`irc.backends.cpu.emit.Written` has."""
    op = kernel.body.block.first_op
    if not isinstance(op, KernelAttentionOp):
        raise InternalError(f"kernel @{kernel.sym_name.data} has no task.attention")
    workers = OPEN_WORKERS if kernel.symbols else kernel.task_mapping.num_workers
    plan = plan_attention(op.form, features, workers)
    if suits_few(plan):
        name, writer = "few", FewWriter(b, plan, buffers)
    elif suits_amx(plan):
        name, writer = "tiles", AmxWriter(b, plan_amx(plan), buffers)
    else:
        name, writer = "lanes", LanesWriter(b, plan, buffers)
    writer.write()
    # Where a head's keys and values are packed first, each part of it would do that again.
    packs = isinstance(writer, LanesWriter) and writer.pairs
    pieces = 1 if packs else pieces_of(plan.products)
    return writer.size, plan.parallel, f"attention {name}", pieces, plan.products
