"""LLVM IR text of a kernel: what a plan keeps as ``kernels/NAME.ll``.

The first line is a comment with JSON: everything that a caller of the function needs to know. The
function is ``void NAME(ptr args, i64 thread, i64 threads, ptr scratch)``: it does the share of one
thread, given an array of pointers to the kernel's buffers and scratch memory of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from irc.backends.cpu.attention.write import write_attention
from irc.backends.cpu.attention_backward.write import write_attention_backward
from irc.backends.cpu.convolution.amx_plan import by_tiles
from irc.backends.cpu.convolution.amx_writer import TilesWriter
from irc.backends.cpu.convolution.depthwise import DepthwiseWriter, read_depthwise
from irc.backends.cpu.convolution.outer import read_sums
from irc.backends.cpu.convolution.outer_groups import GroupsWriter, read_groups
from irc.backends.cpu.convolution.outer_writer import OuterWriter
from irc.backends.cpu.convolution.windows import read_windows
from irc.backends.cpu.convolution.writer import ConvolutionWriter
from irc.backends.cpu.features import Features, host
from irc.backends.cpu.indexing.write import write_along
from irc.backends.cpu.info import KernelInfo, from_text, to_text
from irc.backends.cpu.loops.crossed import CrossedWriter
from irc.backends.cpu.loops.crossing import find_crossing
from irc.backends.cpu.loops.foreach import read_part, write_parts
from irc.backends.cpu.loops.nest import Nest, analyse, read, simplify
from irc.backends.cpu.loops.rows import RowsWriter
from irc.backends.cpu.loops.schedule import least_points, make_schedule
from irc.backends.cpu.loops.steps import buffer_pointers, size_pointer
from irc.backends.cpu.loops.units import LEAST_PRODUCTS, pieces_of
from irc.backends.cpu.matmul.amx_product import AmxWriter
from irc.backends.cpu.matmul.grouped import read_grouped
from irc.backends.cpu.matmul.grouped_writer import GroupedWriter
from irc.backends.cpu.matmul.packed import PackedWriter
from irc.backends.cpu.matmul.panel_product import PanelWriter
from irc.backends.cpu.matmul.panels import PanelsWriter, read_panels
from irc.backends.cpu.matmul.product import make_tiling, recognise
from irc.backends.cpu.matmul.skinny import SkinnyWriter
from irc.backends.cpu.quantized.amx_plan import plan_tiles
from irc.backends.cpu.quantized.amx_writer import TileProductWriter
from irc.backends.cpu.quantized.depthwise import TapsWriter
from irc.backends.cpu.quantized.product import read_packed
from irc.backends.cpu.quantized.writer import PackedWeightsWriter
from irc.backends.cpu.recurrent.kernel import write_recurrent
from irc.backends.cpu.vector.builder import Builder, Operand
from irc.dialects.size import Dim, Size, UnboundSizeError
from irc.dialects.task import KernelOp, LoadOp
from irc.dialects.task_sizes import unproven
from irc.dialects.task_types import BufferType
from irc.dialects.types import ITEM_BYTES
from irc.errors import InternalError, IrcError

OPEN_CHUNKS = 32
"""Into how many parts a kernel is divided at most whose sizes are known only when it runs."""
OPEN = ("rows", "matmul", "attention", "convolution", "along", "recurrent")
"""Templates that take sizes when they run."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.$-]*")
_PREFIX = "; irc-kernel "


def emit(kernel: KernelOp, features: Features | None = None) -> str:
    """Return the text of a kernel, for this machine unless told otherwise."""
    features = features or host()
    if kernel.part_lengths:
        return _emit_foreach(kernel, features)
    b = _builder(features, kernel.symbols)
    b.entry += size_pointer() if b.symbols else []
    count = len(kernel.args)
    buffers = buffer_pointers(b, count)
    written = _write(b, kernel, features, buffers)
    template = written.template
    b.do("ret void")
    name = _name_of(kernel)
    streams = template in ("matmul panels", "matmul tiles", "convolution", "convolution tiles")
    weight = streamed_weight(kernel) if streams else (-1, 0)
    checks = template == "scatter"
    looks_up = any(isinstance(op, LoadOp) and op.index_strides for op in kernel.body.ops)
    checks |= looks_up and template != "grouped"  # whose indices are cut to what there is
    of_body = (written.scratch_bytes, written.parallel, template)
    info = KernelInfo(name, count, *of_body, *weight, checks, written.pieces)
    if b.symbols:
        info = _with_sizes(info, kernel, features, written.work)
    body = b.function(f'define void @"{name}"(ptr %args, i64 %thread, i64 %threads, ptr %scratch)')
    return "\n".join([_PREFIX + to_text(info), body, *b.functions.values(), ""])


