"""Pass ``split-projections``: each part of a projection's result has a weight of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from irc.constraints.layouts import TENSOR
from irc.sharding.mesh import parse_mesh
from irc.training.projections import split_projections


@dataclass(frozen=True)
class SplitProjectionsPass(ModulePass):
    """Give queries, keys and values that one product makes a product each.

    Over an axis that divides matrices a rank has contiguous rows of a weight. Those of a fused
    ``qkv`` are no heads: results are gathered before attention, in every layer and micro-batch.
    With a weight for each part, ranks have the heads of all three, and nothing moves. The weights
    are slices of the parameter, ``qkv.weight:0-4`` (:mod:`irc.training.slices`): what loads, saves
    or prints the model knows the whole one.

    Option ``mesh``: where no axis ``tensor``, ``tp`` or ``model`` has several ranks, everything
    stays as it is, since one product is faster than three.

    Run: split-projections{mesh="tensor=2"}

    Before:

    ```mlir
    func.func @forward(%x: !flow.tensor<[5, 3], f32> {role = "input", name = "x"},
        %w: !flow.tensor<[8, 3], f32> {role = "parameter", name = "kv"})
        -> (!flow.tensor<[5, 4], f32>, !flow.tensor<[5, 4], f32>) {
      %y = flow.contract(%x, %w) {spec = "mk,nk->mn", loc = "m.py:3", id = "n0"}
          : (!flow.tensor<[5, 3], f32>, !flow.tensor<[8, 3], f32>) -> !flow.tensor<[5, 8], f32>
      %k = flow.slice(%y) {starts = array<i64: 0, 0>, stops = array<i64: 5, 4>,
          steps = array<i64: 1, 1>, loc = "m.py:4", id = "n1"}
          : (!flow.tensor<[5, 8], f32>) -> !flow.tensor<[5, 4], f32>
      %v = flow.slice(%y) {starts = array<i64: 0, 4>, stops = array<i64: 5, 8>,
          steps = array<i64: 1, 1>, loc = "m.py:4", id = "n2"}
          : (!flow.tensor<[5, 8], f32>) -> !flow.tensor<[5, 4], f32>
      func.return %k, %v : !flow.tensor<[5, 4], f32>, !flow.tensor<[5, 4], f32>
    }
    ```

    After:

    ```mlir
    func.func @forward(%x: !flow.tensor<[5, 3], f32> {role = "input", name = "x"},
        %a: !flow.tensor<[4, 3], f32> {role = "parameter", name = "kv:0-4", whole = "kv",
            along = 0 : i64},
        %b: !flow.tensor<[4, 3], f32> {role = "parameter", name = "kv:4-8", whole = "kv",
            along = 0 : i64})
        -> (!flow.tensor<[5, 4], f32>, !flow.tensor<[5, 4], f32>) {
      %k = flow.contract(%x, %a) {spec = "mk,nk->mn", loc = "m.py:4", id = "n1"}
          : (!flow.tensor<[5, 3], f32>, !flow.tensor<[4, 3], f32>) -> !flow.tensor<[5, 4], f32>
      %v = flow.contract(%x, %b) {spec = "mk,nk->mn", loc = "m.py:4", id = "n2"}
          : (!flow.tensor<[5, 3], f32>, !flow.tensor<[4, 3], f32>) -> !flow.tensor<[5, 4], f32>
      func.return %k, %v : !flow.tensor<[5, 4], f32>, !flow.tensor<[5, 4], f32>
    }
    ```

    Parts of any widths are split, also behind a bias, and where the result is first divided into
    parts or heads by a reshape. It declines where parts are not all of the result, where they are
    interleaved (heads first and then the three of each, as Megatron-LM lays them out), and where
    something else reads the weight.
    """

    name = "split-projections"
    level: ClassVar[str] = "flow"

    mesh: str = ""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Split what is divided over an axis for matrices."""
        sizes = dict(parse_mesh(self.mesh).axes) if self.mesh else {}
        if any(sizes.get(axis, 1) > 1 for axis in TENSOR):
            split_projections(op)
