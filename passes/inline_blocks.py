"""Pass ``inline-blocks``: calls of blocks become what the blocks do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp
from xdsl.passes import ModulePass

from irc.dialects.builder import entry, functions
from irc.sharding.inlining import Inlining


@dataclass(frozen=True)
class InlineBlocksPass(ModulePass):
    """Put the ops of blocks where these are called, so that each value has a place of its own.

    Layers that are equal share one block, and one set of kernels, through all passes. Memory is
    where they differ: what one layer saves lies elsewhere than what the next one does. Ids get the
    path of calls in front (``n4/b0n1``), by which plans and `irc check` name them. Kernels stay
    shared. One walk over what is inlined.

    Before:

    ```mlir
    func.func @forward(%x: !flow.tensor<[4], f32>) -> !flow.tensor<[4], f32> {
      %0 = func.call @block(%x) {id = "n0"} : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      %1 = func.call @block(%0) {id = "n1"} : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      func.return %1 : !flow.tensor<[4], f32>
    }
    func.func private @block(%x: !flow.tensor<[4], f32>) -> !flow.tensor<[4], f32> {
      %0 = flow.cumulative(%x) {fn = "sum", dim = 0 : i64, exclusive = false, reverse = false,
          loc = "m.py:3", id = "b0n0"} : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      func.return %0 : !flow.tensor<[4], f32>
    }
    ```

    After:

    ```mlir
    func.func @forward(%x: !flow.tensor<[4], f32>) -> !flow.tensor<[4], f32> {
      %0 = flow.cumulative(%x) {fn = "sum", dim = 0 : i64, exclusive = false, reverse = false,
          loc = "m.py:3", id = "n0/b0n0"} : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      %1 = flow.cumulative(%0) {fn = "sum", dim = 0 : i64, exclusive = false, reverse = false,
          loc = "m.py:3", id = "n1/b0n0"} : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      func.return %1 : !flow.tensor<[4], f32>
    }
    ```
    """

    name = "inline-blocks"
    level: ClassVar[str] = "task"
    also_on: ClassVar[tuple[str, ...]] = ("spmd",)

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        known = functions(op)
        inlining = Inlining(known)
        for call in [each for each in entry(op).body.block.ops if isinstance(each, CallOp)]:
            inlining.replace(call)
        for name in inlining.called:
            known[name].detach()
            known[name].erase(safe_erase=False)
