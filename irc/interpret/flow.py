"""The interpreter of level flow: whole tensors, one op at a time, in torch on the CPU.

It also runs one rank's level-spmd ops between collectives, and fusions by running their bodies:
every other interpreter builds on :func:`run_op`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from irc.dialects.builder import entry, functions
from irc.dialects.flow import FlowOp, FusionOp, id_of, tensor
from irc.dialects.types import TensorType
from irc.interpret.walk import run_block, widened
from irc.runtime import library
from irc.runtime.dtypes import dtypes
from irc.runtime.onnx_ops.run import PREFIX

if TYPE_CHECKING:
    import torch

Trace: TypeAlias = Callable[[str, int, "torch.Tensor", Operation], None]
"""Called with an op's path (``n12``, ``n40/b3`` inside call n40), result index, value and op."""


def run_function(
    module: ModuleOp,
    inputs: Sequence[torch.Tensor],
    *,
    name: str = "forward",
    dtype: torch.dtype | None = None,
    trace: Trace | None = None,
) -> list[torch.Tensor]:
    """Run a function.

    Args:
        module: level flow, sizes bound (or symbolic and never needed).
        inputs: all arguments in order.
        name: the function.
        dtype: compute floats in this dtype instead (float64 for checking): float inputs convert.
        trace: called with every value that is computed.
    """
    func, step = entry(module, name), partial(_step, dtype, trace)
    return run_block(func.body.block, widened(inputs, dtype), functions(module), step)


def _step(
    dtype: torch.dtype | None,
    trace: Trace | None,
    op: Operation,
    operands: list[torch.Tensor],
    path: str,
) -> list[torch.Tensor]:
    assert isinstance(op, FlowOp), op.name
    outputs = run_op(op, operands, dtype=dtype, trace=trace, path=path)
    if trace is not None:
        for index, value in enumerate(outputs):
            trace(path + id_of(op), index, value, op)
    return outputs


def run_op(
    op: FlowOp,
    operands: Sequence[torch.Tensor],
    *,
    dtype: torch.dtype | None = None,
    trace: Trace | None = None,
    path: str = "",
) -> list[torch.Tensor]:
    """Run one op of level flow on torch tensors; a fusion runs its body."""
    if isinstance(op, FusionOp):
        return run_block(op.body.block, operands, {}, partial(_step, dtype, trace), path)
    results = [
        (_static(v.type), tensor(v).dtype) for v in op.outputs if isinstance(v.type, TensorType)
    ]
    if dtype is not None and op.plain.get("target", "").startswith(PREFIX):
        # A node of ONNX that runs as it is computes in its own types, and gives them.
        operands = [_narrowed(t, v) for t, v in zip(operands, op.inputs, strict=True)]
    outputs = library.run(op.name, op.plain, operands, results)
    if dtype is not None:
        return [t.to(dtype) if t.is_floating_point() else t for t in outputs]
    # The library leaves float64 as it is, for runs in float64; here a cast is as the op states.
    stated = dtypes()
    return [
        t.to(stated[name]) if t.is_floating_point() else t
        for t, (_, name) in zip(outputs, results, strict=True)
    ]


def _narrowed(value: torch.Tensor, stated: SSAValue) -> torch.Tensor:
    if not (isinstance(stated.type, TensorType) and value.is_floating_point()):
        return value
    return value.to(dtypes()[stated.type.dtype])


def _static(kind: object) -> tuple[int, ...]:
    assert isinstance(kind, TensorType)
    return kind.static_shape()
