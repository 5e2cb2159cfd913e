"""Pass ``recompute``: what the backward pass saves, and what it computes again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from irc.cluster.load import find_cluster
from irc.constraints.pins import constraint_text
from irc.constraints.uses import placed_statements
from irc.cost.model import ClusterCost
from irc.search.one_device import ALONE
from irc.search.recompute import cheapest
from irc.sharding.mesh import parse_mesh
from irc.training.recompute import apply_policies


@dataclass(frozen=True)
class RecomputePass(ModulePass):
    """Compute forward values again in the backward pass, where that keeps less from one to other.

    Activations are what a training step runs out of memory for. What backward needs of forward is
    either held until then or made again from what is held; the cut of fewest bytes between the two
    (`irc.training.saving`) is found for each repeated block once. Ops that run again are copies
    with attribute ``recompute``, before their first reader; they are planned, priced and sharded
    like any other op, their collectives too, and random ops among them draw the same numbers.

    Option ``policy``: ``none`` computes again only what costs nothing (casts, views, pointwise ops
    inside of kernels that read them); ``cheap`` also pointwise ops for products; ``selective`` the
    core of attention, which grows with the square of the sequence; ``full`` everything inside of
    repeated blocks, whose inputs alone are saved; globs, as in ``policy="block_0*/b0n1?"``, name
    ops by id, block and source line. ``auto`` takes the cheapest of none, selective and full that
    fits into the devices of ``cluster`` on ``mesh``, block by block; ``pins`` and ``memory_bytes``
    are those of pass ``auto-shard``.

    Each forward function gets its policy and the bytes that one run of it saves.

    Run: recompute

    Before:

    ```mlir
    func.func @forward(%x: !flow.tensor<[8, 4], f32> {role = "input", name = "x"},
        %w: !flow.tensor<[4, 6], f32> {role = "parameter", name = "w"},
        %g: !flow.tensor<[8, 6], f32> {role = "input", name = "g"})
        -> (!flow.tensor<[8, 6], f32>, !flow.tensor<[8, 6], f32>) {
      %h = flow.contract(%x, %w) {spec = "bk,kn->bn", loc = "m.py:1", id = "n0"}
          : (!flow.tensor<[8, 4], f32>, !flow.tensor<[4, 6], f32>) -> !flow.tensor<[8, 6], f32>
      %a = flow.pointwise(%h) {fn = "cos", loc = "m.py:2", id = "n1"}
          : (!flow.tensor<[8, 6], f32>) -> !flow.tensor<[8, 6], f32>
      %b = flow.pointwise(%a, %h) {fn = "mul", loc = "m.py:3", id = "n2"}
          : (!flow.tensor<[8, 6], f32>, !flow.tensor<[8, 6], f32>) -> !flow.tensor<[8, 6], f32>
      %c = flow.pointwise(%a, %g) {fn = "mul", loc = "m.py:3", id = "n2.g0", phase = "backward"}
          : (!flow.tensor<[8, 6], f32>, !flow.tensor<[8, 6], f32>) -> !flow.tensor<[8, 6], f32>
      %d = flow.pointwise(%c, %h) {fn = "mul", loc = "m.py:3", id = "n1.g0", phase = "backward"}
          : (!flow.tensor<[8, 6], f32>, !flow.tensor<[8, 6], f32>) -> !flow.tensor<[8, 6], f32>
      func.return %b, %d : !flow.tensor<[8, 6], f32>, !flow.tensor<[8, 6], f32>
    }
    ```

    After:

    ```mlir
    func.func @forward(%x: !flow.tensor<[8, 4], f32> {role = "input", name = "x"},
        %w: !flow.tensor<[4, 6], f32> {role = "parameter", name = "w"},
        %g: !flow.tensor<[8, 6], f32> {role = "input", name = "g"})
        -> (!flow.tensor<[8, 6], f32>, !flow.tensor<[8, 6], f32>)
        attributes {irc.recompute = "none", irc.saved_bytes = 192 : i64} {
      %h = flow.contract(%x, %w) {spec = "bk,kn->bn", loc = "m.py:1", id = "n0"}
          : (!flow.tensor<[8, 4], f32>, !flow.tensor<[4, 6], f32>) -> !flow.tensor<[8, 6], f32>
      %a = flow.pointwise(%h) {fn = "cos", loc = "m.py:2", id = "n1"}
          : (!flow.tensor<[8, 6], f32>) -> !flow.tensor<[8, 6], f32>
      %b = flow.pointwise(%a, %h) {fn = "mul", loc = "m.py:3", id = "n2"}
          : (!flow.tensor<[8, 6], f32>, !flow.tensor<[8, 6], f32>) -> !flow.tensor<[8, 6], f32>
      %0 = flow.pointwise(%h) {fn = "cos", loc = "m.py:2", id = "n1.again", recompute = "none",
          phase = "backward", grad = "input"}
          : (!flow.tensor<[8, 6], f32>) -> !flow.tensor<[8, 6], f32>
      %c = flow.pointwise(%0, %g) {fn = "mul", loc = "m.py:3", id = "n2.g0", phase = "backward"}
          : (!flow.tensor<[8, 6], f32>, !flow.tensor<[8, 6], f32>) -> !flow.tensor<[8, 6], f32>
      %d = flow.pointwise(%c, %h) {fn = "mul", loc = "m.py:3", id = "n1.g0", phase = "backward"}
          : (!flow.tensor<[8, 6], f32>, !flow.tensor<[8, 6], f32>) -> !flow.tensor<[8, 6], f32>
      func.return %b, %d : !flow.tensor<[8, 6], f32>, !flow.tensor<[8, 6], f32>
    }
    ```

    A block whose calls do not agree on what its backward half reads stays as it is.
    """

    name = "recompute"
    level: ClassVar[str] = "flow"
    after: ClassVar[str] = "differentiate"

    policy: str = "none"
    mesh: str = ""
    cluster: str = "this-host"
    pins: str = ""
    memory_bytes: int | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Decide what is saved, and write it."""
        if self.policy != "auto":
            apply_policies(op, self.policy)
            return
        mesh = parse_mesh(self.mesh) if self.mesh else ALONE
        cost = ClusterCost(find_cluster(self.cluster), mesh)
        pins = placed_statements(op, mesh, *constraint_text(self.pins))
        own = cheapest(op, cost, pins, memory_bytes=self.memory_bytes)
        apply_policies(op, "none", own)
