"""When a block of level spmd ends: its ops listed on streams, which slow each other down.

Before kernels are fused, an op by element costs what its kernel will move: values between two of
them stay in registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Block, Operation, SSAValue

from irc.cost.kernels import computed_in, op_work
from irc.cost.model import ClusterCost
from irc.cost.roofline import roofline_s
from irc.dialects.comm import CollectiveOp
from irc.dialects.flow import FlowOp, PointwiseOp, ReduceOp, SliceOp, tensor
from irc.dialects.placement import Mesh
from irc.dialects.types import ITEM_BYTES, TensorType
from irc.ops.work import VIEWS
from irc.schedule.blocks import tasks_of
from irc.schedule.overlap import list_schedule
from irc.simulate.actions import SimAction
from irc.simulate.engine import simulate
from irc.simulate.plan import SHARED, Contention

BY_ELEMENT = (PointwiseOp, ReduceOp)


class BlockTimes:
    """Prices blocks of a module of level spmd.

    Args:
        cost: of its mesh.
        known: the functions of the module, which blocks may call.
        within: the mesh of the whole run, where that of ``cost`` is one stage's.
    """

    def __init__(
        self, cost: ClusterCost, known: Mapping[str, FuncOp], within: Mesh | None = None
    ) -> None:
        self._cost, self._known, self._mesh = cost, known, cost.mesh
        self._called: dict[str, float] = {}
        self._contention = Contention.of(cost.cluster, within or cost.mesh)

    def end(self, block: Block) -> float:
        """Return the seconds after which compute and all links are done with a block."""
        tasks = tasks_of(block, self.seconds)
        ranks, kinds = self._mesh.num_ranks, self._contention.kinds
        actions: list[SimAction] = []
        on_link: dict[int, int] = {}
        for position in list_schedule(tasks):
            task = tasks[position]
            if task.axis is not None:
                issued = SimAction("", "compute", 0.0)
                weight = ranks // self._mesh.size(task.axis)
                kind = kinds.get(task.axis, "link")
                stream, after = f"link {task.axis}", (len(actions),)
                on_link[position] = len(actions) + 1
                sent = SimAction("", stream, task.seconds, after, SHARED, weight=weight, kind=kind)
                actions += [issued, sent]
            elif task.waits_for is not None:
                waited = on_link.get(task.waits_for)
                after = () if waited is None else (waited,)
                actions.append(SimAction("", "compute", 0.0, after))
            elif task.seconds:
                actions.append(SimAction("", "compute", task.seconds, (), SHARED, weight=ranks))
        shared = self._contention.resource
        return simulate(actions, {} if shared is None else {SHARED: shared}).seconds

    def seconds(self, op: Operation) -> float:
        """Return the seconds of an op: of its kernel, its collective, or all of a call."""
        if isinstance(op, CallOp):
            name = op.callee.string_value()
            if name not in self._called:
                self._called[name] = sum(map(self.seconds, self._known[name].body.block.ops))
            return self._called[name]
        if not isinstance(op, FlowOp):
            return 0.0
        if isinstance(op, BY_ELEMENT):
            return self._by_element(op)
        if isinstance(op, SliceOp) and _is_sent_strided(op):
            return self._kernel_s(2 * _bytes(op.outputs[0]))
        if op.name == "flow.constant" or op.name in VIEWS:
            return 0.0
        return self._cost.local_seconds(op)

    def _by_element(self, op: FlowOp) -> float:
        """Return what an op adds to the kernel that it will be in."""
        moved = sum(_bytes(v) for v in dict.fromkeys(op.inputs) if not _is_inner(v))
        if not all(map(_is_inner, op.outputs)):
            return self._kernel_s(moved + sum(map(_bytes, op.outputs)), op)
        return self._kernel_s(moved, op) - self._cost.cluster.device.launch_s

    def _kernel_s(self, num_bytes: float, op: FlowOp | None = None) -> float:
        device = self._cost.cluster.device
        work = op_work(device, op) if op is not None else 0.0
        dtype = computed_in(op) if op is not None else "f32"
        return roofline_s(device, flops=work, num_bytes=num_bytes, dtype=dtype)


def _is_inner(value: SSAValue) -> bool:
    """Return whether only a kernel that computes it reads a value."""
    return isinstance(value.owner, BY_ELEMENT) and all(
        isinstance(use.operation, BY_ELEMENT) for use in value.uses
    )


def _is_sent_strided(op: SliceOp) -> bool:
    """Return whether a part is sent that does not lie in one piece: it is copied before."""
    if not any(isinstance(use.operation, CollectiveOp) for use in op.outputs[0].uses):
        return False
    whole = tensor(op.inputs[0]).static_shape()
    part = tensor(op.outputs[0]).static_shape()
    cut = [dim for dim, (n, m) in enumerate(zip(whole, part, strict=True)) if n != m]
    return bool(cut) and any(size > 1 for size in part[: cut[0]])


def _bytes(value: SSAValue) -> int:
    kind = value.type
    if not isinstance(kind, TensorType):
        return 0
    return prod(kind.static_shape()) * ITEM_BYTES[kind.dtype]
