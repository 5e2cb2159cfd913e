"""Pass lower-boxing: from logical tensors with placements to what one rank runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass

from irc.cluster.load import find_cluster
from irc.cost.model import ClusterCost
from irc.dialects.builder import functions
from irc.dialects.comm import (
    AllGatherOp,
    AllReduceOp,
    AllToAllOp,
    LocalChunkOp,
    PendingType,
    ReduceScatterOp,
    WaitOp,
)
from irc.dialects.flow import FlowOp, id_of, loc_of, tensor
from irc.dialects.placement import Mesh, Placement
from irc.dialects.sbp import BoxingOp
from irc.dialects.types import PlacementAttr, TensorType
from irc.errors import InternalError, IrcError
from irc.ops.refusals import refusal
from irc.sharding.boxing import Boxing, Step, step_between
from irc.sharding.collectives import check_collectives
from irc.sharding.local import build_local
from irc.sharding.local_ops import local_type
from irc.sharding.mesh import mesh_of, placements_in
from irc.sharding.signatures import match_signature


@dataclass(frozen=True)
class LowerBoxingPass(ModulePass):
    """Write the one program that every rank runs: local shapes and explicit collectives.

    A type loses its placement and gets the shape of a shard; an op becomes its local program under
    the signature that its placements spell; a boxing becomes collectives, each a start and the wait
    right behind it, and local chunks. Arguments and results keep their placement as attribute
    ``sbp``, so that a rank knows what to load, and ops keep it, one for each result, so that ranks
    can be recombined.

    A boxing that says its steps in ``via`` takes those; another takes one step if one leads there,
    else the cheapest path on ``cluster``. A module without ``irc.mesh`` is for one device and stays
    as it is.

    Before:
    ```mlir
    builtin.module attributes {irc.mesh = "tensor=2"} {
    func.func @forward(
        %a: !flow.tensor<[4, 6], f32, [tensor = S(1)]> {role = "input", name = "a"},
        %w: !flow.tensor<[6, 8], f32, [tensor = S(0)]> {role = "parameter", name = "w"})
        -> !flow.tensor<[4, 8], f32, [tensor = B]> {
      %y = flow.contract(%a, %w) {spec = "mk,kn->mn", loc = "m.py:3", id = "n2"}
          : (!flow.tensor<[4, 6], f32, [tensor = S(1)]>, !flow.tensor<[6, 8], f32, [tensor = S(0)]>)
          -> !flow.tensor<[4, 8], f32, [tensor = P(sum)]>
      %r = sbp.boxing(%y) {loc = "m.py:3", id = "n2.box0"}
          : (!flow.tensor<[4, 8], f32, [tensor = P(sum)]>)
          -> !flow.tensor<[4, 8], f32, [tensor = B]>
      func.return %r : !flow.tensor<[4, 8], f32, [tensor = B]>
    }
    }
    ```

    After:
    ```mlir
    builtin.module attributes {irc.mesh = "tensor=2"} {
    func.func @forward(
        %a: !flow.tensor<[4, 3], f32>
            {role = "input", name = "a", sbp = #sbp.placement<[tensor = S(1)]>},
        %w: !flow.tensor<[3, 8], f32>
            {role = "parameter", name = "w", sbp = #sbp.placement<[tensor = S(0)]>})
        -> (!flow.tensor<[4, 8], f32> {sbp = #sbp.placement<[tensor = B]>}) {
      %y = flow.contract(%a, %w) {spec = "mk,kn->mn", loc = "m.py:3", id = "n2",
              sbp = [#sbp.placement<[tensor = P(sum)]>]}
          : (!flow.tensor<[4, 3], f32>, !flow.tensor<[3, 8], f32>) -> !flow.tensor<[4, 8], f32>
      %s = comm.all_reduce(%y) {axis = "tensor", fn = "sum", loc = "m.py:3",
              id = "n2.box0.start", sbp = [#sbp.placement<[tensor = B]>]}
          : (!flow.tensor<[4, 8], f32>) -> !comm.pending<!flow.tensor<[4, 8], f32>>
      %r = comm.wait(%s) {loc = "m.py:3", id = "n2.box0", sbp = [#sbp.placement<[tensor = B]>]}
          : (!comm.pending<!flow.tensor<[4, 8], f32>>) -> !flow.tensor<[4, 8], f32>
      func.return %r : !flow.tensor<[4, 8], f32>
    }
    }
    ```
    """

    name = "lower-boxing"
    level: ClassVar[str] = "flow+sbp"
    also_on: ClassVar[tuple[str, ...]] = ("flow",)

    cluster: str = "this-host"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Lower every function."""
        mesh = mesh_of(op)
        if not mesh.axes:
            return
        boxing = ClusterCost(find_cluster(self.cluster), mesh).boxing
        for func in functions(op).values():
            _Function(func, mesh, boxing).lower()
        _ensure_lowered(op)
        check_collectives(op, mesh)


