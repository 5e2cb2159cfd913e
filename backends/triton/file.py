"""The file around a Triton kernel: header, helpers, kernel, launch and a main that runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Protocol

from irc.backends.triton.attention import Attention
from irc.backends.triton.attention_backward import AttentionBackward
from irc.backends.triton.foreach import Foreach
from irc.backends.triton.functions import TYPES, expression, helpers_in
from irc.backends.triton.matmul import Matmul
from irc.backends.triton.packed import Packed
from irc.backends.triton.rows import Rows
from irc.backends.triton.sizes import LAUNCH as SIZES_LAUNCH
from irc.backends.triton.sizes import size_names, size_tables
from irc.dialects.attention import KernelAttentionOp
from irc.dialects.attention_backward import KernelAttentionBackwardOp
from irc.dialects.task import KernelOp
from irc.kernels.form import Form, Read, header, integer_bound, number, read
from irc.kernels.gpu.attention import with_sizes
from irc.kernels.gpu.run_time import for_any_sizes, has_sizes
from irc.kernels.source import Source, identifier, quoted, wrapped
from irc.kernels.support import check_supported

TORCH: dict[str, str] = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64",
    "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8", "i1": "bool",
}  # fmt: skip


class Template(Protocol):
    """How a kernel is divided, and the code of one program."""

    num_warps: int
    num_stages: int
    grid: tuple[int, ...]

    @property
    def mapping(self) -> str:
        """The mapping as it is launched."""
        ...

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        ...


PRODUCTS: Mapping[str, Callable[[Form], Template]] = {
    "matmul": Matmul,
    "packed": Packed,
    "grouped": Packed,
}
"""Templates that multiply."""

LAUNCH = '''

def launch(*buffers):
    """Run the kernel on contiguous tensors: its inputs, then its outputs."""
    if GRID[0]:
        {name}[GRID](*buffers, **OPTIONS)

'''

LAUNCH_TABLE = '''

def launch(*buffers):
    """Run the kernel on contiguous tensors: its inputs, then its outputs."""
    addresses = [buffer.data_ptr() for buffer in buffers]
    table = torch.tensor([*HEAD, *addresses], dtype=torch.int64, device=buffers[0].device)
    alignment = 1 if any(address % 16 for address in addresses) else 16
    {name}[GRID](table, ALIGNMENT=alignment, **OPTIONS)

'''

MAIN = '''
def main():
    """Run on random inputs and print a sum of each output."""
    torch.manual_seed(0)
    buffers, rows = [], {described}
    for name, size, dtype, high in rows:
        if dtype.is_floating_point:
            buffers.append(torch.randn(size).to(DEVICE, dtype))
        else:
            buffers.append(torch.randint(0, high, (size,)).to(DEVICE, dtype))
    launch(*buffers{sizes})
    for (name, *_), buffer in zip(rows[NUM_INPUTS:], buffers[NUM_INPUTS:]):
        print(name, buffer.double().sum().item())


if __name__ == "__main__":
    main()
'''


def emit_kernel(kernel: KernelOp) -> str:
    """Return the file of a kernel.

    Raises:
        IrcError: ``op-unsupported``, with everything that Triton cannot express.
    """
    if kernel.symbols:
        return for_any_sizes(kernel.symbols, "//", lambda sizes: _emit(kernel, sizes))
    return _emit(kernel, number)


def _emit(kernel: KernelOp, sizes: Read) -> str:
    (first, *_) = kernel.body.block.ops
    if isinstance(first, KernelAttentionOp):
        form = header(kernel, sizes)
        return _file(form, Attention(form, with_sizes(first.form, sizes)), "attention")
    if isinstance(first, KernelAttentionBackwardOp):
        form = header(kernel)
        return _file(form, AttentionBackward(form, first.form), "attention_backward")
    return emit_form(read(kernel, sizes))


def emit_form(form: Form) -> str:
    """Return the file of a kernel of loads, arithmetic and stores."""
    check_supported(form, "Triton", TYPES, expression, PRODUCTS)
    if form.lengths:
        return _file(form, Foreach(form), "foreach")
    kind = form.template if form.template in PRODUCTS else "rows"
    return _file(form, PRODUCTS.get(kind, Rows)(form), kind)


def _file(form: Form, template: Template, kind: str) -> str:
    name = identifier(form.name)
    body = Source()
    body.line("@triton.jit")
    names = ", ".join(form.buffer_name(i) for i in range(len(form.buffers)))
    names = template.parameters if isinstance(template, Foreach) else names
    if form.symbols:
        names = ", ".join([names, *size_names(form), "INDEX: tl.constexpr"])
    with body.block(f"def {name}({names}):"):
        if prod(template.grid):
            template.emit(body)
        else:
            body.line("pass")
    text = str(body)
    return (
        _header(form, template, kind)
        + helpers_in(text)
        + "\n\n"
        + text
        + _tables(form, template)
        + _launch(form).replace("{name}", name)
        + _main(form)
    )


def _launch(form: Form) -> str:
    if form.symbols:
        return SIZES_LAUNCH
    return LAUNCH_TABLE if form.lengths else LAUNCH


def _main(form: Form) -> str:
    described = "described(*EXAMPLE)" if form.symbols else "BUFFERS"
    sizes = ", *EXAMPLE" if form.symbols else ""
    return MAIN.replace("{described}", described).replace("{sizes}", sizes)


def _header(form: Form, template: Template, kind: str) -> str:
    head = Source()
    head.line(f'"""A {kind} kernel that irc made; run this file to try it on random inputs."""\n')
    head.line(f"# space: {_sizes(form.parallel)} tasks, {_sizes(form.reduced)} reduced")
    head.line(f"# mapping: {form.mapping}")
    head.line(f"# launched as: {template.mapping}")
    head.line(f"# from: {quoted(form.loc)}")
    for line in wrapped([quoted(source) for source in form.sources]):
        head.line(f"# fuses: {line}")
    for name, symbol in zip(size_names(form), form.symbols, strict=True):
        head.line(f"# {name} is the size {quoted(symbol)}, given at each launch")
    head.line("\nimport os\n")
    head.line("import torch\nimport triton\nimport triton.language as tl")
    head.line("from triton.language.extra import libdevice\n")
    return str(head)


def _sizes(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes)) or "1"


def _tables(form: Form, template: Template) -> str:
    tables = Source()
    tables.line("\n")
    if not form.symbols:
        tables.line(f"GRID = ({prod(template.grid)},)")
    # Contraction of a*b + c into one rounding is allowed inside tl.dot only.
    sizes = f'"num_warps": {template.num_warps}, "num_stages": {template.num_stages}'
    tables.line(f'OPTIONS = {{{sizes}, "enable_fp_fusion": False}}')
    tables.line(f'KERNEL = "{identifier(form.name)}"')
    tables.line(f"NUM_INPUTS = {form.num_inputs}")
    if isinstance(template, Foreach):
        tables.line("# What the kernel's table holds before the addresses of all buffers.")
        with tables.block("HEAD = (", ")"):
            for line in wrapped(list(map(str, template.head))):
                tables.line(f"{line},")
    tables.line('DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"')
    rows = _described(form)
    if form.symbols:
        strided = _has_strides(form, template)
        for line in size_tables(form, prod(template.grid), rows, has_strides=strided):
            tables.line(line)
        return str(tables)
    with tables.block("BUFFERS = (", ")"):
        for row in rows:
            tables.line(row)
    return str(tables)


def _described(form: Form) -> Iterator[str]:
    for index, buffer in enumerate(form.buffers):
        name, high = form.buffer_name(index), integer_bound(form, index)
        yield f'("{name}", {buffer.size}, torch.{TORCH[buffer.dtype]}, {high}),'


def _has_strides(form: Form, template: Template) -> bool:
    """True where some address holds a product with a size."""
    if isinstance(template, Attention):
        places = template.of.places.values()
        return any(has_sizes((*place.strides, place.offset)) for place in places)
    accesses = [step.access for step in form.steps if step.access]
    return any(has_sizes((*a.strides, a.offset, *a.index_strides)) for a in accesses)
