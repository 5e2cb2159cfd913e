"""Which writer a kernel of ``task.recurrent`` has."""

from __future__ import annotations

from irc.backends.cpu.features import Features
from irc.backends.cpu.recurrent.byte_write import ByteWriter
from irc.backends.cpu.recurrent.write import Writer
from irc.backends.cpu.vector.builder import Builder, Operand
from irc.dialects.recurrent import KernelRecurrentOp
from irc.dialects.size import Dim
from irc.dialects.task import KernelOp
from irc.errors import InternalError


def write_recurrent(
    b: Builder, kernel: KernelOp, features: Features, buffers: dict[int, Operand]
) -> tuple[Dim, bool, str, int, Dim]:
    """Write a kernel of ``task.recurrent``; returns what ``Written`` of the emitter has."""
    op = kernel.body.block.first_op
    if not isinstance(op, KernelRecurrentOp):
        raise InternalError(f"kernel @{kernel.sym_name.data} has no task.recurrent")
    form = op.form
    writer = (ByteWriter if form.in_bytes else Writer)(b, form, features, buffers)
    writer.write()
    name = "recurrent bytes" if form.in_bytes else "recurrent"
    return writer.scratch_bytes, writer.parallel, name, 1, writer.work
