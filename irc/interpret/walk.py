"""Running a block op by op: what the interpreters of all levels share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.flow import YieldOp, id_of
from irc.errors import InternalError

if TYPE_CHECKING:
    import torch

V = TypeVar("V")


def run_block(
    block: Block,
    inputs: Sequence[V],
    known: Mapping[str, FuncOp],
    step: Callable[[Operation, list[V], str], list[V]],
    path: str = "",
    called: Callable[[CallOp, list[V]], list[V] | None] | None = None,
) -> list[V]:
    """Run a block, and the functions that it calls, and return what it ends with.

    A value is let go after the op that reads it last.

    Args:
        block: of a function or a fusion.
        inputs: a value for each argument.
        known: the functions of the module.
        step: runs one op on its operands; is also given the path of calls that lead here.
        path: of the calls that lead to the block: ``n40/``.
        called: runs a call by other means; where it gives None, the callee's ops are run.
    """
    values: dict[SSAValue, V] = dict(zip(block.args, inputs, strict=True))
    dying = last_read(block)
    for op in block.ops:
        operands = [values[v] for v in op.operands]
        if isinstance(op, ReturnOp | YieldOp):
            return operands
        if isinstance(op, CallOp):
            returned = None if called is None else called(op, operands)
            if returned is None:
                callee = known[op.callee.string_value()].body.block
                returned = run_block(callee, operands, known, step, f"{path}{id_of(op)}/", called)
            outputs = returned
        else:
            outputs = step(op, operands, path)
        values.update(zip(op.results, outputs, strict=True))
        for value in dying[op]:
            del values[value]
    raise InternalError("a block ends in neither func.return nor flow.yield")


def last_read(block: Block) -> dict[Operation, list[SSAValue]]:
    """Return for each op the values that no later op of the block reads, its own results too."""
    dying: dict[Operation, list[SSAValue]] = {}
    seen: set[SSAValue] = set()
    for op in reversed(block.ops):
        dying[op] = [v for v in dict.fromkeys((*op.operands, *op.results)) if v not in seen]
        seen.update(dying[op])
    return dying


def widened(inputs: Sequence[torch.Tensor], dtype: torch.dtype | None) -> list[torch.Tensor]:
    """Convert floats to a dtype, where one is asked for."""
    return [t.to(dtype) if dtype is not None and t.is_floating_point() else t for t in inputs]
