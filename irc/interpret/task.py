"""The interpreter of level task: kernels run worker by worker, as their mappings say.

Nothing is assumed of a kernel: tasks come from the mapping, addresses from offsets and strides, and
every element of an output must be stored exactly once. So a wrong mapping, stride or order of the
body gives wrong numbers or an error here, not a plausible result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from irc.dialects.builder import entry, functions
from irc.dialects.flow import FlowOp, id_of, tensor, to_python
from irc.dialects.mapping import TaskMapping
from irc.dialects.task import KernelOp, LaunchOp, ViewOp
from irc.errors import InternalError
from irc.interpret.flow import Trace, run_op
from irc.interpret.kernel import contracts_only, run_body
from irc.runtime import library

if TYPE_CHECKING:
    import torch

Hook: TypeAlias = "Callable[[Operation, list[torch.Tensor]], list[torch.Tensor]]"
"""Runs an op that is not this rank's own business (``comm.*``); gives its results."""

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
        extents = torch.tensor(atom.extents, dtype=torch.int64)
        points = torch.cartesian_prod(*[torch.arange(e) for e in atom.extents])
        points = points.reshape(prod(atom.extents), mapping.ndim)
        inner = points[:, None, :] if atom.kind == "spatial" else points[None, :, :]
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
    for index, count in enumerate(counts):
        if bool((wrong := count != 1).any()):
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
        stated = library.dtypes()[kind.dtype]
        wide = dtype if dtype is not None and stated.is_floating_point else stated
        outputs.append(torch.zeros(kind.static_shape(), dtype=wide))
    flat = [value.reshape(-1) for value in inputs]
    run_kernel(known[op.kernel_name], flat, [out.view(-1) for out in outputs], dtype)
    return outputs


def run_view(op: ViewOp, value: torch.Tensor) -> torch.Tensor:
    """Return a view of a contiguous tensor."""
    shape, strides = tensor(op.outputs[0]).static_shape(), to_python(op.strides)
    flat = value.contiguous()
    return flat.as_strided(shape, strides, flat.storage_offset() + op.offset.value.data)


def kernels(module: ModuleOp) -> dict[str, KernelOp]:
    """Return the kernels of a module by name."""
    return {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, KernelOp)}


def run_task(
    module: ModuleOp,
    inputs: Sequence[torch.Tensor],
    *,
    name: str = "forward",
    dtype: torch.dtype | None = None,
    trace: Trace | None = None,
    hook: Hook | None = None,
) -> list[torch.Tensor]:
    """Run a function of level task for one rank.

    Args:
        module: level task.
        inputs: all arguments in order, this rank's parts.
        name: the function.
        dtype: compute floats in this dtype.
        trace: called with every value, by flow id.
        hook: runs ``comm.*``; without it the program must have none.
    """
    given = [t.to(dtype) if dtype is not None and t.is_floating_point() else t for t in inputs]
    known = (functions(module), kernels(module))
    return _run(entry(module, name), given, known, dtype, trace, hook, "")


def _run(
    func: FuncOp,
    inputs: Sequence[torch.Tensor],
    known: tuple[dict[str, FuncOp], dict[str, KernelOp]],
    dtype: torch.dtype | None,
    trace: Trace | None,
    hook: Hook | None,
    path: str,
) -> list[torch.Tensor]:
    values: dict[SSAValue, torch.Tensor] = dict(zip(func.body.block.args, inputs, strict=True))
    for op in func.body.block.ops:
        operands = [values[v] for v in op.operands]
        if isinstance(op, ReturnOp):
            return operands
        if isinstance(op, CallOp):
            callee = known[0][op.callee.string_value()]
            found = _run(callee, operands, known, dtype, trace, hook, f"{path}{id_of(op)}/")
        else:
            found = _run_op(op, operands, known[1], dtype, hook)
        for index, (result, value) in enumerate(zip(op.results, found, strict=True)):
            values[result] = value
            if trace is not None and not isinstance(op, CallOp):
                trace(path + result_id(op, index), _flow_index(op, index), value, op)
    raise AssertionError(f"@{func.sym_name.data} does not return")


def _run_op(
    op: Operation,
    operands: list[torch.Tensor],
    known: dict[str, KernelOp],
    dtype: torch.dtype | None,
    hook: Hook | None,
) -> list[torch.Tensor]:
    if isinstance(op, LaunchOp):
        return run_launch(op, known, operands, dtype)
    if isinstance(op, ViewOp):
        return [run_view(op, operands[0])]
    if op.name.startswith("comm."):
        assert hook is not None, f"{op.name} needs a hook"
        return hook(op, operands)
    assert isinstance(op, FlowOp), op.name
    return run_op(op, operands, dtype=dtype)


def result_id(op: Operation, index: int) -> str:
    """Return the flow id of a result: a launch lists one per result."""
    names = op.attributes.get("results")
    return id_of(op) if names is None else to_python(names)[index]


def _flow_index(op: Operation, index: int) -> int:
    """The result index on level flow; all ops that kernels compute have one result."""
    return 0 if isinstance(op, LaunchOp) else index