class _Function:
    """One function while it is lowered."""

    def __init__(self, func: FuncOp, mesh: Mesh, boxing: Boxing) -> None:
        self._func, self._mesh, self._boxing = func, mesh, boxing
        self._before = func.body.block
        self._block = Block(arg_types=[self._local(v) for v in self._before.args])
        self._values: dict[SSAValue, SSAValue] = {}

    def lower(self) -> None:
        """Build the lowered body and put it in the place of the old one."""
        for old, new in zip(self._before.args, self._block.args, strict=True):
            self._set(old, new)
        end = self._before.last_op
        assert isinstance(end, ReturnOp)
        arguments, returned = list(self._before.args), list(end.operands)
        self._func.arg_attrs = _placed(arguments, self._func.arg_attrs)
        self._func.res_attrs = _placed(returned, self._func.res_attrs)
        for op in self._before.ops:
            for old, new in zip(op.results, self._lowered(op), strict=True):
                self._set(old, new)
        results = [self._local(v) for v in returned]
        self._func.properties["function_type"] = FunctionType.from_lists(
            [v.type for v in self._block.args], results
        )
        self._func.body.detach_block(self._before)
        self._func.body.add_block(self._block)
        self._before.erase(safe_erase=False)

    def _set(self, old: SSAValue, new: SSAValue) -> None:
        new.name_hint = old.name_hint
        self._values[old] = new

    def _lowered(self, op: Operation) -> Sequence[SSAValue]:
        inputs = [self._values[v] for v in op.operands]
        match op:
            case ReturnOp():
                self._block.add_op(ReturnOp(*inputs))
                return ()
            case CallOp():
                call = CallOp(op.callee, inputs, [self._local(v) for v in op.results])
                call.attributes = {**op.attributes, "sbp": _placements(op.results)}
                self._block.add_op(call)
                return call.results
            case BoxingOp():
                return [self._box(op, inputs[0])]
            case FlowOp():
                signature = match_signature(op, self._mesh)
                if signature is None:
                    raise _no_signature(op)
                return build_local(op, signature, self._mesh, inputs, self._block.add_op)
            case _:
                raise InternalError(f"{op.name} has no place on level flow+sbp")

    def _local(self, value: SSAValue) -> Attribute:
        placement = _placement(value)
        return value.type if placement is None else local_type(value.type, placement, self._mesh)

    def _box(self, op: BoxingOp, value: SSAValue) -> SSAValue:
        steps = self._steps(op)
        for index, step in enumerate(steps):
            logical = tensor(op.x)
            local = local_type(logical, step.result, self._mesh)
            name = id_of(op) if index == len(steps) - 1 else f"{id_of(op)}.{index}"
            common = {"loc": loc_of(op), "axis": step.axis}
            if step.kind == "local_chunk":
                lowered: FlowOp = LocalChunkOp.make(
                    [value], [local], id=name, dim=step.split_dim, **common
                )
            else:
                start = _start(step, value, PendingType(local), f"{name}.start", common)
                self._emit(start, step.result)
                lowered = WaitOp.make([start.outputs[0]], [local], loc=loc_of(op), id=name)
            value = self._emit(lowered, step.result)
        return value

    def _emit(self, op: FlowOp, placement: Placement) -> SSAValue:
        op.attributes["sbp"] = ArrayAttr([PlacementAttr(placement)])
        self._block.add_op(op)
        return op.outputs[0]

    def _steps(self, op: BoxingOp) -> Sequence[Step]:
        kind, target = tensor(op.x), _placement(op.outputs[0])
        assert kind.placement is not None
        assert target is not None
        via = placements_in(op.attributes.get("via"))
        if via is None:
            shape = kind.static_shape()
            if not self._boxing.reaches(shape, kind.dtype, kind.placement, target):
                raise _no_path(op, kind.placement, target)
            direct = step_between(kind.placement, target, kind.ndim)
            path = self._boxing.path(shape, kind.dtype, kind.placement, target)
            return path if direct is None else [direct]
        steps: list[Step] = []
        here = kind.placement
        for there in (*via, target):
            step = step_between(here, there, kind.ndim)
            if step is None:
                raise _no_path(op, here, there)
            steps.append(step)
            here = there
        return steps


