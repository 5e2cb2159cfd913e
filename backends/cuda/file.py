"""The file around a CUDA kernel: header, helper functions, kernels and an extern "C" launcher."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Protocol

from irc.backends.cuda.attention import Attention
from irc.backends.cuda.attention_backward import AttentionBackward
from irc.backends.cuda.attention_backward_tiles import AttentionBackwardTiles
from irc.backends.cuda.attention_code import read_attention
from irc.backends.cuda.attention_tiles import AttentionTiles
from irc.backends.cuda.driver import Plain, emit_main, without_contractions
from irc.backends.cuda.foreach import TABLE, Foreach
from irc.backends.cuda.functions import TYPES, expression, helpers_in
from irc.backends.cuda.hopper import Hopper
from irc.backends.cuda.hopper_instructions import hopper_helpers
from irc.backends.cuda.launch_table import (
    ADDRESSES,
    PARTIAL,
    Argument,
    Launch,
    LaunchTable,
    MapSpec,
    emit_launcher,
)
from irc.backends.cuda.packed import TEMPLATES, Packed
from irc.backends.cuda.packed_tiles import PackedTiles
from irc.backends.cuda.pointwise import Pointwise
from irc.backends.cuda.rows import Rows
from irc.backends.cuda.scalar import INDEX
from irc.backends.cuda.simt import Simt
from irc.backends.cuda.skinny import Skinny
from irc.backends.cuda.split import SumOfParts
from irc.backends.cuda.tensor_core import TensorCore
from irc.dialects.mapping import TaskMapping
from irc.dialects.task import KernelOp
from irc.kernels.form import Form, Read, number, read
from irc.kernels.gpu.run_time import RunTimeSizes, for_any_sizes
from irc.kernels.source import Source, identifier, quoted, wrapped
from irc.kernels.support import check_supported

PRELUDE = """
#ifdef __CUDACC__
%s#ifdef __CUDACC_RTC__
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif
// An argument; memory of a size that the launch chooses; how a host starts a kernel: an emulator
// may define them otherwise.
#define IRC_POINTER(type) type* __restrict__
#define IRC_DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]
#define IRC_LAUNCH(kernel, blocks, threads, shared, stream, ...) \\
  do { \\
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared); \\
    kernel<<<blocks, threads, shared, stream>>>(__VA_ARGS__); \\
  } while (0)
