"""One kernel for many tensors of different sizes: NVIDIA apex calls it multi-tensor apply.

An optimiser does the same few operations to each of a hundred parameters. As one kernel each, most
are too small to fill a device, and each pays for its start. Here kernels whose bodies are the same,
point by point over memory that is walked from end to end, become the parts of one
(``task.kernel`` with ``lengths``). Its work is divided in chunks, and no chunk spans two parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

from xdsl.ir import Block, SSAValue

from irc.dialects.attributes import to_attribute, to_python
from irc.dialects.task import (
    KernelBodyOp,
    KernelConstantOp,
    KernelOp,
    KernelPointwiseOp,
    LoadOp,
    StoreOp,
)
from irc.dialects.task_types import BufferType
from irc.kernels.arithmetic import power_of_two
from irc.kernels.gpu.limits import GPUS, gpu
from irc.kernels.schedule import schedule

MAX_BUFFERS = 4096
"""Buffers of a kernel of parts: what a launch on the CPU passes."""
CPU_CHUNK = 4096
"""Elements of a chunk on the CPU: some 100 kB of an optimiser's tensors."""
GPU_CHUNK, MAX_GPU_CHUNK = 1024, 16384
"""Elements of a chunk on a GPU, which is one program: enough of them for several waves."""
WAVES = 16


@dataclass(frozen=True)
class Pointwise:
    """A kernel as what it does to one element.

    Attributes:
        key: equal for kernels that do the same, whatever their sizes.
        moving: for each buffer, whether it has an element for each point; else it has one in all.
        length: points.
    """

    key: str
    moving: tuple[bool, ...]
    length: int

    def fits(self, other: Pointwise) -> bool:
        """True where the two may be parts of one kernel; of one point, all buffers have one."""
        alike = self.moving == other.moving or 1 in (self.length, other.length)
        return self.key == other.key and alike


def pointwise_of(kernel: KernelOp) -> Pointwise | None:
    """Return what a kernel does to one element, None where it is no plain pointwise kernel.

    All that it touches must lie alike, without gaps: then the order of elements is no matter.
    """
    if kernel.template.data != "rows" or kernel.symbols:
        return None
    space = kernel.space_extents
    accesses = [op for op in kernel.body.block.ops if isinstance(op, LoadOp | StoreOp)]
    if kernel.num_parallel != len(space) or 0 in space or not accesses:
        return None
    if not all(_is_plain(op) for op in kernel.body.block.ops):
        return None
    places = [_steps(op, space) for op in accesses]
    walks = {steps for steps in places if any(steps)}
    if len(walks) > 1 or not all(_is_dense(steps, space) for steps in walks):
        return None
    moving: dict[SSAValue, bool] = {}
    for op, steps in zip(accesses, places, strict=True):
        buffer = op.buffer
        moves = any(steps)
        assert isinstance(buffer.type, BufferType)
        if moving.setdefault(buffer, moves) != moves:
            return None
        if buffer.type.num_elements != (prod(space) if moves else 1):
            return None
    if any(arg not in moving for arg in kernel.args):
        return None
    return Pointwise(_key(kernel), tuple(moving[arg] for arg in kernel.args), prod(space))


def _is_plain(op: object) -> bool:
    """True for an op that looks up no index and has neither borders nor blocks."""
    match op:
        case LoadOp():
            return not op.indices and op.blocks is None and op.bounds is None
        case StoreOp():
            return op.blocks is None
        case KernelConstantOp() | KernelPointwiseOp():
            return True
        case _:
            return False


def _steps(op: LoadOp | StoreOp, space: Sequence[int]) -> tuple[int, ...]:
    """Return the strides along dims of more than one point; an offset is no dense walk."""
    strides = [s for s, n in zip(op.strides, space, strict=True) if n > 1]
    return tuple(strides) if not op.offset else (-1, *strides)


def _is_dense(steps: Sequence[int], space: Sequence[int]) -> bool:
    """True where the points visit each element of a buffer once, in any order of dims.

    >>> _is_dense((1, 4), (4, 3)), _is_dense((4, 1), (4, 3))
    (True, False)
    """
    wide = [n for n in space if n > 1]
    pairs = sorted(zip(steps, wide, strict=False))
    expected = [*accumulate([n for _, n in pairs], lambda a, b: a * b, initial=1)][:-1]
    return len(steps) == len(wide) and [step for step, _ in pairs] == expected


