"""Kernels that take sizes when they run: their parameters, and the tables of their files.

Such a kernel has the parameters ``N0``, ``N1`` after its buffers, and ``INDEX``, the type of
positions: 64 bits where a call's sizes need them, which is another compilation.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from irc.kernels.form import Form
from irc.kernels.gpu.run_time import RunTimeSizes
from irc.kernels.source import Source

EXAMPLES = (101, 103, 107, 109)
"""Sizes that the main of a kernel runs it at."""
WIDE = 2**31 - 2**20
"""Positions from which on 32 bits are too few, beside the rest of a tile."""

LAUNCH = '''

def launch(*given):
    """Run the kernel on contiguous tensors, inputs and outputs, and on its sizes."""
    buffers, sizes = given[:NUM_BUFFERS], given[NUM_BUFFERS:]
    index = tl.int64 if is_wide(*sizes) else tl.int32
    if grid(*sizes)[0]:
        {name}[grid(*sizes)](*buffers, *sizes, INDEX=index, **OPTIONS)

'''


def size_names(form: Form) -> tuple[str, ...]:
    """Return the parameters that are sizes."""
    return RunTimeSizes(form.symbols).names


def as_index(form: Form) -> str:
    """Return the conversion of a position that may need 64 bits."""
    if form.symbols:
        return ".to(INDEX)"
    return ".to(tl.int64)" if form.is_wide else ""


def size_tables(
    form: Form, blocks: int, buffers: Iterator[str], *, has_strides: bool
) -> Iterator[str]:
    """Yield the functions of sizes of a kernel's file.

    Args:
        form: with symbols.
        blocks: programs of the grid.
        buffers: the rows that describe them.
        has_strides: whether addresses hold products of sizes.
    """
    parameters = ", ".join(size_names(form))
    counts = [prod(form.reduced), *(buffer.size for buffer in form.buffers)]
    yield f"NUM_BUFFERS = {len(form.buffers)}"
    yield f"EXAMPLE = {EXAMPLES[: len(form.symbols)]!r}"
    yield "# True where addresses hold products of sizes: multiples of 16 then load wider."
    yield f"HAS_STRIDES = {has_strides}"
    functions = {
        "grid": [f"return ({blocks},)"],
        "is_wide": [f"return max({', '.join(map(str, counts))}) >= {WIDE}"],
        "described": ["return (", *(f"    {row}" for row in buffers), ")"],
    }
    for name, lines in functions.items():
        source = Source()
        with source.block(f"\n\ndef {name}({parameters}):"):
            for line in lines:
                source.line(line)
        yield str(source).rstrip("\n")
    yield "\n"
