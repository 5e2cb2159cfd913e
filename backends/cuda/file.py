"""The file around a CUDA kernel: header, helper functions, kernel and an extern "C" launcher."""

from __future__ import annotations

from irc.backends.cuda.functions import TYPES, expression, helpers_in
from irc.backends.cuda.pointwise import Pointwise
from irc.backends.cuda.rows import Rows
from irc.backends.cuda.simt import Simt
from irc.backends.cuda.tensor_core import TensorCore
from irc.kernels.form import Form
from irc.kernels.source import Source, identifier, quoted, wrapped
from irc.kernels.support import check_supported

PRELUDE = """
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif
// How a host starts a kernel; an emulator may define it otherwise.
#ifndef IRC_LAUNCH
#define IRC_LAUNCH(kernel, blocks, threads, stream, ...) \\
  kernel<<<blocks, threads, 0, stream>>>(__VA_ARGS__)
#endif
"""

LAUNCHER = """
// Run on device pointers, inputs then outputs, each aligned to 16 bytes; returns a cudaError_t.
extern "C" int launch(void* const* buffers, cudaStream_t stream) {
  for (int i = 0; i < {count}; ++i) {
    if ((unsigned long long)buffers[i] % 16) return (int)cudaErrorMisalignedAddress;
  }
  {start}
  return (int)cudaGetLastError();
}
"""


def emit_form(form: Form) -> str:
    """Return the file of a kernel."""
    check_supported(form, "CUDA", TYPES, expression)
    template = _template(form)
    name = identifier(form.name)
    body = Source("  ")
    arguments = ", ".join(_argument(form, i) for i in range(len(form.buffers)))
    head = (
        f'extern "C" __global__ void __launch_bounds__({template.threads})\n{name}({arguments}) {{'
    )
    with body.block(head, "}"):
        if template.blocks:
            template.emit(body)
    text = str(body)
    return (
        _header(form, template)
        + PRELUDE
        + helpers_in(text)
        + "\n"
        + text
        + _launcher(form, template, name)
    )


def _template(form: Form) -> Pointwise | Rows | Simt | TensorCore:
    if form.template == "matmul":
        return TensorCore(form) if TensorCore.fits(form) else Simt(form)
    return Rows(form) if form.num_parallel < len(form.sizes) else Pointwise(form)


def _argument(form: Form, index: int) -> str:
    constant = "const " if index < form.num_inputs else ""
    return f"{constant}{TYPES[form.buffers[index].dtype]}* __restrict__ {form.buffer_name(index)}"


def _header(form: Form, template: Pointwise | Rows | Simt | TensorCore) -> str:
    head = Source("  ")
    kind = type(template).__name__
    head.line(f"// A kernel that irc made from the template {kind}.")
    head.line("// nvcc -std=c++17 -O3 -fmad=false -arch=sm_90a -shared -Xcompiler -fPIC kernel.cu")
    head.line(f"// space: {_sizes(form.parallel)} tasks, {_sizes(form.reduced)} reduced")
    head.line(f"// mapping: {form.mapping}")
    head.line(f"// refined to threads: {template.mapping}")
    head.line(f"// from: {quoted(form.loc)}")
    for line in wrapped([quoted(source) for source in form.sources]):
        head.line(f"// fuses: {line}")
    return str(head)


def _sizes(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes)) or "1"


def _launcher(form: Form, template: Pointwise | Rows | Simt | TensorCore, name: str) -> str:
    casts = [
        f"({'const ' if i < form.num_inputs else ''}{TYPES[b.dtype]}*)buffers[{i}]"
        for i, b in enumerate(form.buffers)
    ]
    call = f"IRC_LAUNCH({name}, {template.blocks}, {template.threads}, stream, {', '.join(casts)});"
    start = call if template.blocks else "// There are no tasks."
    return LAUNCHER.replace("{count}", str(len(form.buffers))).replace("{start}", start)
