"""Pass ``bucket-collectives``: small collectives that may wait for each other become one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block
from xdsl.passes import ModulePass

from irc.cluster.load import THIS_HOST, find_cluster
from irc.cost.buckets import Member, best_buckets, best_groups, buckets, collected
from irc.cost.model import ClusterCost, collective_kind
from irc.dialects.builder import functions
from irc.dialects.comm import AllGatherOp
from irc.sharding.bucket import Bucketed
from irc.sharding.bucketed import Places, put_together, wait_late
from irc.sharding.mesh import mesh_of, parse_mesh


@dataclass(frozen=True)
class BucketCollectivesPass(ModulePass):
    """Join collectives that are small for their link, and may wait for each other.

    A reduction of a bias takes as long as one of a hundred kilobytes. All-reduces, all-gathers and
    reduce-scatters over one axis, of one dtype and reduction, are joined in the order in which
    their operands are there, as long as no result is read before the last operand is there (Li et
    al. 2020, PyTorch Distributed, section 3.2, on gradients). What costs less to send alone than to
    copy stays alone. Large buckets begin late, small ones have fixed costs: the size is the one by
    which the block ends first, on a stream of compute and one for each link.

    Run: bucket-collectives{bytes=1000000}

    Before:
    ```mlir
    builtin.module attributes {irc.mesh = "data=2"} {
    func.func @forward(%a: !flow.tensor<[8, 4], f32>, %b: !flow.tensor<[16], f32>)
        -> (!flow.tensor<[8, 4], f32>, !flow.tensor<[16], f32>) {
      %0 = comm.all_reduce(%a) {axis = "data", fn = "sum", id = "n0.start", loc = "m.py:1"}
          : (!flow.tensor<[8, 4], f32>) -> !comm.pending<!flow.tensor<[8, 4], f32>>
      %1 = comm.wait(%0) {id = "n0", loc = "m.py:1"}
          : (!comm.pending<!flow.tensor<[8, 4], f32>>) -> !flow.tensor<[8, 4], f32>
      %2 = comm.all_reduce(%b) {axis = "data", fn = "sum", id = "n1.start", loc = "m.py:2"}
          : (!flow.tensor<[16], f32>) -> !comm.pending<!flow.tensor<[16], f32>>
      %3 = comm.wait(%2) {id = "n1", loc = "m.py:2"}
          : (!comm.pending<!flow.tensor<[16], f32>>) -> !flow.tensor<[16], f32>
      func.return %1, %3 : !flow.tensor<[8, 4], f32>, !flow.tensor<[16], f32>
    }
    }
    ```

    After:
    ```mlir
    builtin.module attributes {irc.mesh = "data=2"} {
    func.func @pack_0(%a: !flow.tensor<[8, 4], f32>, %b: !flow.tensor<[16], f32>)
        -> !flow.tensor<[48], f32> {
      %0 = flow.reshape(%a) {loc = "m.py:1", id = "pack0"}
          : (!flow.tensor<[8, 4], f32>) -> !flow.tensor<[32], f32>
      %1 = flow.concat(%0, %b) {loc = "m.py:1", id = "pack1", dim = 0 : i64}
          : (!flow.tensor<[32], f32>, !flow.tensor<[16], f32>) -> !flow.tensor<[48], f32>
      func.return %1 : !flow.tensor<[48], f32>
    }
    func.func @unpack_0(%0: !flow.tensor<[48], f32>)
        -> (!flow.tensor<[8, 4], f32>, !flow.tensor<[16], f32>) {
      %1 = flow.slice(%0) {loc = "m.py:1", id = "unpack0", starts = array<i64: 0>,
              stops = array<i64: 32>, steps = array<i64: 1>}
          : (!flow.tensor<[48], f32>) -> !flow.tensor<[32], f32>
      %2 = flow.reshape(%1) {loc = "m.py:1", id = "unpack1"}
          : (!flow.tensor<[32], f32>) -> !flow.tensor<[8, 4], f32>
      %3 = flow.slice(%0) {loc = "m.py:1", id = "unpack2", starts = array<i64: 32>,
              stops = array<i64: 48>, steps = array<i64: 1>}
          : (!flow.tensor<[48], f32>) -> !flow.tensor<[16], f32>
      func.return %2, %3 : !flow.tensor<[8, 4], f32>, !flow.tensor<[16], f32>
    }
    func.func @forward(%a: !flow.tensor<[8, 4], f32>, %b: !flow.tensor<[16], f32>)
        -> (!flow.tensor<[8, 4], f32>, !flow.tensor<[16], f32>) {
      %0 = func.call @pack_0(%a, %b) {id = "bucket0.pack", loc = "m.py:1"}
          : (!flow.tensor<[8, 4], f32>, !flow.tensor<[16], f32>) -> !flow.tensor<[48], f32>
      %1 = comm.all_reduce(%0) {axis = "data", fn = "sum", id = "bucket0.start", loc = "m.py:1"}
          : (!flow.tensor<[48], f32>) -> !comm.pending<!flow.tensor<[48], f32>>
      %2 = comm.wait(%1) {id = "bucket0", loc = "m.py:1"}
          : (!comm.pending<!flow.tensor<[48], f32>>) -> !flow.tensor<[48], f32>
      %3, %4 = func.call @unpack_0(%2) {id = "bucket0.unpack", loc = "m.py:1"}
          : (!flow.tensor<[48], f32>) -> (!flow.tensor<[8, 4], f32>, !flow.tensor<[16], f32>)
      func.return %3, %4 : !flow.tensor<[8, 4], f32>, !flow.tensor<[16], f32>
    }
    }
    ```

    Buckets of equal shapes, as repeated layers have them, share their functions.

    What is not packed keeps its tensors and says in which ``bucket`` it is: the library begins all
    of a bucket as one (`ncclGroupStart`, without copies; gloo joins small messages). On GPUs
    nothing is packed, and nowhere what is gathered. Into one bucket goes what is computed at the
    same time, and of what is gathered what is read at the same time, such as the weights of a
    layer; of small ones more by time, as above.

    Attributes:
        cluster: whose links are to be used.
        within: the mesh of the whole run, where the program is one stage's.
        bytes: of a full bucket that is packed; 0: the best by the model of costs.
    """

    name = "bucket-collectives"
    level: ClassVar[str] = "spmd"

    cluster: str = THIS_HOST
    within: str = ""
    bytes: int = 0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        mesh = mesh_of(op)
        if not mesh.axes:
            return
        within = parse_mesh(self.within) if self.within else None
        cost = ClusterCost(find_cluster(self.cluster), mesh, within=within, alone=True)
        bucketed = Bucketed(op, mesh)
        for func in functions(op).values():
            block = func.body.block
            if any(len(members) > 1 for members in collected(block).values()):
                wait_late(block)
            if self.bytes or cost.cluster.device.cores:
                self._pack(op, block, bucketed, cost)
            for members in _renewed(block, packs=False):
                places = Places(block)
                for group in best_groups(cost, block, members, functions(op)):
                    first, sizes = group[0].start, (member.num_bytes for member in group)
                    num_bytes = cost.joined_bytes(collective_kind(first), sizes, first.axis)
                    put_together([(m.start, m.wait) for m in group], num_bytes, places)

    def _pack(self, op: ModuleOp, block: Block, bucketed: Bucketed, cost: ClusterCost) -> None:
        for members in _renewed(block):
            if self.bytes:
                chosen = buckets(members, self.bytes)
            elif isinstance(members[0].start, AllGatherOp):
                chosen = []  # the library begins them as one
            else:
                chosen = best_buckets(cost, block, members, functions(op))
            for bucket in chosen:
                bucketed.join([(member.start, member.wait) for member in bucket])


def _renewed(block: Block, *, packs: bool = True) -> Iterator[list[Member]]:
    """Yield the collectives of each kind, two and more, as they lie when their turn comes."""
    kinds = [kind for kind, members in collected(block, packs=packs).items() if len(members) > 1]
    for kind in kinds:
        # What was joined before has moved what reads it.
        yield collected(block, packs=packs)[kind]
