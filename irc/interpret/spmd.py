"""The interpreter of level spmd, and of level task on a mesh: all ranks in one process.

Every rank runs the same program, so one op is run on all ranks before the next; a collective sees
what all ranks of its groups hold. A collective happens at its start: `wait` only hands the value
on, and an op that used a buffer in between could not tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp
from xdsl.ir import Operation

from irc.dialects.builder import entry, functions
from irc.dialects.comm import WaitOp
from irc.dialects.flow import FlowOp, id_of
from irc.dialects.launches import CopyOp, LaunchOp, ViewOp
from irc.dialects.placement import Mesh, Placement, Split
from irc.dialects.types import PlacementAttr, TensorType
from irc.errors import InternalError
from irc.interpret.collectives import run_collective
from irc.interpret.flow import run_op
from irc.interpret.task import kernels, run_launch, run_memory
from irc.interpret.walk import run_block, widened
from irc.sharding.collectives import check_collectives
from irc.sharding.mesh import placements_in
from irc.sharding.shards import combine, shard

if TYPE_CHECKING:
    import torch

Ranks: TypeAlias = "list[torch.Tensor]"
"""What each rank holds of one value."""

RankTrace: TypeAlias = Callable[[str, int, "list[torch.Tensor]", Operation, Placement | None], None]
"""Called with path-qualified op id, result index, what each rank holds, the op, and its
placement."""

Launch: TypeAlias = "Callable[[Operation, list[torch.Tensor]], list[torch.Tensor]]"
"""Runs an op of level task for one rank."""


def run_spmd(
    module: ModuleOp,
    inputs: Sequence[torch.Tensor],
    mesh: Mesh,
    *,
    name: str = "forward",
    dtype: torch.dtype | None = None,
    trace: RankTrace | None = None,
    launch: Launch | None = None,
) -> list[torch.Tensor]:
    """Run a function on every rank of a mesh.

    Args:
        module: level spmd or task.
        inputs: all arguments in order, whole: each rank is given the slice that ``sbp`` names.
        mesh: the mesh; empty for one device.
        name: the function.
        dtype: compute floats in this dtype instead (float64 for checking).
        trace: called with every tensor that is computed; see :data:`RankTrace`.
        launch: runs ``task`` ops on one rank; by default the interpreter of level task.

    Returns:
        The results as logical tensors; where ranks hold copies, the first rank's.
    """
    check_collectives(module, mesh)
    func = entry(module, name)
    tensors = widened(inputs, dtype)
    placements = _placements(func.arg_attrs, len(tensors), mesh)
    shards = [shard(value, placed, mesh) for value, placed in zip(tensors, placements, strict=True)]
    run = _Run(module, mesh, dtype, trace, launch)
    outputs = run_block(func.body.block, shards, functions(module), run.step)
    placements = _placements(func.res_attrs, len(outputs), mesh)
    return [
        combine(parts, placed, mesh, _logical(parts[0].shape, placed, mesh))
        for parts, placed in zip(outputs, placements, strict=True)
    ]


def placement_of(op: Operation, index: int) -> Placement | None:
    """Return how the mesh holds a result, where the op says it in ``sbp``."""
    placed = placements_in(op.attributes.get("sbp")) or []
    return placed[index] if index < len(placed) else None


class _Run:
    def __init__(
        self,
        module: ModuleOp,
        mesh: Mesh,
        dtype: torch.dtype | None,
        trace: RankTrace | None,
        launch: Launch | None,
    ) -> None:
        self.mesh, self.dtype, self.trace = mesh, dtype, trace
        self._launch = launch or _task_launch(module, dtype)

    def step(self, op: Operation, operands: Sequence[Ranks], path: str) -> list[Ranks]:
        """Run one op on every rank and show what it gives; each value is a list by rank."""
        outputs = self.op(op, operands)
        if self.trace is not None:
            for index, (value, parts) in enumerate(zip(op.results, outputs, strict=True)):
                if isinstance(value.type, TensorType):
                    self.trace(path + id_of(op), index, parts, op, placement_of(op, index))
        return outputs

    def op(self, op: Operation, operands: Sequence[Ranks]) -> list[Ranks]:
        """Run one op on every rank."""
        if isinstance(op, WaitOp):
            return [operands[0]]
        if op.name.startswith("comm."):
            return [run_collective(op, operands, self.mesh)]
        by_rank = [
            self._local(op, [parts[rank] for parts in operands])
            for rank in range(self.mesh.num_ranks)
        ]
        return [list(parts) for parts in zip(*by_rank, strict=True)]

    def _local(self, op: Operation, operands: Ranks) -> Ranks:
        if op.name.startswith("task."):
            return self._launch(op, operands)
        if not isinstance(op, FlowOp):
            raise InternalError(f"{op.name} has no place below level flow+sbp")
        outputs = run_op(op, operands, dtype=self.dtype)
        for value, output in zip(op.outputs, outputs, strict=True):
            if (
                isinstance(value.type, TensorType)
                and tuple(output.shape) != value.type.static_shape()
            ):
                raise InternalError(
                    f"{op.name} ({id_of(op)}) gives {tuple(output.shape)}; its type says "
                    f"{value.type}"
                )
        return outputs


def _task_launch(module: ModuleOp, dtype: torch.dtype | None) -> Launch:
    known = kernels(module)

    def launch(op: Operation, operands: Ranks) -> Ranks:
        match op:
            case LaunchOp():
                return run_launch(op, known, operands, dtype)
            case ViewOp() | CopyOp():
                return [run_memory(op, operands[0])]
            case _:
                raise InternalError(f"{op.name} cannot be run")

    return launch


def _placements(attrs: ArrayAttr[DictionaryAttr] | None, count: int, mesh: Mesh) -> list[Placement]:
    """Return the placement of each argument or result; whole everywhere if not said."""
    whole = Placement.replicated(mesh.names)
    if attrs is None:
        return [whole] * count
    said = [attr.data.get("sbp") for attr in attrs.data]
    return [placed.data if isinstance(placed, PlacementAttr) else whole for placed in said]


def _logical(shape: Sequence[int], placement: Placement, mesh: Mesh) -> tuple[int, ...]:
    whole = list(shape)
    for axis, placed in placement.axes:
        if isinstance(placed, Split):
            whole[placed.dim] *= mesh.size(axis)
    return tuple(whole)
