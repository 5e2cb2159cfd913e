"""Pass ``map-tasks``: fusions and lone compute ops become kernels over task mappings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from irc.kernels.launches.function import map_function
from irc.kernels.launches.kernel_table import KernelTable
from irc.kernels.schedule import require_target
from irc.kernels.weights.fixed import Fixed


@dataclass(frozen=True)
class MapTasksPass(ModulePass):
    """Turn fusions and lone compute ops into kernels, shape ops into views.

    A kernel is a loop nest over flat buffers with a task mapping for the target. Transposes,
    slices, broadcasts and reshapes cost nothing: kernels read through them by strides, libraries
    get a ``task.view``. Equal kernels are one symbol. Library ops (random, ...) stay, and on a GPU
    convolutions, pools, and what works along one dim: scans, sorts, scatters.

    Run: map-tasks{target=cpu}

    Before:

    ```mlir
    func.func @forward(%x: !flow.tensor<[4, 6], f32>, %b: !flow.tensor<[4], f32>)
        -> !flow.tensor<[6, 4], f32> {
      %0 = flow.transpose(%x) {perm = array<i64: 1, 0>, loc = "m.py:3", id = "n0"}
          : (!flow.tensor<[4, 6], f32>) -> !flow.tensor<[6, 4], f32>
      %1 = flow.pointwise(%0, %b) {fn = "add", loc = "m.py:4", id = "n1"}
          : (!flow.tensor<[6, 4], f32>, !flow.tensor<[4], f32>) -> !flow.tensor<[6, 4], f32>
      func.return %1 : !flow.tensor<[6, 4], f32>
    }
    ```

    After:

    ```mlir
    func.func @forward(%x: !flow.tensor<[4, 6], f32>, %b: !flow.tensor<[4], f32>)
        -> !flow.tensor<[6, 4], f32> {
      %1 = task.launch(%x, %b) {kernel = @k0_add, loc = "m.py:4", id = "n1", results = ["n1"]}
          : (!flow.tensor<[4, 6], f32>, !flow.tensor<[4], f32>) -> !flow.tensor<[6, 4], f32>
      func.return %1 : !flow.tensor<[6, 4], f32>
    }
    task.kernel @k0_add {template = "rows", space = array<i64: 6, 4>, parallel = 2, num_inputs = 2,
        mapping = #task.map<spatial(1, 1) * repeat(6, 4)>, tile = {}, sources = ["n1"],
        loc = "m.py:4"} : {
    ^bb0(%0: !task.buffer<24, f32>, %1: !task.buffer<4, f32>, %2: !task.buffer<24, f32>):
      %3 = task.load(%0) {offset = 0, strides = array<i64: 1, 6>, loc = "m.py:4", id = "n1"}
          : (!task.buffer<24, f32>) -> !task.value<f32, row>
      %4 = task.load(%1) {offset = 0, strides = array<i64: 0, 1>, loc = "m.py:4", id = "n1"}
          : (!task.buffer<4, f32>) -> !task.value<f32, row>
      %5 = task.pointwise(%3, %4) {fn = "add", loc = "m.py:4", id = "n1"}
          : (!task.value<f32, row>, !task.value<f32, row>) -> !task.value<f32, row>
      task.store(%5, %2) {offset = 0, strides = array<i64: 4, 1>, loc = "m.py:4"}
          : (!task.value<f32, row>, !task.buffer<24, f32>) -> ()
    }
    ```

    A copy kernel is inserted where a value must be contiguous: what a collective sends, what a
    function takes or gives, the operand of a matmul whose reduced dims lie apart in memory.
    """

    name = "map-tasks"
    level: ClassVar[str] = "spmd"
    after: ClassVar[str] = "fuse"

    target: str = "cpu"
    any_rows: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        require_target(self.target)
        table = KernelTable(self.target, Fixed(op), any_rows=self.any_rows)
        for func in [f for f in op.body.block.ops if isinstance(f, FuncOp)]:
            map_function(func, table)
        op.body.block.add_ops(table.kernels)