#endif
"""
POSITIONS = """
// Sizes, and positions in buffers; with IRC_WIDE for those that pass 2^31.
#ifdef IRC_WIDE
typedef long long irc_index;
#else
typedef int irc_index;
#endif
"""
MAIN_BEGINS = "#ifdef IRC_MAIN"
HALVES = "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n"
"""Left out where no value is a half: reading them takes longer than compiling most kernels."""


class Template(Protocol):
    """What makes the code of a kernel."""

    threads: int
    blocks: int

    @property
    def mapping(self) -> TaskMapping:
        """From blocks down to what a thread does."""
        ...

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        ...


def emit_kernel(kernel: KernelOp, arch: int | None = None) -> str:
    """Return the file of a kernel.

    Args:
        kernel: the kernel.
        arch: compute capability as a number; that of the kernel's schedule by default.

    Raises:
        IrcError: ``op-unsupported``, with everything that CUDA C++ cannot express here.
    """
    if kernel.symbols:
        return for_any_sizes(kernel.symbols, "/", lambda sizes: _emit(kernel, arch, sizes))
    return _emit(kernel, arch, number)


def _emit(kernel: KernelOp, arch: int | None, sizes: Read) -> str:
    form, template = form_and_template(kernel, arch, sizes)
    name = identifier(form.name)
    functions = [_function(form, template, name, partial="float")]
    if parts_of(template) > 1:
        meeting = SumOfParts(form, parts_of(template))
        functions.append(_function(form, meeting, f"{name}_sum", partial="const float"))
    table = table_of(form, template, name)
    text, launcher, main = "\n".join(functions), emit_launcher(table), _main(form)
    code = helpers_in(text + main) + hopper_helpers(text + launcher) + "\n" + text + launcher
    halves = any(kind in code for kind in ("__half", "__nv_bfloat16"))
    prelude = PRELUDE % (HALVES * halves) + POSITIONS * bool(form.symbols)
    return _header(form, template, table) + prelude + code + main


def _main(form: Form) -> str:
    """Return the stand-alone program, for kernels that are loops over steps of one space."""
    if not form.steps or form.lengths or form.symbols:
        return ""
    source = Source("  ")
    emit_main(source, form)
    plain = _function(form, Plain(form), "plain", partial="")
    return (
        f"\n{MAIN_BEGINS}\n#ifdef __CUDACC__\n{HALVES}#endif\n"
        "#include <cmath>\n#include <cstdio>\n#include <cstdlib>\n"
        f"{plain}\n{source}#endif\n"
    )


def shared_bytes(kernel: KernelOp, arch: int | None = None) -> int:
    """Return the bytes of shared memory that the launch of a kernel asks for."""
    sizes = RunTimeSizes(kernel.symbols, division="/") if kernel.symbols else number
    return shared_of(form_and_template(kernel, arch, sizes)[1])


def form_and_template(
    kernel: KernelOp, arch: int | None = None, sizes: Read = number
) -> tuple[Form, Template]:
    """Return a kernel as plain data, and what makes its code.

    Args:
        kernel: the kernel.
        arch: compute capability as a number; that of the kernel's schedule by default.
        sizes: what its sizes become.

    Raises:
        IrcError: ``op-unsupported``.
    """
    if kernel.template.data == "attention":
        form, attention = read_attention(kernel, sizes)
        tiles = AttentionTiles.fits(form, attention)
        return form, (AttentionTiles if tiles else Attention)(form, attention)
    if kernel.template.data == "attention_backward":
        form, attention = read_attention(kernel)
        tiles = AttentionBackwardTiles.fits(form, attention)
        return form, (AttentionBackwardTiles if tiles else AttentionBackward)(form, attention)
    form = read(kernel, sizes)
    if form.template in TEMPLATES:
        check_supported(without_contractions(form), "CUDA", TYPES, expression)
        weights = PackedTiles.fits(form)
        return form, Packed(form) if weights is None else PackedTiles(form, weights)
    check_supported(form, "CUDA", TYPES, expression)
    if form.lengths:
        return form, Foreach(form)
    arch = form.options.get("arch", 80) if arch is None else arch
    if form.template == "matmul":
        # A tensor map holds the numbers of sizes; whether wgmma pays depends on them.
        if arch == 90 and not form.symbols and Hopper.fits(form):
            return form, Hopper(form)
        if TensorCore.fits(form):
            return form, TensorCore(form, arch)
        return form, Skinny(form) if Skinny.fits(form) else Simt(form)
    return form, Rows(form) if form.num_parallel < len(form.sizes) else Pointwise(form)


def size_names(form: Form) -> tuple[str, ...]:
    """Return the parameters that are sizes."""
    return RunTimeSizes(form.symbols).names


def parts_of(template: Template) -> int:
    """Return among how many blocks the reduction of one tile is divided."""
    return template.parts if isinstance(template, TensorCore | Hopper) else 1


def shared_of(template: Template) -> int:
    """Return the bytes of shared memory that the launch asks for."""
    if isinstance(template, TensorCore | Hopper | Attention | AttentionBackward | PackedTiles):
        return template.shared_bytes
    return 0


def _function(form: Form, template: Template | SumOfParts, name: str, partial: str) -> str:
    body = Source("  ")
    arguments = [_argument(form, i) for i in range(len(form.buffers))]
    if isinstance(template, Foreach):
        arguments = [f"IRC_POINTER(const long long) {TABLE}"]
    if isinstance(template, Hopper):
        arguments += [f"const __grid_constant__ CUtensorMap {m.letter}_map" for m in template.maps]
    arguments += [f"const {INDEX} {size}" for size in size_names(form)]
    if isinstance(template, SumOfParts) or parts_of(template) > 1:
        arguments.append(f"IRC_POINTER({partial}) partial")
    chosen = isinstance(template, Hopper | AttentionTiles | AttentionBackward | Foreach)
    bounds = template.bounds if chosen else str(template.threads)
    head = f'extern "C" __global__ void __launch_bounds__({bounds})\n'
    with body.block(f"{head}{name}({', '.join(arguments)}) {{", "}"):
        if template.blocks:
            template.emit(body)
    return str(body)


def _argument(form: Form, index: int) -> str:
    return f"IRC_POINTER({_type(form, index)}) {form.buffer_name(index)}"


def _type(form: Form, index: int) -> str:
    constant = "const " if index < form.num_inputs else ""
    return f"{constant}{TYPES[form.buffers[index].dtype]}"


def _header(form: Form, template: Template, table: LaunchTable) -> str:
    head = Source("  ")
    kind = type(template).__name__
    head.line(f"// A kernel that irc made from the template {kind}.")
    code = "arch=compute_90a,code=sm_90a"
    head.line(
        f"// nvcc -std=c++17 -O3 -fmad=false -gencode={code} -shared -Xcompiler -fPIC kernel.cu"
    )
    head.line("// With -DIRC_MAIN -o kernel instead of -shared it runs, checks and times itself.")
    head.line(f"// space: {_sizes(form.parallel)} tasks, {_sizes(form.reduced)} reduced")
    head.line(f"// mapping: {form.mapping}")
    if not form.symbols:
        head.line(f"// refined to threads: {template.mapping}")
    for size, symbol in zip(size_names(form), form.symbols, strict=True):
        head.line(f"// {size} is the size {quoted(symbol)}, given at each launch")
    head.line(f"// from: {quoted(form.loc)}")
    for line in wrapped([quoted(source) for source in form.sources]):
        head.line(f"// fuses: {line}")
    head.line(table.line)
    return str(head)


def _sizes(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes)) or "1"


def table_of(form: Form, template: Template, name: str) -> LaunchTable:
    """Return how a kernel's functions are launched."""
    counts = [prod(form.reduced), *(buffer.size for buffer in form.buffers)]
    wide = tuple(counts) if form.symbols else ()
    table = LaunchTable(form.buffers, form.num_inputs, symbols=form.symbols, positions=wide)
    if not template.blocks:
        return table
    buffers: tuple[Argument, ...] = tuple(range(len(form.buffers)))
    if isinstance(template, Foreach):
        launch = Launch(name, template.blocks, template.threads, 0, (ADDRESSES,))
        return replace(table, head=template.head, launches=(launch,))
    maps: tuple[MapSpec, ...] = ()
    if isinstance(template, Hopper):
        maps = tuple(MapSpec.of(form, tensor) for tensor in template.maps)
    own = (*buffers, *(tensor.name for tensor in maps), *size_names(form))
    place = template.blocks, template.threads, shared_of(template)
    parts = parts_of(template)
    table = replace(table, arch=90 if maps else 0, maps=maps)
    if parts == 1:
        return replace(table, launches=(Launch(name, *place, own),))
    meeting = SumOfParts(form, parts)
    launches = (
        Launch(name, *place, (*own, PARTIAL)),
        Launch(f"{name}_sum", meeting.blocks, meeting.threads, 0, (*buffers, PARTIAL)),
    )
    return replace(table, partial_bytes=4 * parts * meeting.num_points, launches=launches)
