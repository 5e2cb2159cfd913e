"""Template ``foreach``: one pointwise body for the tensors of many parts, in one launch.

A program does one chunk. Where it lies is in a table on the device, of 64-bit integers: the first
chunk of each part and their number, the length of each part, the address of each buffer.
"""

from __future__ import annotations

from irc.backends.triton.block import Block, Coordinate
from irc.backends.triton.functions import TYPES
from irc.kernels.arithmetic import power_of_two
from irc.kernels.foreach import first_chunks
from irc.kernels.form import Form
from irc.kernels.source import Source

BLOCK = 1024
"""Elements that a program holds at once."""


class Foreach:
    """The chunks of a kernel of several parts, and the code for one of them."""

    num_warps = 4
    num_stages = 1
    parameters = "table, ALIGNMENT: tl.constexpr"

    def __init__(self, form: Form) -> None:
        self.form, self.chunk = form, form.options["chunk"]
        self.parts = len(form.lengths)
        self.first = first_chunks(form.lengths, self.chunk)
        self.num_warps = min(form.options.get("num_warps", self.num_warps), 8)
        self.block = min(BLOCK, self.chunk)
        self.grid = (self.first[-1],)

    @property
    def mapping(self) -> str:
        """The mapping as it is launched: chunks of one part each."""
        return f"spatial({self.grid[0]}) * repeat({self.chunk}), no chunk in two parts"

    @property
    def head(self) -> tuple[int, ...]:
        """What stands in the table before the addresses."""
        return (*self.first, *self.form.lengths)

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        parts, wide = self.parts, power_of_two(self.parts + 1)
        source.line("pid = tl.program_id(0)")
        source.line(f"every = tl.arange(0, {wide})")
        source.line(f"firsts = tl.load(table + every, mask=every < {parts}, other={2**62})")
        source.line("part = tl.sum((firsts <= pid).to(tl.int32), 0) - 1")
        source.line(f"start = (pid - tl.load(table + part)) * {self.chunk}")
        source.line(f"length = tl.load(table + {parts + 1} + part)")
        self._pointers(source)
        with source.block(f"if start + {self.chunk} <= length:"):
            self._chunk(source, whole=True)
        with source.block("else:"):
            self._chunk(source, whole=False)

    def _pointers(self, source: Source) -> None:
        """Append where the buffers of the part are."""
        form, at = self.form, len(self.head)
        inputs = form.num_inputs // self.parts
        outputs = (len(form.buffers) - form.num_inputs) // self.parts
        for index in (*range(inputs), *range(form.num_inputs, form.num_inputs + outputs)):
            step = inputs if index < inputs else outputs
            kind = f"tl.pointer_type({TYPES[form.buffers[index].dtype]})"
            address = f"tl.load(table + {at + index} + part * {step})"
            text = f"tl.multiple_of({address}.to({kind}), ALIGNMENT)"
            source.line(f"{form.buffer_name(index)} = {text}")

    def _chunk(self, source: Source, *, whole: bool) -> None:
        """Append the loop over a chunk; one that is whole needs no masks."""
        with source.block(f"for step in range(0, {self.chunk}, {self.block}):"):
            source.line(f"i0 = start + step + tl.arange(0, {self.block})")
            if not whole:
                source.line("m0 = i0 < length")
            masks = {0: None if whole else "m0"}
            Block(self.form, source, {0: Coordinate("i0", 0)}, masks, 1).emit(self.form.steps)
