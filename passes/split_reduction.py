"""Pass ``split-reduction``: the long sums of small matmuls are computed in parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, SymbolRefAttr
from xdsl.passes import ModulePass

from irc.dialects.flow import carry, id_of
from irc.dialects.launches import LaunchOp
from irc.dialects.task import KernelOp
from irc.dialects.types import TensorType
from irc.kernels.gpu.limits import GPUS
from irc.kernels.gpu.split import Halves, parts_of, split
from irc.kernels.schedule import require_target


@dataclass(frozen=True)
class SplitReductionPass(ModulePass):
    """Cut k of a matmul into parts where its tiles alone would leave multiprocessors idle.

    Parts are a task dim of the first kernel (split-K); the second adds them up in a fixed order,
    rounds once, and runs the epilogue, which is never applied to a part. How many parts there are
    is the model's choice: :func:`irc.kernels.gpu.matmul.best_parts`.

    Run: split-reduction{target=sm_90}

    Before:

    ```mlir
    func.func @forward(%a: !flow.tensor<[16, 65536], f16>, %b: !flow.tensor<[65536, 16], f16>)
        -> !flow.tensor<[16, 16], f16> {
      %0 = task.launch(%a, %b) {kernel = @k0_matmul_relu, loc = "m.py:3", id = "n1",
          results = ["n1"]}
          : (!flow.tensor<[16, 65536], f16>, !flow.tensor<[65536, 16], f16>)
          -> !flow.tensor<[16, 16], f16>
      func.return %0 : !flow.tensor<[16, 16], f16>
    }
    task.kernel @k0_matmul_relu {template = "matmul", space = array<i64: 16, 16, 65536>,
        parallel = 2, num_inputs = 2, mapping = #task.map<spatial(1, 1) * repeat(16, 16)>,
        tile = {}, sources = ["n0", "n1"], loc = "m.py:3"} : {
    ^bb0(%0: !task.buffer<1048576, f16>, %1: !task.buffer<1048576, f16>,
        %2: !task.buffer<256, f16>):
      %3 = task.load(%0) {offset = 0, strides = array<i64: 65536, 0, 1>, loc = "m.py:2", id = "n0"}
          : (!task.buffer<1048576, f16>) -> !task.value<f16, full>
      %4 = task.load(%1) {offset = 0, strides = array<i64: 0, 1, 16>, loc = "m.py:2", id = "n0"}
          : (!task.buffer<1048576, f16>) -> !task.value<f16, full>
      %5 = task.contract(%3, %4) {loc = "m.py:2", id = "n0"}
          : (!task.value<f16, full>, !task.value<f16, full>) -> !task.value<f16, row>
      %6 = task.pointwise(%5) {fn = "relu", loc = "m.py:3", id = "n1"}
          : (!task.value<f16, row>) -> !task.value<f16, row>
      task.store(%6, %2) {offset = 0, strides = array<i64: 16, 1, 0>, loc = "m.py:3"}
          : (!task.value<f16, row>, !task.buffer<256, f16>) -> ()
    }
    ```

    After:

    ```mlir
    func.func @forward(%a: !flow.tensor<[16, 65536], f16>, %b: !flow.tensor<[65536, 16], f16>)
        -> !flow.tensor<[16, 16], f16> {
      %0 = task.launch(%a, %b) {kernel = @k0_matmul_relu_parts, loc = "m.py:3", id = "n1",
          results = ["n1:parts"]}
          : (!flow.tensor<[16, 65536], f16>, !flow.tensor<[65536, 16], f16>)
          -> !flow.tensor<[16, 16, 16], f32>
      %1 = task.launch(%0) {kernel = @k0_matmul_relu_sum, loc = "m.py:3", id = "n1",
          results = ["n1"]} : (!flow.tensor<[16, 16, 16], f32>) -> !flow.tensor<[16, 16], f16>
      func.return %1 : !flow.tensor<[16, 16], f16>
    }
    task.kernel @k0_matmul_relu_parts {template = "matmul", space = array<i64: 16, 16, 16, 4096>,
        parallel = 3, num_inputs = 2, mapping = #task.map<spatial(16, 1, 1) * repeat(1, 16, 16)>,
        tile = {arch = 90, block_k = 128, block_m = 16, block_n = 16, num_stages = 4,
        num_warps = 4}, sources = ["n0", "n1"], loc = "m.py:3"} : {
    ^bb0(%0: !task.buffer<1048576, f16>, %1: !task.buffer<1048576, f16>,
        %2: !task.buffer<4096, f32>):
      %3 = task.load(%0) {offset = 0, strides = array<i64: 4096, 65536, 0, 1>, loc = "m.py:2",
          id = "n0"} : (!task.buffer<1048576, f16>) -> !task.value<f16, full>
      %4 = task.load(%1) {offset = 0, strides = array<i64: 65536, 0, 1, 16>, loc = "m.py:2",
          id = "n0"} : (!task.buffer<1048576, f16>) -> !task.value<f16, full>
      %5 = task.contract(%3, %4) {loc = "m.py:2", id = "n0"}
          : (!task.value<f16, full>, !task.value<f16, full>) -> !task.value<f32, row>
      task.store(%5, %2) {offset = 0, strides = array<i64: 256, 16, 1, 0>, loc = "m.py:2"}
          : (!task.value<f32, row>, !task.buffer<4096, f32>) -> ()
    }
    task.kernel @k0_matmul_relu_sum {template = "rows", space = array<i64: 16, 16, 16>,
        parallel = 2, num_inputs = 1, mapping = #task.map<spatial(16, 1) * repeat(1, 16)>,
        tile = {block_r = 16, num_stages = 1, num_warps = 4}, sources = ["n0", "n1"],
        loc = "m.py:3"} : {
    ^bb0(%0: !task.buffer<4096, f32>, %1: !task.buffer<256, f16>):
      %2 = task.load(%0) {offset = 0, strides = array<i64: 16, 1, 256>, loc = "m.py:2", id = "n0"}
          : (!task.buffer<4096, f32>) -> !task.value<f32, full>
      %3 = task.reduce(%2) {fn = "sum", loc = "m.py:2", id = "n0"}
          : (!task.value<f32, full>) -> !task.value<f16, row>
      %4 = task.pointwise(%3) {fn = "relu", loc = "m.py:3", id = "n1"}
          : (!task.value<f16, row>) -> !task.value<f16, row>
      task.store(%4, %1) {offset = 0, strides = array<i64: 16, 1, 0>, loc = "m.py:3"}
          : (!task.value<f16, row>, !task.buffer<256, f16>) -> ()
    }
    ```

    A kernel whose operands are computed or gathered, or whose numbers are integers, stays whole.
    """

    name = "split-reduction"
    level: ClassVar[str] = "task"
    after: ClassVar[str] = "map-tasks"

    target: str = "sm_90"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        require_target(self.target, GPUS)
        by_kernel: dict[str, Halves] = {}
        for kernel in [k for k in op.body.block.ops if isinstance(k, KernelOp)]:
            parts = parts_of(kernel, self.target)
            if parts > 1:
                by_kernel[kernel.sym_name.data] = halves = split(kernel, parts, self.target)
                op.body.block.insert_ops_before([halves.products, halves.total], kernel)
                kernel.detach()
                kernel.erase()
        for launch in [o for o in op.walk() if isinstance(o, LaunchOp)]:
            if launch.kernel_name in by_kernel:
                _launch_both(launch, by_kernel[launch.kernel_name])


def _launch_both(launch: LaunchOp, halves: Halves) -> None:
    """Launch the products, then the sum in the place of the old kernel."""
    first = LaunchOp.make(
        [launch.operands[i] for i in halves.products_inputs],
        [TensorType.of(halves.shape, halves.dtype)],
        kernel=SymbolRefAttr(halves.products.sym_name.data),
    )
    carry(first, launch)
    # No op of level flow has this value: it gets a name of its own.
    first.attributes["results"] = ArrayAttr([StringAttr(f"{id_of(launch)}:parts")])
    second = LaunchOp.make(
        [first.outputs[0], *(launch.operands[i] for i in halves.total_inputs)],
        [value.type for value in launch.outputs],
        kernel=SymbolRefAttr(halves.total.sym_name.data),
    )
    second.attributes.update(launch.attributes)
    block = launch.parent
    assert block is not None
    block.insert_ops_before([first, second], launch)
    for old, new in zip(launch.outputs, second.outputs, strict=True):
        old.replace_all_uses_with(new)
    launch.detach()
    launch.erase()