def _start(
    step: Step, value: SSAValue, pending: PendingType, name: str, common: dict[str, str]
) -> FlowOp:
    match step.kind:
        case "all_reduce":
            return AllReduceOp.make([value], [pending], id=name, fn=step.reduction, **common)
        case "all_gather":
            return AllGatherOp.make([value], [pending], id=name, dim=step.concat_dim, **common)
        case "reduce_scatter":
            return ReduceScatterOp.make(
                [value], [pending], id=name, fn=step.reduction, dim=step.split_dim, **common
            )
        case "all_to_all":
            return AllToAllOp.make(
                [value],
                [pending],
                id=name,
                split_dim=step.split_dim,
                concat_dim=step.concat_dim,
                **common,
            )
        case "local_chunk":
            raise InternalError("a local chunk is no collective")


def _placement(value: SSAValue) -> Placement | None:
    return value.type.placement if isinstance(value.type, TensorType) else None


def _placements(values: Sequence[SSAValue]) -> ArrayAttr[Attribute]:
    return ArrayAttr([PlacementAttr(p) for v in values if (p := _placement(v)) is not None])


def _placed(
    values: Sequence[SSAValue], attrs: ArrayAttr[DictionaryAttr] | None
) -> ArrayAttr[DictionaryAttr]:
    """Add to the attributes of arguments or results how the mesh holds them."""
    known = attrs.data if attrs is not None else [DictionaryAttr({}) for _ in values]
    return ArrayAttr(
        DictionaryAttr({**known.data, **({} if p is None else {"sbp": PlacementAttr(p)})})
        for known, p in zip(known, map(_placement, values), strict=True)
    )


def _no_signature(op: FlowOp) -> IrcError:
    sides = (", ".join(str(_placement(v)) for v in side) for side in (op.inputs, op.outputs))
    return IrcError(
        "no-signature",
        f"no rank can compute {op.name} ({id_of(op)}) as ({') -> ('.join(sides)})",
        where=loc_of(op),
        because=["these placements fit neither its rule nor a strategy", *refusal(op)],
        help="change a placement, or put an sbp.boxing between",
    )


def _no_path(op: BoxingOp, source: Placement, target: Placement) -> IrcError:
    return IrcError(
        "no-boxing",
        f"no collectives lead from {source} to {target} (boxing {id_of(op)})",
        where=loc_of(op),
        because="boxing never makes a partial value, and steps in `via` change one axis each",
        help="make the partial value by an op, or box to another placement",
    )


def _ensure_lowered(module: ModuleOp) -> None:
    for op in module.walk():
        if isinstance(op, BoxingOp) or any(_placement(v) is not None for v in op.results):
            raise InternalError(f"lower-boxing left {op.name} ({id_of(op)})")
