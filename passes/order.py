"""Pass ``order``: in which order a rank issues its ops, so that communication overlaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass

from irc.dialects.builder import functions
from irc.dialects.comm import CollectiveOp
from irc.dialects.placement import Mesh
from irc.schedule.blocks import Seconds, buckets_of, scheduled_ops, tasks_of
from irc.schedule.overlap import list_schedule


@dataclass(frozen=True)
class OrderPass(ModulePass):
    """Start collectives as early, and wait for them as late, as the data allows.

    Lower-boxing puts each wait behind its start, where nothing overlaps. This is list scheduling
    (:mod:`irc.schedule.overlap`): whenever the compute stream is free, begin collectives whose
    operands exist, else run the earliest op that can run, else wait for the collective that ends
    first. Ops that are equally good keep their order, so the result depends on the text alone and
    is the same on every rank.

    Before:
    ```mlir
    func.func @forward(%a: !flow.tensor<[4], f32>, %b: !flow.tensor<[4], f32>)
        -> (!flow.tensor<[4], f32>, !flow.tensor<[4], f32>) {
      %0 = comm.all_reduce(%a) {axis = "data", fn = "sum", id = "n0", loc = "m.py:1"}
          : (!flow.tensor<[4], f32>) -> !comm.pending<!flow.tensor<[4], f32>>
      %1 = comm.wait(%0) {id = "n0", loc = "m.py:1"}
          : (!comm.pending<!flow.tensor<[4], f32>>) -> !flow.tensor<[4], f32>
      %2, %3 = flow.sort(%1) {dim = 0 : i64, descending = false, id = "n1", loc = "m.py:2"}
          : (!flow.tensor<[4], f32>) -> (!flow.tensor<[4], f32>, !flow.tensor<[4], i64>)
      %4, %5 = flow.sort(%b) {dim = 0 : i64, descending = true, id = "n2", loc = "m.py:3"}
          : (!flow.tensor<[4], f32>) -> (!flow.tensor<[4], f32>, !flow.tensor<[4], i64>)
      func.return %2, %4 : !flow.tensor<[4], f32>, !flow.tensor<[4], f32>
    }
    ```

    After:
    ```mlir
    func.func @forward(%a: !flow.tensor<[4], f32>, %b: !flow.tensor<[4], f32>)
        -> (!flow.tensor<[4], f32>, !flow.tensor<[4], f32>) {
      %0 = comm.all_reduce(%a) {axis = "data", fn = "sum", id = "n0", loc = "m.py:1"}
          : (!flow.tensor<[4], f32>) -> !comm.pending<!flow.tensor<[4], f32>>
      %4, %5 = flow.sort(%b) {dim = 0 : i64, descending = true, id = "n2", loc = "m.py:3"}
          : (!flow.tensor<[4], f32>) -> (!flow.tensor<[4], f32>, !flow.tensor<[4], i64>)
      %1 = comm.wait(%0) {id = "n0", loc = "m.py:1"}
          : (!comm.pending<!flow.tensor<[4], f32>>) -> !flow.tensor<[4], f32>
      %2, %3 = flow.sort(%1) {dim = 0 : i64, descending = false, id = "n1", loc = "m.py:2"}
          : (!flow.tensor<[4], f32>) -> (!flow.tensor<[4], f32>, !flow.tensor<[4], i64>)
      func.return %2, %4 : !flow.tensor<[4], f32>, !flow.tensor<[4], f32>
    }
    ```

    With prices, as many collectives are pending as keep the links busy. Each function is ordered
    by itself: nothing moves over a call.

    Attributes:
        within: the mesh of the whole run, where the program is one stage's.
        cluster: prices ops, so that a wait comes as soon as its collective has ended; without one
            a collective is taken to last for ever, and every op that can run goes before the wait.
        in_flight: without prices, how many collectives may be pending at a time: each holds its
            buffers, and without a limit the gathers of all weights would start at once.
    """

    name = "order"
    level: ClassVar[str] = "task"
    also_on: ClassVar[tuple[str, ...]] = ("spmd",)

    cluster: str = ""
    within: str = ""
    in_flight: int = 4

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        seconds = self._seconds(op)
        in_flight = None if self.cluster else self.in_flight
        for func in functions(op).values():
            if func.body.blocks:
                reorder(func.body.block, scheduled(func.body.block, seconds, in_flight))

    def _seconds(self, module: ModuleOp) -> Seconds:
        if not self.cluster:
            return lambda op: inf if isinstance(op, CollectiveOp) else 0.0
        from irc.cost.actions import ActionCost

        mesh = module.attributes.get("irc.mesh")
        own = Mesh.parse(mesh.data if isinstance(mesh, StringAttr) else "")
        within = Mesh.parse(self.within) if self.within else None
        price = ActionCost(module, self.cluster, own, within=within)
        blocks: dict[str, float] = {}
        known = functions(module)

        def seconds(op: Operation) -> float:
            if not isinstance(op, CallOp):
                return price(op) or 0.0
            name = op.callee.string_value()
            if name not in blocks:
                blocks[name] = sum(map(seconds, known[name].body.block.ops))
            return blocks[name]

        return seconds


def reorder(block: Block, order: Sequence[Operation]) -> None:
    """Put the ops of a block, all but its terminator, into an order."""
    last = block.last_op
    assert last is not None
    for op in order:
        op.detach()
        block.insert_op_before(op, last)


def scheduled(block: Block, seconds: Seconds, in_flight: int | None = None) -> list[Operation]:
    """Return the ops of a block, all but its terminator, in the order of the schedule.

    O(n log n) in the number of ops and uses.

    Args:
        block: of any level with collectives.
        seconds: of each op; of a collective, on its link.
        in_flight: how many collectives may be pending; None for what the links can carry.
    """
    ops, joined = scheduled_ops(block), buckets_of(block)
    order = list_schedule(tasks_of(block, seconds), in_flight)
    return [member for i in order for member in joined.get(ops[i], [ops[i]])]
