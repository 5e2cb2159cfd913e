"""The interpreter of level flow+sbp: all ranks of a mesh in one process, op by op.

Each rank runs an op's local program on its shards; a boxing joins the shards and cuts them anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.builder import entry, functions
from irc.dialects.comm import CollectiveOp, LocalChunkOp, RankIndexOp, WaitOp
from irc.dialects.flow import FlowOp, id_of, loc_of, tensor
from irc.dialects.placement import Mesh, Placement
from irc.dialects.sbp import BoxingOp
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.interpret.collectives import run_collective
from irc.interpret.flow import Trace, run_op
from irc.interpret.walk import run_block, widened
from irc.ops.refusals import refusal
from irc.sharding.local import build_local
from irc.sharding.local_ops import local_type
from irc.sharding.shards import combine, shard
from irc.sharding.signatures import NdSignature, match_signature

if TYPE_CHECKING:
    import torch

Ranks: TypeAlias = "list[torch.Tensor]"
"""What each rank holds of one value."""


def run_sharded(
    module: ModuleOp,
    inputs: Sequence[torch.Tensor],
    mesh: Mesh,
    *,
    name: str = "forward",
    dtype: torch.dtype | None = None,
    trace: Trace | None = None,
) -> list[torch.Tensor]:
    """Run a function of level flow+sbp on every rank of a mesh.

    Args:
        module: level flow+sbp; every tensor type has a placement.
        inputs: all arguments in order, whole.
        mesh: the mesh that the placements name.
        name: the function.
        dtype: compute floats in this dtype instead (float64 for checking).
        trace: called with every value that is computed, joined to the logical tensor.

    Raises:
        IrcError: ``no-signature``, where placements around an op fit none of its signatures.
    """
    func = entry(module, name)
    shards = [
        shard(value, _placed(argument, mesh), mesh)
        for value, argument in zip(widened(inputs, dtype), func.body.block.args, strict=True)
    ]
    run = _Run(mesh, dtype, trace)
    outputs = run_block(func.body.block, shards, functions(module), run.step)
    kinds = [tensor(value) for value in _returned(func)]
    return [
        combine(
            parts, kind.placement or Placement.replicated(mesh.names), mesh, kind.static_shape()
        )
        for parts, kind in zip(outputs, kinds, strict=True)
    ]


class _Run:
    def __init__(self, mesh: Mesh, dtype: torch.dtype | None, trace: Trace | None) -> None:
        self.mesh, self.dtype, self.trace = mesh, dtype, trace

    def step(self, op: Operation, operands: Sequence[Ranks], path: str) -> list[Ranks]:
        """Run one op on every rank and show what it gives; each value is a list by rank."""
        assert isinstance(op, FlowOp), op.name
        outputs = self.op(op, operands)
        if self.trace is not None:
            for index, (value, parts) in enumerate(zip(op.outputs, outputs, strict=True)):
                if isinstance(value.type, TensorType):
                    shape = value.type.static_shape()
                    whole = combine(parts, _placed(value, self.mesh), self.mesh, shape)
                    self.trace(path + id_of(op), index, whole, op)
        return outputs

    def op(self, op: FlowOp, operands: Sequence[Ranks]) -> list[Ranks]:
        """Run one op on every rank."""
        if isinstance(op, BoxingOp):
            shape = tensor(op.x).static_shape()
            whole = combine(operands[0], _placed(op.x, self.mesh), self.mesh, shape)
            return [shard(whole, _placed(op.outputs[0], self.mesh), self.mesh)]
        signature = match_signature(op, self.mesh)
        if signature is None:
            raise _no_signature(op)
        return run_ranks(op, signature, self.mesh, operands, dtype=self.dtype)


def _no_signature(op: FlowOp) -> IrcError:
    placements = [", ".join(str(_placement(v)) for v in side) for side in (op.inputs, op.outputs)]
    return IrcError(
        "no-signature",
        f"no rank can compute {op.name} ({id_of(op)}) as ({placements[0]}) -> ({placements[1]})",
        where=loc_of(op),
        because=["these placements fit neither its rule nor a strategy", *refusal(op)],
        help="change a placement, or put an sbp.boxing between",
    )


def run_ranks(
    op: FlowOp,
    signature: NdSignature,
    mesh: Mesh,
    operands: Sequence[Ranks],
    *,
    dtype: torch.dtype | None = None,
) -> list[Ranks]:
    """Run the local program of an op on every rank; shards may be uneven.

    Args:
        op: an op on logical tensors.
        signature: one of its signatures.
        mesh: the mesh.
        operands: for each operand what each rank holds.
        dtype: compute floats in this dtype instead.
    """
    results: list[Ranks] = [[] for _ in op.outputs]
    shared = _program(op, signature, mesh, None) if _even(op, signature, mesh) else None
    exchanging = CollectiveOp | LocalChunkOp
    if shared is not None and any(isinstance(op, exchanging) for op in shared[0].ops):
        return _run_together(*shared, operands, mesh, dtype)
    for rank in range(mesh.num_ranks):
        coordinates = mesh.coordinates(rank)
        program = shared or _program(op, signature, mesh, coordinates)
        held = [parts[rank] for parts in operands]
        for parts, value in zip(
            results, _run_local(*program, held, coordinates, dtype), strict=True
        ):
            parts.append(value)
    return results


_Program: TypeAlias = tuple[Block, list[SSAValue]]


def _program(
    op: FlowOp, signature: NdSignature, mesh: Mesh, coordinates: Mapping[str, int] | None
) -> _Program:
    types = [
        local_type(value.type, placement, mesh, coordinates)
        for value, placement in zip(op.inputs, signature.operands, strict=True)
    ]
    block = Block(arg_types=types)
    values = build_local(op, signature, mesh, list(block.args), block.add_op, coordinates)
    return block, values


def _even(op: FlowOp, signature: NdSignature, mesh: Mesh) -> bool:
    placed = zip((*op.inputs, *op.outputs), (*signature.operands, *signature.results), strict=True)
    try:
        for value, placement in placed:
            local_type(value.type, placement, mesh)
    except ValueError:
        return False
    return True


def _run_local(
    block: Block,
    results: list[SSAValue],
    inputs: Ranks,
    coordinates: Mapping[str, int],
    dtype: torch.dtype | None,
) -> Ranks:
    import torch

    values: dict[SSAValue, torch.Tensor] = dict(zip(block.args, inputs, strict=True))
    for op in block.ops:
        assert isinstance(op, FlowOp), op.name
        if isinstance(op, RankIndexOp):
            outputs = [torch.tensor(coordinates[op.axis])]
        else:
            outputs = run_op(op, [values[v] for v in op.inputs], dtype=dtype)
        values.update(zip(op.outputs, outputs, strict=True))
    return [values[value] for value in results]


def _run_together(
    block: Block,
    results: list[SSAValue],
    inputs: Sequence[Ranks],
    mesh: Mesh,
    dtype: torch.dtype | None,
) -> list[Ranks]:
    """Run one op on all ranks before the next: a collective sees what all of them hold."""
    values: dict[SSAValue, Ranks] = dict(zip(block.args, inputs, strict=True))
    for op in block.ops:
        assert isinstance(op, FlowOp), op.name
        operands = [values[v] for v in op.inputs]
        if isinstance(op, WaitOp):
            outputs = operands
        elif op.name.startswith("comm."):
            outputs = [run_collective(op, operands, mesh)]
        else:
            by_rank = [
                run_op(op, [parts[rank] for parts in operands], dtype=dtype)
                for rank in range(mesh.num_ranks)
            ]
            outputs = [list(parts) for parts in zip(*by_rank, strict=True)]
        values.update(zip(op.outputs, outputs, strict=True))
    return [values[value] for value in results]


def _placement(value: SSAValue) -> Placement | None:
    return value.type.placement if isinstance(value.type, TensorType) else None


def _placed(value: SSAValue, mesh: Mesh) -> Placement:
    return _placement(value) or Placement.replicated(mesh.names)


def _returned(func: FuncOp) -> Sequence[SSAValue]:
    last = func.body.block.last_op
    assert isinstance(last, ReturnOp)
    return last.operands
