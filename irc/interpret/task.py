"""The interpreter of level task: kernels run worker by worker, as their mappings say.

Nothing is assumed of a kernel: tasks come from the mapping, addresses from offsets and strides, and
every element of an output must be stored exactly once. So a wrong mapping, stride or order of the
body gives wrong numbers or an error here, not a plausible result.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from irc.dialects.flow import tensor
from irc.dialects.launches import CopyOp, LaunchOp, ViewOp
from irc.dialects.mapping import TaskMapping
from irc.dialects.noted import result_id
from irc.dialects.task import KernelOp, StoreOp
from irc.errors import InternalError
from irc.interpret.kernel import contracts_only, run_body
from irc.runtime.dtypes import dtypes

if TYPE_CHECKING:
    import torch

BATCH_POINTS = 1 << 20
"""Points of the iteration space that are computed at once (several small workers, or one)."""


def task_table(mapping: TaskMapping) -> torch.Tensor:
    """Return the tasks of all workers, shape [workers, tasks of one, dims], in execution order.

    The recurrence of :mod:`irc.dialects.mapping`, on whole arrays:
    ``phi(w)[i] = phi1(w // n2)[i // k2] * d2 + phi2(w % n2)[i % k2]``.
    """
    import torch

    table = torch.zeros((1, 1, mapping.ndim), dtype=torch.int64)
    for atom in mapping.atoms:
        extents = torch.tensor(atom.task_shape, dtype=torch.int64)
        points = torch.cartesian_prod(*[torch.arange(atom.extents[d]) for d in atom.order])
        points = points.reshape(prod(atom.extents), mapping.ndim)
        points = points[:, list(atom.ranks)] if atom.ranks else points
        if atom.kind == "replicate":
            points = torch.zeros_like(points)
        inner = points[None, :, :] if atom.kind == "repeat" else points[:, None, :]
        joined = table[:, None, :, None, :] * extents + inner[None, :, None, :, :]
        workers, tasks = table.shape[0] * inner.shape[0], table.shape[1] * inner.shape[1]
        table = joined.reshape(workers, tasks, mapping.ndim)
    return table


def run_kernel(
    kernel: KernelOp,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    dtype: torch.dtype | None = None,
) -> None:
    """Run a kernel on flat tensors.

    Args:
        kernel: level task.
        inputs: one flat tensor per input buffer.
        outputs: one flat tensor per output buffer; every element is overwritten.
        dtype: compute floats in this dtype (float64 for checking); half types compute in float32.

    Raises:
        InternalError: where an element is stored twice or never, or an address lies outside.
    """
    import torch

    counts = [torch.zeros(out.numel(), dtype=torch.int32) for out in outputs]
    table = task_table(kernel.task_mapping)
    # A contraction reads distinct rows: its values are as many as its tasks.
    inner = 1 if contracts_only(kernel) else prod(kernel.space_extents[kernel.num_parallel :])
    inner = max(inner, 1)
    step = max(1, BATCH_POINTS // (table.shape[1] * inner))
    for start in range(0, table.shape[0], step):
        tasks = table[start : start + step].reshape(-1, table.shape[2])
        run_body(kernel, tasks, [*inputs, *outputs], counts, dtype)
    padded = {op.buffer for op in kernel.body.ops if isinstance(op, StoreOp) and op.blocks}
    for index, (count, buffer) in enumerate(zip(counts, kernel.args[-len(counts) :], strict=True)):
        wrong = count > 1 if buffer in padded else count != 1
        if bool(wrong.any()):
            element = int(wrong.nonzero()[0])
            raise InternalError(
                f"kernel @{kernel.sym_name.data} stores element {element} of output {index}"
                f" {int(count[element])} times"
            )


def run_launch(
    op: LaunchOp,
    module: ModuleOp | dict[str, KernelOp],
    inputs: Sequence[torch.Tensor],
    dtype: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """Run a launch and return its results.

    Args:
        op: the launch.
        module: where its kernel is, or the result of :func:`kernels`.
        inputs: operands; they are contiguous.
        dtype: compute floats in this dtype.
    """
    import torch

    known = kernels(module) if isinstance(module, ModuleOp) else module
    outputs: list[torch.Tensor] = []
    for value in op.outputs:
        kind = tensor(value)
        stated = dtypes()[kind.dtype]
        wide = dtype if dtype is not None and stated.is_floating_point else stated
        outputs.append(torch.zeros(kind.static_shape(), dtype=wide))
    flat = [value.reshape(-1) for value in inputs]
    run_kernel(known[op.kernel_name], flat, [out.view(-1) for out in outputs], dtype)
    return outputs


def run_memory(op: ViewOp | CopyOp, value: torch.Tensor) -> torch.Tensor:
    """Return what an op that computes nothing gives: a view of a value, or a copy."""
    return value.clone() if isinstance(op, CopyOp) else run_view(op, value)


def run_view(op: ViewOp, value: torch.Tensor) -> torch.Tensor:
    """Return a view of a contiguous tensor."""
    shape, strides = tensor(op.outputs[0]).static_shape(), op.strides
    flat = value.contiguous()
    return flat.as_strided(shape, strides, flat.storage_offset() + op.offset)


def kernels(module: ModuleOp) -> dict[str, KernelOp]:
    """Return the kernels of a module by name."""
    return {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, KernelOp)}


def result_key(op: Operation, index: int) -> tuple[str, int]:
    """Return the id of a result, and which one of that op's it is."""
    name, _, number = result_id(op.results[index]).partition("#")
    return name, int(number or 0)
