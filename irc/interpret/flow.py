"""The interpreter of level flow: whole tensors, one op at a time, in torch on the CPU.

It also runs one rank's level-spmd ops between collectives, and fusions by running their bodies:
every other interpreter builds on :func:`run_op`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.builder import entry, functions
from irc.dialects.flow import FlowOp, FusionOp, YieldOp, id_of, tensor
from irc.dialects.types import TensorType
from irc.runtime import library

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
    given = [t.to(dtype) if dtype is not None and t.is_floating_point() else t for t in inputs]
    return _run(entry(module, name), given, functions(module), trace, "", dtype)


def _run(
    func: FuncOp,
    inputs: Sequence[torch.Tensor],
    known: dict[str, FuncOp],
    trace: Trace | None,
    path: str,
    dtype: torch.dtype | None,
) -> list[torch.Tensor]:
    values: dict[SSAValue, torch.Tensor] = dict(zip(func.body.block.args, inputs, strict=True))
    for op in func.body.block.ops:
        operands = [values[v] for v in op.operands]
        if isinstance(op, ReturnOp):
            return operands
        if isinstance(op, CallOp):
            callee = known[op.callee.string_value()]
            found = _run(callee, operands, known, trace, f"{path}{id_of(op)}/", dtype)
        else:
            assert isinstance(op, FlowOp), op.name
            found = run_op(op, operands, dtype=dtype, trace=trace, path=path)
        for index, (result, value) in enumerate(zip(op.results, found, strict=True)):
            values[result] = value
            if trace is not None and not isinstance(op, CallOp):
                trace(path + id_of(op), index, value, op)
    raise AssertionError(f"@{func.sym_name.data} does not return")


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
        return _run_fusion(op.body.block, operands, dtype, trace, path)
    results = [
        (_static(v.type), tensor(v).dtype) for v in op.outputs if isinstance(v.type, TensorType)
    ]
    found = library.run(op.name, op.plain, operands, results)
    if dtype is not None:
        return [t.to(dtype) if t.is_floating_point() else t for t in found]
    # The library leaves float64 as it is, for runs in float64; here a cast is as the op states.
    stated = library.dtypes()
    return [
        t.to(stated[name]) if t.is_floating_point() else t
        for t, (_, name) in zip(found, results, strict=True)
    ]


def _run_fusion(
    block: Block,
    operands: Sequence[torch.Tensor],
    dtype: torch.dtype | None,
    trace: Trace | None,
    path: str,
) -> list[torch.Tensor]:
    values: dict[SSAValue, torch.Tensor] = dict(zip(block.args, operands, strict=True))
    for op in block.ops:
        given = [values[v] for v in op.operands]
        if isinstance(op, YieldOp):
            return given
        assert isinstance(op, FlowOp), op.name
        found = run_op(op, given, dtype=dtype, trace=trace, path=path)
        for index, (result, value) in enumerate(zip(op.results, found, strict=True)):
            values[result] = value
            if trace is not None:
                trace(path + id_of(op), index, value, op)
    raise AssertionError("a fusion body yields")


def _static(kind: object) -> tuple[int, ...]:
    assert isinstance(kind, TensorType)
    return kind.static_shape()
