"""Template ``foreach``: one pointwise body for the tensors of many parts, in one parallel region.

The body is written once, as a function that takes its number of points when it runs. Around it, a
thread finds its chunks, counted over all parts, and calls the body for what it has of each part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from irc.backends.cpu.features import Features
from irc.backends.cpu.loops.nest import Access, Nest, Step, read
from irc.backends.cpu.loops.schedule import PARALLEL_NS, point_ns
from irc.backends.cpu.vector.builder import PTR, Operand
from irc.dialects.size import symbol
from irc.dialects.task import KernelOp
from irc.dialects.types import ITEM_BYTES
from irc.kernels.foreach import first_chunks

POINTS = "n"


@dataclass(frozen=True)
class Part:
    """What is the same for all parts of a kernel.

    Attributes:
        nest: the body over ``n`` points; its buffers are those of a part, inputs then outputs.
        items: bytes from an element to the next of each buffer; 0 where there is one in all.
        parallel: whether several threads pay.
    """

    nest: Nest
    items: tuple[int, ...]
    parallel: bool
    symbols: tuple[str, ...] = (POINTS,)

    @property
    def pointers(self) -> dict[int, Operand]:
        """Where the buffers are, as the body's function is given them."""
        return {i: Operand(PTR, f"%p{i}") for i in range(len(self.items))}

    @property
    def parameters(self) -> str:
        """Of the body's function; its last ones are as those of a kernel."""
        own = "".join(f"ptr %p{i}, " for i in range(len(self.items)))
        return f"{own}i64 %thread, i64 %threads, ptr %scratch, ptr %sizes"


def read_part(kernel: KernelOp, features: Features) -> Part:
    """Return the body of a kernel as a nest over any number of points."""
    place = {kernel.position(arg): i for i, arg in enumerate(kernel.part_args(0))}
    whole, points = read(kernel), symbol(POINTS)

    def open_access(access: Access) -> Access:
        size = points if any(access.strides) else access.size
        return replace(access, buffer=place[access.buffer], size=size)

    def open_step(step: Step) -> Step:
        return step if step.access is None else replace(step, access=open_access(step.access))

    steps = tuple(map(open_step, whole.steps))
    items = [0] * len(place)
    for step in steps:
        if step.access is not None and any(step.access.strides):
            items[step.access.buffer] = ITEM_BYTES[step.access.dtype]
    lanes = features.vector_bytes // 4
    enough = sum(kernel.part_lengths) * point_ns(whole, 0, lanes) > PARALLEL_NS
    nest = replace(whole, extents=(points,), steps=steps)
    return Part(nest, tuple(items), enough and _chunks(kernel)[-1] > 1)


def _chunks(kernel: KernelOp) -> tuple[int, ...]:
    return first_chunks(kernel.part_lengths, kernel.tile_sizes["chunk"])


def write_parts(kernel: KernelOp, part: Part) -> str:
    """Return the function that hands out the chunks, and the tables that it reads."""
    name, lengths, chunks = kernel.sym_name.data, kernel.part_lengths, _chunks(kernel)
    pointers, arguments = _part_pointers(kernel, part)
    return _PARTS.format(
        name=name,
        bounds=_table(f"{name}.first", chunks),
        lengths=_table(f"{name}.length", lengths),
        count=len(lengths),
        more=len(lengths) + 1,
        total=chunks[-1],
        chunk=kernel.tile_sizes["chunk"],
        pointers="\n".join(pointers),
        arguments=arguments,
    )


def _table(name: str, values: Sequence[int]) -> str:
    numbers = ", ".join(f"i64 {value}" for value in values)
    return f'@"{name}" = private constant [{len(values)} x i64] [{numbers}]'


def _part_pointers(kernel: KernelOp, part: Part) -> tuple[list[str], str]:
    """Return the lines that find the buffers of part ``%p``, and the arguments that they make."""
    inputs, count = kernel.num_inputs.value.data, len(kernel.part_lengths)
    part_inputs = inputs // count
    part_outputs = len(part.items) - part_inputs
    lines: list[str] = []
    for i, item in enumerate(part.items):
        step, start = (
            (part_inputs, i) if i < part_inputs else (part_outputs, inputs + i - part_inputs)
        )
        lines += [
            f"  %s{i} = mul i64 %p, {step}",
            f"  %a{i} = add i64 %s{i}, {start}",
            f"  %w{i} = getelementptr ptr, ptr %args, i64 %a{i}",
            f"  %b{i} = load ptr, ptr %w{i}, align 8",
            f"  %o{i} = mul i64 %start, {item}",
            f"  %x{i} = getelementptr i8, ptr %b{i}, i64 %o{i}",
        ]
    return lines, ", ".join(f"ptr %x{i}" for i in range(len(part.items)))


# A thread has chunks %low to %high of all; of part %p, whose first is %first, it does those from
# %begin to %end.
_PARTS = """
{bounds}
{lengths}
define void @"{name}"(ptr %args, i64 %thread, i64 %threads, ptr %scratch) {{
entry:
  %size = alloca i64, align 8
  %before = mul i64 %thread, {total}
  %low = udiv i64 %before, %threads
  %following = add i64 %thread, 1
  %after = mul i64 %following, {total}
  %high = udiv i64 %after, %threads
  br label %parts
parts:
  %p = phi i64 [ 0, %entry ], [ %p1, %next ]
  %p1 = add i64 %p, 1
  %wfirst = getelementptr [{more} x i64], ptr @"{name}.first", i64 0, i64 %p
  %first = load i64, ptr %wfirst, align 8
  %wlast = getelementptr [{more} x i64], ptr @"{name}.first", i64 0, i64 %p1
  %last = load i64, ptr %wlast, align 8
  %later = icmp sgt i64 %low, %first
  %begin = select i1 %later, i64 %low, i64 %first
  %sooner = icmp slt i64 %high, %last
  %end = select i1 %sooner, i64 %high, i64 %last
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %one, label %next
one:
  %skipped = sub i64 %begin, %first
  %start = mul i64 %skipped, {chunk}
  %done = sub i64 %end, %first
  %whole = mul i64 %done, {chunk}
  %wlength = getelementptr [{count} x i64], ptr @"{name}.length", i64 0, i64 %p
  %length = load i64, ptr %wlength, align 8
  %cut = icmp slt i64 %length, %whole
  %stop = select i1 %cut, i64 %length, i64 %whole
  %points = sub i64 %stop, %start
  store i64 %points, ptr %size, align 8
{pointers}
  call void @"{name}.part"({arguments}, i64 0, i64 1, ptr %scratch, ptr %size)
  br label %next
next:
  %more = icmp slt i64 %p1, {count}
  br i1 %more, label %parts, label %finished
finished:
  ret void
}}
"""
