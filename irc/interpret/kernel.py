"""A kernel's body on many tasks at once: full values are [tasks, points], row values [tasks, 1]."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, cast

from xdsl.ir import SSAValue

from irc.dialects.along import KernelAlongOp
from irc.dialects.attention import KernelAttentionOp
from irc.dialects.attention_backward import KernelAttentionBackwardOp
from irc.dialects.flow import PointwiseOp, ReduceOp
from irc.dialects.recurrent import KernelRecurrentOp
from irc.dialects.task import (
    IndexOp,
    KernelBodyOp,
    KernelConstantOp,
    KernelContractOp,
    KernelOp,
    KernelPointwiseOp,
    KernelReduceOp,
    LoadOp,
    StoreOp,
    blocks_of,
    bound_rows,
)
from irc.dialects.task_types import ValueType
from irc.errors import InternalError
from irc.interpret.along import run_along
from irc.interpret.attention import run_attention
from irc.interpret.attention_backward import run_attention_backward
from irc.interpret.recurrent import run_recurrent
from irc.runtime import library
from irc.runtime.dtypes import dtypes
from irc.runtime.index_bounds import index_outside

if TYPE_CHECKING:
    import torch


def run_body(
    kernel: KernelOp,
    tasks: torch.Tensor,
    buffers: Sequence[torch.Tensor],
    counts: Sequence[torch.Tensor],
    dtype: torch.dtype | None,
) -> None:
    """Run the body for some tasks.

    Args:
        kernel: whose body runs.
        tasks: [tasks, parallel dims]; those outside the space are masked.
        buffers: flat, inputs then outputs.
        counts: one per output; counts the stores to each element.
        dtype: floats compute in it; None means their own, half types in float32.
    """
    import torch

    space, parallel = kernel.space_extents, kernel.num_parallel
    tasks = tasks[(tasks < torch.tensor(space[:parallel])).all(1)]
    if not len(tasks):
        return
    if isinstance(attention := kernel.body.block.first_op, KernelAttentionOp):
        run_attention(attention, tasks, buffers, counts, dtype)
        return
    if isinstance(gradient := kernel.body.block.first_op, KernelAttentionBackwardOp):
        run_attention_backward(gradient, tasks, buffers, counts, dtype)
        return
    if isinstance(along := kernel.body.block.first_op, KernelAlongOp):
        run_along(along, tasks, buffers, counts, dtype)
        return
    if isinstance(cell := kernel.body.block.first_op, KernelRecurrentOp):
        run_recurrent(cell, tasks, buffers, counts, dtype)
        return
    if kernel.part_lengths:
        _run_parts(kernel, tasks, buffers, counts, dtype)
        return
    points = torch.zeros((1, 0), dtype=torch.int64)
    if space[parallel:]:
        points = torch.cartesian_prod(*[torch.arange(n) for n in space[parallel:]])
        points = points.reshape(-1, len(space) - parallel)
    state = _State(kernel, tasks, points, buffers, counts, dtype)
    for op in kernel.body.block.ops:
        assert isinstance(op, KernelBodyOp)
        state.run(op)


def _run_parts(
    kernel: KernelOp,
    tasks: torch.Tensor,
    buffers: Sequence[torch.Tensor],
    counts: Sequence[torch.Tensor],
    dtype: torch.dtype | None,
) -> None:
    """Run the body on the buffers of each part, for the tasks that lie in it."""
    import torch

    place = {arg: i for i, arg in enumerate(kernel.args)}
    inputs, first, start = kernel.num_inputs.value.data, kernel.part_args(0), 0
    for part, length in enumerate(kernel.part_lengths):
        own = tasks[(tasks >= start).all(1) & (tasks < start + length).all(1)] - start
        start += length
        if not len(own):
            continue
        part_buffers, counted = list(buffers), list(counts)
        for like, arg in zip(first, kernel.part_args(part), strict=True):
            part_buffers[place[like]] = buffers[place[arg]]
            if place[arg] >= inputs:
                counted[place[like] - inputs] = counts[place[arg] - inputs]
        points = torch.zeros((1, 0), dtype=torch.int64)
        state = _State(kernel, own, points, part_buffers, counted, dtype)
        for op in kernel.body.block.ops:
            assert isinstance(op, KernelBodyOp)
            state.run(op)


class _State:
    """Values of the body, by SSA value."""

    def __init__(
        self,
        kernel: KernelOp,
        tasks: torch.Tensor,
        points: torch.Tensor,
        buffers: Sequence[torch.Tensor],
        counts: Sequence[torch.Tensor],
        dtype: torch.dtype | None,
    ) -> None:
        self.kernel, self.tasks, self.points, self.dtype = kernel, tasks, points, dtype
        self.buffers: dict[SSAValue, torch.Tensor] = dict(zip(kernel.args, buffers, strict=True))
        self.counts: dict[SSAValue, torch.Tensor] = dict(
            zip(kernel.args[kernel.num_inputs.value.data :], counts, strict=True)
        )
        self.values: dict[SSAValue, torch.Tensor] = {}

    def compute_dtype(self, name: str) -> torch.dtype:
        """The dtype in which a kernel holds a value."""
        import torch

        stated = dtypes()[name]
        if not stated.is_floating_point:
            return stated
        return self.dtype or (torch.float32 if stated.itemsize == 2 else stated)

    def run(self, op: KernelBodyOp) -> None:
        """Run one op."""
        if isinstance(op, StoreOp):
            self._store(op)
            return
        if op.name == "task.load" and _feeds_contraction(op):
            return  # read by distinct rows, in _rows
        kind = op.outputs[0].type
        assert isinstance(kind, ValueType)
        value = getattr(self, op.name.replace("task.", "_"))(op, kind)
        self.values[op.outputs[0]] = value.to(self.compute_dtype(kind.dtype))

    def address(self, op: LoadOp | StoreOp, *, full: bool) -> torch.Tensor:
        """[tasks, points or 1] of element numbers."""
        rows = self._along(op, self.tasks, 0)[:, None] + op.offset
        return rows + self._inner(op) if full else rows

    def _inner(self, op: LoadOp | StoreOp) -> torch.Tensor:
        """[1, points] of element numbers from the task's first."""
        return self._along(op, self.points, self.kernel.num_parallel)[None, :]

    def _along(self, op: LoadOp | StoreOp, indices: torch.Tensor, first: int) -> torch.Tensor:
        """Sum of strides times indices, [rows], over the dims from ``first`` on."""
        import torch

        total = torch.zeros(len(indices), dtype=torch.int64)
        for dim in range(first, first + indices.shape[1]):
            total += self._step(op, dim, indices[:, dim - first])
        return total

    def _step(self, op: LoadOp | StoreOp, dim: int, index: torch.Tensor) -> torch.Tensor:
        stride = op.strides[dim]
        if dim not in (blocks := blocks_of(op)):
            return index * stride
        size, inner = blocks[dim]
        return index // size * stride + index % size * inner

    def _load(self, op: LoadOp, kind: ValueType) -> torch.Tensor:
        address = self.address(op, full=kind.is_full)
        rows = zip(op.indices, op.index_strides or (), op.index_counts or (), strict=True)
        for operand, stride, count in rows:
            index = self.values[operand].to(address.dtype)
            if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < count:
                raise index_outside(
                    f"an index lies outside the {count} elements that kernel"
                    f" @{self.kernel.sym_name.data} selects from"
                )
            address = address + index * stride
        return self._within(op, address, self.tasks)

    def _inside(self, op: LoadOp, tasks: torch.Tensor) -> torch.Tensor:
        """[tasks, points] of whether a load touches memory."""
        import torch

        space, parallel = self.kernel.space_extents, self.kernel.num_parallel
        inside = torch.ones((len(tasks), len(self.points)), dtype=torch.bool)
        for size, start, along in bound_rows(op.bounds or (), len(space)):
            outer = torch.tensor(along[:parallel], dtype=torch.int64)
            inner = torch.tensor(along[parallel:], dtype=torch.int64)
            at = (tasks * outer).sum(1)[:, None] + (self.points * inner).sum(1)[None, :] + start
            inside &= (at >= 0) & (at < size)
        return inside

    def _within(self, op: LoadOp, address: torch.Tensor, tasks: torch.Tensor) -> torch.Tensor:
        """Read what lies within the bounds of a load, and its fill elsewhere."""
        import torch

        if op.bounds is None or op.fill is None:
            return self._read(op.buffer, address)
        inside = self._inside(op, tasks)[:, : address.shape[1]]
        memory, fill = self.buffers[op.buffer], op.fill[0]
        elements = torch.full(inside.shape, fill, dtype=memory.dtype)
        elements[inside] = self._read(op.buffer, address.expand(inside.shape)[inside])
        return elements

    def _read(self, buffer: SSAValue, address: torch.Tensor) -> torch.Tensor:
        memory = self.buffers[buffer]
        if address.numel() and not 0 <= int(address.min()) <= int(address.max()) < memory.numel():
            raise InternalError(
                f"kernel @{self.kernel.sym_name.data} reads elements {int(address.min())}.."
                f"{int(address.max())} of a buffer of {memory.numel()}"
            )
        return memory[address]

    def _constant(self, op: KernelConstantOp, kind: ValueType) -> torch.Tensor:
        import torch

        # A literal is a value of its dtype, also where the kernel computes in a wider one.
        return torch.tensor(op.literals, dtype=dtypes()[kind.dtype])[None, :]

    def _index(self, op: IndexOp, kind: ValueType) -> torch.Tensor:
        dim, parallel = op.dim, self.kernel.num_parallel
        if dim < parallel:
            return self.tasks[:, dim : dim + 1]
        return self.points[:, dim - parallel][None, :]

    def _pointwise(self, op: KernelPointwiseOp, kind: ValueType) -> torch.Tensor:
        operands = [self.values[value] for value in op.inputs]
        if op.fn == "cast" and self.dtype is None:
            # A cast is a rounding point, also to a half type that is then held in float32.
            return operands[0].to(dtypes()[kind.dtype])
        return library.run(PointwiseOp.name, op.plain, operands, [((), kind.dtype)])[0]

    def _reduce(self, op: KernelReduceOp, kind: ValueType) -> torch.Tensor:
        value = self.values[op.x].expand(len(self.tasks), len(self.points))
        attrs = {"fn": op.fn, "dims": (1,), "keep_dims": True}
        return library.run(ReduceOp.name, attrs, [value], [((), kind.dtype)])[0]

    def _contract(self, op: KernelContractOp, kind: ValueType) -> torch.Tensor:
        (a, of_a), (b, of_b) = (self._rows(value) for value in op.inputs)
        if not a.dtype.is_floating_point:
            return (a[of_a] * b[of_b]).sum(1, keepdim=True)
        return (a @ b.T)[of_a, of_b][:, None]

    def _rows(self, value: SSAValue) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the distinct rows of an operand, [rows, points], and the row of each task.

        The tasks of a tile share rows: [tasks, points] would repeat each of them many times.
        """
        op = value.owner
        if not (isinstance(op, LoadOp) and _feeds_contraction(op)):
            import torch

            return self.values[value], torch.arange(len(self.tasks))
        kind = op.outputs[0].type
        assert isinstance(kind, ValueType)
        if op.bounds is not None:
            rows, of_task = self._bounded_rows(op)
            return rows.to(self.compute_dtype(kind.dtype)), of_task
        starts, of_task = self._starts(op)
        rows = self._read(op.buffer, starts[:, None] + self._inner(op))
        return rows.to(self.compute_dtype(kind.dtype)), of_task

    def _bounded_rows(self, op: LoadOp) -> tuple[torch.Tensor, torch.Tensor]:
        """The distinct rows of an operand with bounds, and the row of each task."""
        ndims, parallel = len(self.kernel.space_extents), self.kernel.num_parallel
        bounds = bound_rows(op.bounds or (), ndims)
        moves = [op.strides, *(strides for _, _, strides in bounds)]
        kept = self.tasks.clone()
        kept[:, [d for d in range(parallel) if not any(s[d] for s in moves)]] = 0
        distinct, of_task = cast(
            "tuple[torch.Tensor, torch.Tensor]",
            kept.unique(dim=0, return_inverse=True),  # pyright: ignore[reportUnknownMemberType]
        )
        starts = self._along(op, distinct, 0)[:, None] + op.offset
        return self._within(op, starts + self._inner(op), distinct), of_task

    def _starts(self, op: LoadOp) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the rows of an operand start, and which one each task reads."""
        import torch

        strides, space = op.strides, self.kernel.space_extents
        moving = [d for d in range(self.kernel.num_parallel) if strides[d]]
        if prod(space[d] for d in moving) > len(self.tasks):
            first = self.address(op, full=False)[:, 0]
            return cast("tuple[torch.Tensor, torch.Tensor]", first.unique(return_inverse=True))  # pyright: ignore[reportUnknownMemberType]
        starts = torch.tensor([op.offset])
        of_task = torch.zeros(len(self.tasks), dtype=torch.int64)
        for d in moving:
            steps = self._step(op, d, torch.arange(space[d]))
            starts = (starts[:, None] + steps).flatten()
            of_task = of_task * space[d] + self.tasks[:, d]
        return starts, of_task

    def _store(self, op: StoreOp) -> None:
        import torch

        value, buffer = self.values[op.stored], op.buffer
        kind = op.stored.type
        assert isinstance(kind, ValueType)
        address = self.address(op, full=kind.is_full)
        self.buffers[buffer][address] = value.to(self.buffers[buffer].dtype).expand(address.shape)
        ones = torch.ones(address.numel(), dtype=torch.int32)
        self.counts[buffer].index_add_(0, address.reshape(-1), ones)


def _feeds_contraction(op: KernelBodyOp) -> bool:
    """True for a load without indices that only contractions read."""
    uses = list(op.outputs[0].uses)
    return (
        op.name == "task.load"
        and len(op.inputs) == 1
        and bool(uses)
        and all(use.operation.name == "task.contract" for use in uses)
    )


def contracts_only(kernel: KernelOp) -> bool:
    """True where full values occur only as operands of contractions."""
    return all(
        _feeds_contraction(op)
        for op in kernel.body.block.ops
        if isinstance(op, KernelBodyOp) and op.outputs and op.value.is_full
    )
