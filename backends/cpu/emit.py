"""LLVM IR text of a kernel: what a plan keeps as ``kernels/NAME.ll``.

The first line is a comment with JSON: everything that a caller of the function needs to know. The
function is ``void NAME(ptr args, i64 thread, i64 threads, ptr scratch)``: it does the share of one
thread, given an array of pointers to the kernel's buffers and scratch memory of its own.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from irc.backends.cpu.attention.write import write_attention
from irc.backends.cpu.convolution.depthwise import DepthwiseWriter, read_depthwise
from irc.backends.cpu.convolution.windows import read_windows
from irc.backends.cpu.convolution.writer import ConvolutionWriter
from irc.backends.cpu.features import Features, host
from irc.backends.cpu.loops.crossed import CrossedWriter, find_crossing
from irc.backends.cpu.loops.nest import Nest, analyse, read, simplify
from irc.backends.cpu.loops.rows import RowsWriter
from irc.backends.cpu.loops.schedule import make_schedule
from irc.backends.cpu.loops.steps import buffer_pointers
from irc.backends.cpu.matmul.packed import PackedWriter
from irc.backends.cpu.matmul.panel_product import PanelWriter
from irc.backends.cpu.matmul.panels import PanelsWriter, read_panels
from irc.backends.cpu.matmul.product import make_tiling, recognise
from irc.backends.cpu.matmul.skinny import SkinnyWriter
from irc.backends.cpu.quantized.product import read_packed
from irc.backends.cpu.quantized.writer import PackedWeightsWriter
from irc.backends.cpu.vector.builder import Builder, Operand
from irc.dialects.task import BufferType, KernelOp, LoadOp
from irc.dialects.types import ITEM_BYTES
from irc.errors import InternalError, IrcError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.$-]*")
_PREFIX = "; irc-kernel "


@dataclass(frozen=True)
class KernelInfo:
    """What a caller needs to know of a kernel.

    Attributes:
        name: the function.
        num_args: how many buffers it takes.
        scratch_bytes: scratch memory for each thread.
        parallel: whether several threads pay.
        template: which emitter wrote it.
        weight: the argument that threads read from end to end, each its share, if there is one;
            the kernel before asks for the beginning of each share.
        weight_bytes: its size.
        checks: whether it says that an index lay outside, in a word before its scratch memory.
    """

    name: str
    num_args: int
    scratch_bytes: int
    parallel: bool
    template: str
    weight: int = -1
    weight_bytes: int = 0
    checks: bool = False


def emit(kernel: KernelOp, features: Features | None = None) -> str:
    """Return the text of a kernel, for this machine unless told otherwise."""
    features = features or host()
    b = Builder(fma=features.fma, half=features.half)
    count = len(kernel.args)
    buffers = buffer_pointers(b, count)
    scratch, parallel, template = _write(b, kernel, features, buffers)
    b.do("ret void")
    name = kernel.sym_name.data
    if not _NAME.fullmatch(name):
        raise InternalError(f"kernel name {name!r} is no identifier")
    streams = template in ("matmul panels", "convolution")
    weight = streamed_weight(kernel) if streams else (-1, 0)
    checks = any(isinstance(op, LoadOp) and op.index_strides for op in kernel.body.ops)
    info = KernelInfo(name, count, scratch, parallel, template, *weight, checks)
    body = b.function(f'define void @"{name}"(ptr %args, i64 %thread, i64 %threads, ptr %scratch)')
    return "\n".join([_PREFIX + json.dumps(asdict(info)), body, *b.functions.values(), ""])


def streamed_weight(kernel: KernelOp) -> tuple[int, int]:
    """Return which argument lies in panels, and its bytes."""
    for op in kernel.body.ops:
        if isinstance(op, LoadOp) and op.blocks is not None:
            buffer, kind = op.inputs[0], op.inputs[0].type
            assert isinstance(kind, BufferType)
            return kernel.position(buffer), kind.num_elements * ITEM_BYTES[kind.dtype]
    return -1, 0


def _write(
    b: Builder, kernel: KernelOp, features: Features, buffers: dict[int, Operand]
) -> tuple[int, bool, str]:
    workers = kernel.task_mapping.num_workers
    if kernel.template.data == "attention":
        return write_attention(b, kernel, features, buffers)
    nest = simplify(read(kernel))
    if kernel.template.data == "packed" and (quantised := read_packed(nest)) is not None:
        weights = PackedWeightsWriter(b, quantised, features, buffers)
        weights.write()
        return weights.scratch_bytes, weights.plan.parallel, f"packed {weights.plan.form}"
    if (panels := read_panels(nest)) is not None:
        PanelsWriter(b, panels, buffers).write()
        return 0, workers > 1, "pack"
    if kernel.template.data == "convolution" and (windows := read_windows(nest)) is not None:
        convolution = ConvolutionWriter(b, windows, features, buffers)
        convolution.write()
        return convolution.scratch_bytes, convolution.parallel, "convolution"
    if (windows := read_depthwise(nest, analyse(nest), features)) is not None:
        depthwise = DepthwiseWriter(b, windows, features, buffers)
        depthwise.write()
        return depthwise.scratch_bytes, depthwise.parallel, "depthwise"
    product = recognise(nest)
    if product is None:
        return write_rows(b, nest, workers, features, buffers)
    tiling = make_tiling(product, features, workers)
    forms = {"packed": PackedWriter, "panels": PanelWriter}
    form = forms.get(tiling.form, SkinnyWriter)
    writer = form(b, product, analyse(nest), tiling, features, buffers)
    writer.write()
    return writer.scratch_bytes, tiling.parallel, f"matmul {tiling.form}"


def write_rows(
    b: Builder, nest: Nest, workers: int, features: Features, buffers: dict[int, Operand]
) -> tuple[int, bool, str]:
    """Write a kernel by the rows template; returns scratch bytes, parallel, the template's name."""
    facts = analyse(nest)
    schedule = make_schedule(nest, facts, workers, features)
    if (crossing := find_crossing(nest, schedule)) is not None:
        CrossedWriter(b, nest, facts, crossing, buffers).write(workers)
        return crossing.scratch_bytes, schedule.parallel or workers > 1, "crossed"
    RowsWriter(b, nest, facts, schedule, buffers).write()
    return schedule.scratch_bytes, schedule.parallel, "rows"


def info_of(text: str) -> KernelInfo:
    """Read a kernel's description from its text.

    Raises:
        IrcError: ``kernel-invalid`` where the first line is not what :func:`emit` writes.
    """
    first = text.partition("\n")[0]
    try:
        info = KernelInfo(**json.loads(first.removeprefix(_PREFIX)))
    except (ValueError, TypeError):
        raise IrcError(
            "kernel-invalid", "a kernel file of the plan does not begin with its description"
        ) from None
    if not _NAME.fullmatch(info.name):
        raise IrcError("kernel-invalid", f"{info.name!r} is no name of a kernel function")
    return info