def _builder(features: Features, symbols: Sequence[str]) -> Builder:
    """Return the builder of a kernel's function."""
    bfloat = features.tiles and features.dot_bf16
    return Builder(
        fma=features.fma,
        half=features.half,
        bfloat=bfloat,
        wide=features.masked,
        symbols=symbols,
    )


def _name_of(kernel: KernelOp) -> str:
    name = kernel.sym_name.data
    if not _NAME.fullmatch(name):
        raise InternalError(f"kernel name {name!r} is no identifier")
    return name


def _emit_foreach(kernel: KernelOp, features: Features) -> str:
    """Return the text of a kernel of several parts: one body for any length, and who does what."""
    name, part = _name_of(kernel), read_part(kernel, features)
    b = _builder(features, part.symbols)
    scratch = write_rows(b, part.nest, OPEN_CHUNKS, features, part.pointers).scratch_bytes
    b.do("ret void")
    info = KernelInfo(name, len(kernel.args), scratch, part.parallel, "foreach")
    inner = b.function(f'define internal void @"{name}.part"({part.parameters})')
    text = [_PREFIX + to_text(info), write_parts(kernel, part), inner, *b.functions.values(), ""]
    return "\n".join(text)


def run_time_sizes(
    kernel: KernelOp,
    features: Features | None = None,
    most: Mapping[str, int] | None = None,
) -> str | None:
    """Return why a kernel cannot take its sizes when it runs; None where it can.

    ``most`` are the greatest numbers of symbols that have one.

    Then :func:`emit` gives one text for all sizes: a call passes the values of ``kernel.symbols``.
    Else ``bind_kernel`` makes a kernel for each number.
    """
    if kernel.template.data not in OPEN:
        return f"template '{kernel.template.data}' is made for numbers"
    try:
        reason = unproven(kernel, most)
        if reason is None:
            emit(kernel, features)
    except UnboundSizeError as error:
        return str(error)
    return reason


def _with_sizes(
    info: KernelInfo, kernel: KernelOp, features: Features, work: Dim | None
) -> KernelInfo:
    """Add which sizes a kernel takes, and from how much work on threads pay."""
    work, least_work = prod(kernel.extents, start=1) if work is None else work, LEAST_PRODUCTS
    if info.template in ("rows", "crossed", "pack"):
        nest = simplify(read(kernel))
        schedule = make_schedule(nest, analyse(nest), OPEN_CHUNKS, features)
        least_work = least_points(nest, schedule.vector, schedule.lanes)
    named = tuple(dim for dim in dict.fromkeys(kernel.extents) if isinstance(dim, Size))
    return replace(info, sizes=kernel.symbols, work=work, least_work=least_work, extents=named)


def streamed_weight(kernel: KernelOp) -> tuple[int, int]:
    """Return which argument lies in panels, and its bytes."""
    for op in kernel.body.ops:
        if isinstance(op, LoadOp) and op.blocks is not None:
            buffer, kind = op.buffer, op.buffer.type
            assert isinstance(kind, BufferType)
            return kernel.position(buffer), kind.num_elements * ITEM_BYTES[kind.dtype]
    return -1, 0


class Written(NamedTuple):
    """What is said of a kernel by who wrote its body; see :class:`KernelInfo`.

    ``work``: multiplications, where they are not one for each point of its loops.
    """

    scratch_bytes: Dim
    parallel: bool
    template: str
    pieces: int = 1
    work: Dim | None = None