def _key(kernel: KernelOp) -> str:
    number: dict[SSAValue, int] = {arg: i for i, arg in enumerate(kernel.args)}
    kinds = [arg.type.dtype for arg in kernel.args if isinstance(arg.type, BufferType)]
    lines = [f"{kernel.num_inputs.value.data} {kinds}"]
    for op in kernel.body.block.ops:
        assert isinstance(op, KernelBodyOp)
        attrs = {k: v for k, v in op.plain.items() if k not in ("offset", "strides", "id", "loc")}
        lines.append(f"{op.name} {[number[v] for v in op.inputs]} {sorted(attrs.items())}")
        for value in op.outputs:
            number[value] = len(number)
            lines.append(str(value.type))
    return "\n".join(lines)


def most_parts(kernel: KernelOp) -> int:
    """Return how many kernels like one may be parts of one."""
    return MAX_BUFFERS // len(kernel.args)


def join(kernels: Sequence[KernelOp], name: str, target: str) -> KernelOp:
    """Return one kernel that does what several do, each a part.

    Args:
        kernels: :meth:`Pointwise.fits` holds for all pairs; one kernel may come several times.
        name: of the result.
        target: what it is divided for.
    """
    pointwise = [pointwise_of(kernel) for kernel in kernels]
    plain = [one for one in pointwise if one is not None]
    assert len(plain) == len(kernels)
    # Of one point, it does not show which of its buffers has an element for each.
    like = max(range(len(kernels)), key=lambda i: plain[i].length > 1)
    first, moving = kernels[like], plain[like].moving
    count = first.num_inputs.value.data
    inputs = [arg.type for kernel in kernels for arg in kernel.args[:count]]
    outputs = [arg.type for kernel in kernels for arg in kernel.args[count:]]
    block = Block(arg_types=[*inputs, *outputs])
    own = (*block.args[:count], *block.args[len(inputs) :][: len(first.args) - count])
    values: dict[SSAValue, SSAValue] = dict(zip(first.args, own, strict=True))
    moves: dict[SSAValue, bool] = dict(zip(own, moving, strict=True))
    for op in first.body.block.ops:
        copy = op.clone(values)
        if isinstance(copy, LoadOp | StoreOp):
            buffer = copy.buffer
            copy.properties["offset"] = to_attribute(0)
            copy.properties["strides"] = to_attribute((int(moves[buffer]),))
        block.add_op(copy)
    lengths = [one.length for one in plain]
    total, chunk = sum(lengths), chunk_of(sum(lengths), target)
    return KernelOp.make(
        name,
        block,
        template="foreach",
        space=(total,),
        parallel=1,
        num_inputs=len(inputs),
        mapping=schedule("rows", (total,), 1, target).mapping,
        tile={"chunk": chunk},
        sources=list(dict.fromkeys(s for kernel in kernels for s in _sources(kernel))),
        lengths=lengths,
        loc=str(to_python(first.attributes["loc"])) if "loc" in first.attributes else "unknown",
    )


def _sources(kernel: KernelOp) -> list[str]:
    return [] if kernel.sources is None else [source.data for source in kernel.sources]


def chunk_of(points: int, target: str) -> int:
    """Return the elements of a chunk: a power of two.

    >>> chunk_of(124_000_000, "sm_90"), chunk_of(100_000, "sm_90"), chunk_of(100_000, "cpu")
    (16384, 1024, 4096)
    """
    if target not in GPUS:
        return CPU_CHUNK
    wanted = power_of_two(max(points // (WAVES * gpu(target).multiprocessors), 1))
    return min(max(wanted, GPU_CHUNK), MAX_GPU_CHUNK)


def first_chunks(lengths: Sequence[int], chunk: int) -> tuple[int, ...]:
    """Return the number of the first chunk of each part, and that of all chunks.

    >>> first_chunks((5, 8, 1), 4)
    (0, 2, 4, 5)
    """
    return tuple(accumulate((-(-length // chunk) for length in lengths), initial=0))
