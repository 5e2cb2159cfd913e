"""One pointwise body for the tensors of many parts: a block does one chunk.

A launch has no room for the addresses of a thousand buffers: they lie in a table on the device, of
64-bit integers, after the first chunk of each part, their number, and the length of each part.
"""

from __future__ import annotations

from irc.backends.cuda.functions import BYTES, TYPES
from irc.backends.cuda.pointwise import THREADS, Pointwise
from irc.dialects.mapping import TaskMapping, compose, repeat, spatial
from irc.kernels.foreach import first_chunks
from irc.kernels.form import Form
from irc.kernels.source import Source

TABLE = "table"


class Foreach(Pointwise):
    """The launch of a kernel of several parts, and its code."""

    def __init__(self, form: Form) -> None:
        super().__init__(form)
        self.chunk, self.parts = form.options["chunk"], len(form.lengths)
        self.first = first_chunks(form.lengths, self.chunk)
        self.blocks, self.threads = self.first[-1], THREADS
        moving = [s.place.buffer for s in form.steps if s.access and any(s.place.strides)]
        widths = [BYTES[form.buffers[buffer].dtype] for buffer in moving]
        # Parts of one number each move nowhere: they have no neighbours to take along.
        self.vector = 16 // max(widths, default=16)

    @property
    def bounds(self) -> str:
        """Of the launch; with one block alone ptxas keeps all values in registers."""
        return f"{self.threads}, 1"

    @property
    def mapping(self) -> TaskMapping:
        """Blocks, threads and what a thread does, over the chunks of all parts as one dim."""
        turns = max(1, self.chunk // (self.threads * self.vector))
        return compose(
            spatial(self.blocks), repeat(turns), spatial(self.threads), repeat(self.vector)
        )

    @property
    def head(self) -> tuple[int, ...]:
        """What stands in the table before the addresses."""
        return (*self.first, *self.form.lengths)

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        source.line("int part = 0;")
        step = 1 << (self.parts - 1).bit_length()
        with source.block(f"for (int step = {step}; step; step /= 2) {{", "}"):
            source.line(
                f"if (part + step < {self.parts} && {TABLE}[part + step] <= blockIdx.x) "
                "part += step;"
            )
        source.line(f"const long long start = (blockIdx.x - {TABLE}[part]) * {self.chunk};")
        source.line(f"long long stop = {TABLE}[{self.parts + 1} + part];")
        source.line(f"if (stop > start + {self.chunk}) stop = start + {self.chunk};")
        addresses = self._pointers(source)
        # A caller's tensor may begin anywhere: then element by element.
        source.line(
            f"const long long whole = ({' | '.join(addresses)}) % 16 ? 0 "
            f": (stop - start) / {self.vector};"
        )
        loop = f"for (long long i = threadIdx.x; i < whole; i += {self.threads}) {{"
        with source.block(loop, "}"):
            source.line(f"const long long i0 = start / {self.vector} + i;")
            self._vectors(source, "i0")
        rest = f"long long i0 = start + whole * {self.vector} + threadIdx.x"
        with source.block(f"for ({rest}; i0 < stop; i0 += {self.threads}) {{", "}"):
            self._scalar(source).emit(self.form.steps)

    def _pointers(self, source: Source) -> list[str]:
        """Append where the buffers of the part are; return the addresses, as integers."""
        form, at, names = self.form, len(self.head), list[str]()
        inputs = form.num_inputs // self.parts
        outputs = (len(form.buffers) - form.num_inputs) // self.parts
        for index in (*range(inputs), *range(form.num_inputs, form.num_inputs + outputs)):
            step, constant = (inputs, "const ") if index < inputs else (outputs, "")
            kind, name = TYPES[form.buffers[index].dtype], form.buffer_name(index)
            source.line(f"const long long at_{name} = {TABLE}[{at + index} + part * {step}];")
            source.line(f"IRC_POINTER({constant}{kind}) {name} = ({constant}{kind}*)at_{name};")
            names.append(f"at_{name}")
        return names