def _write(
    b: Builder, kernel: KernelOp, features: Features, buffers: dict[int, Operand]
) -> Written:
    workers = OPEN_CHUNKS if b.symbols else kernel.task_mapping.num_workers
    if kernel.template.data == "attention":
        return Written(*write_attention(b, kernel, features, buffers))
    if kernel.template.data == "attention_backward":
        return Written(*write_attention_backward(b, kernel, features, buffers))
    if kernel.template.data == "along":
        return Written(*write_along(b, kernel, features, buffers))
    if kernel.template.data == "recurrent":
        return Written(*write_recurrent(b, kernel, features, buffers))
    nest = simplify(read(kernel))
    if kernel.template.data == "packed" and (quantised := read_packed(nest)) is not None:
        if quantised.form == "taps":
            taps = TapsWriter(b, quantised, features, buffers)
            taps.write()
            return Written(taps.scratch_bytes, taps.parallel, "packed taps")
        if (tiles := plan_tiles(quantised, features)) is not None:
            exact = TileProductWriter(b, quantised, tiles, features, buffers)
            exact.write()
            return Written(exact.scratch_bytes, tiles.parallel, "packed tiles")
        weights = PackedWeightsWriter(b, quantised, features, buffers)
        weights.write()
        return Written(weights.scratch_bytes, weights.plan.parallel, f"packed {weights.plan.form}")
    if kernel.template.data == "grouped" and (rows := read_grouped(nest)) is not None:
        grouped = GroupedWriter(b, rows, features, buffers)
        grouped.write()
        return Written(grouped.scratch_bytes, grouped.parallel, "grouped")
    if kernel.template.data == "outer" and (groups := read_groups(nest)) is not None:
        by_group = GroupsWriter(b, groups, features, buffers)
        by_group.write()
        return Written(by_group.scratch_bytes, by_group.parallel, "outer groups")
    if kernel.template.data == "outer" and (sums := read_sums(nest)) is not None:
        outer = OuterWriter(b, sums, features, buffers)
        outer.write()
        return Written(outer.scratch_bytes, outer.parallel, "outer")
    if (panels := read_panels(nest)) is not None:
        PanelsWriter(b, panels, buffers).write()
        return Written(0, workers > 1, "pack")
    if kernel.template.data == "convolution" and (windows := read_windows(nest)) is not None:
        tiled = by_tiles(windows, features)
        convolution = (TilesWriter if tiled else ConvolutionWriter)(b, windows, features, buffers)
        convolution.write()
        name = "convolution tiles" if tiled else "convolution"
        return Written(convolution.scratch_bytes, convolution.parallel, name, convolution.pieces)
    if (windows := read_depthwise(nest, analyse(nest), features)) is not None:
        depthwise = DepthwiseWriter(b, windows, features, buffers)
        depthwise.write()
        return Written(depthwise.scratch_bytes, depthwise.parallel, "depthwise")
    product = recognise(nest)
    if product is None:
        return write_rows(b, nest, workers, features, buffers)
    tiling = make_tiling(product, features, workers)
    forms = {"packed": PackedWriter, "panels": PanelWriter, "tiles": AmxWriter}
    form = forms.get(tiling.form, SkinnyWriter)
    writer = form(b, product, analyse(nest), tiling, features, buffers)
    writer.write()
    name = f"matmul {tiling.form}"
    return Written(writer.scratch_bytes, tiling.parallel, name, writer.pieces)


def write_rows(
    b: Builder, nest: Nest, workers: int, features: Features, buffers: dict[int, Operand]
) -> Written:
    """Write a kernel by the rows template."""
    facts = analyse(nest)
    schedule = make_schedule(nest, facts, workers, features)
    least_work = least_points(nest, schedule.vector, schedule.lanes)
    pieces = pieces_of(prod(nest.extents, start=1), least_work)
    if (crossing := find_crossing(nest, schedule)) is not None:
        CrossedWriter(b, nest, facts, crossing, buffers).write(workers)
        parallel = schedule.parallel or workers > 1
        return Written(crossing.scratch_bytes, parallel, "crossed", pieces)
    RowsWriter(b, nest, facts, schedule, buffers).write()
    return Written(schedule.scratch_bytes, schedule.parallel, "rows", pieces)


def described(info: KernelInfo, text: str) -> str:
    """Return the text of a kernel that is written out, with its description."""
    return f"{_PREFIX}{to_text(info)}\n{text}"


def info_of(text: str) -> KernelInfo:
    """Read a kernel's description from its text.

    Raises:
        IrcError: ``kernel-invalid`` where the first line is not what :func:`emit` writes.
    """
    first = text.partition("\n")[0]
    try:
        info = from_text(first.removeprefix(_PREFIX))
    except (ValueError, TypeError):
        raise IrcError(
            "kernel-invalid", "a kernel file of the plan does not begin with its description"
        ) from None
    if not _NAME.fullmatch(info.name):
        raise IrcError("kernel-invalid", f"{info.name!r} is no name of a kernel function")
    return info
