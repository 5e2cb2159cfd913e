"""Kernels along a dim as the emitter calls them."""

from __future__ import annotations

from irc.backends.cpu.features import Features
from irc.backends.cpu.indexing.lanes import LanesWriter, suits_lanes
from irc.backends.cpu.indexing.radix import RadixWriter
from irc.backends.cpu.indexing.rank import MOST_RANKED, RankWriter
from irc.backends.cpu.indexing.rows import AlongWriter
from irc.backends.cpu.indexing.scan import ScanWriter
from irc.backends.cpu.indexing.scatter import ScatterWriter
from irc.backends.cpu.indexing.select import FEW, MOST_SELECTED, SelectWriter
from irc.backends.cpu.vector.builder import Builder, Operand
from irc.dialects.along import AlongForm, KernelAlongOp
from irc.dialects.task import KernelOp
from irc.errors import InternalError


def writer_of(form: AlongForm) -> type[AlongWriter]:
    """Return what writes a kernel, by what it does and how long its rows are."""
    n, count = form.space[-1], form.places["y"].count
    match form.fn:
        case "scatter":
            return ScatterWriter
        case "scan":
            return LanesWriter if suits_lanes(form) else ScanWriter
        case _ if n <= MOST_RANKED:
            return RankWriter
        case _:
            return SelectWriter if count <= min(MOST_SELECTED, n // FEW) else RadixWriter


def write_along(
    b: Builder, kernel: KernelOp, features: Features, buffers: dict[int, Operand]
) -> tuple[int, bool, str]:
    """Write a kernel of ``task.along``; returns scratch bytes, parallel, the name of its form."""
    op = kernel.body.block.first_op
    if not isinstance(op, KernelAlongOp):
        raise InternalError(f"kernel @{kernel.sym_name.data} has no task.along")
    writer = writer_of(op.form)(b, op.form, features, buffers)
    writer.write()
    return writer.scratch_bytes, writer.parallel, op.form.fn
