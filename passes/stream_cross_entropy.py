"""Pass ``stream-cross-entropy``: the loss of a linear layer never has all of its logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from irc.kernels import linear_loss as streaming
from irc.ops.linear_loss import STREAMED
from irc.passes.canonicalize import simplify
from irc.rewrite.linear_loss import stream_losses


@dataclass(frozen=True)
class StreamCrossEntropyPass(ModulePass):
    r"""Replace matmul, bias, cast, log-softmax and look-up by one op that computes them by blocks.

    The logits of a language model are its largest tensor, rows times vocabulary, and the backward
    pass has them once more. In blocks of rows they take no more than the layer's weight, and the
    gradients need no logits of the forward pass (arXiv:2411.09009; ``irc.kernels.linear_loss``).

    Option ``min_bytes``: so many bytes of logits must be saved by it (64 MiB); with a negative
    number it is done whatever it saves, as whoever cuts the vocabulary wants it.

    Run: stream-cross-entropy{min_bytes=0}

    Before:

    ```mlir
    func.func @forward(%h: !flow.tensor<[512, 4], f32>, %w: !flow.tensor<[9, 4], f32>,
        %t: !flow.tensor<[512, 1], i64>) -> !flow.tensor<[512, 1], f32> {
      %0 = flow.contract(%h, %w) {spec = "bk,nk->bn", loc = "m.py:2", id = "n0"}
          : (!flow.tensor<[512, 4], f32>, !flow.tensor<[9, 4], f32>)
          -> !flow.tensor<[512, 9], f32>
      %1 = flow.reduce(%0) {fn = "max", dims = array<i64: 1>, keep_dims = true, loc = "m.py:3",
          id = "n1"} : (!flow.tensor<[512, 9], f32>) -> !flow.tensor<[512, 1], f32>
      %2 = flow.pointwise(%0, %1) {fn = "sub", loc = "m.py:3", id = "n2"}
          : (!flow.tensor<[512, 9], f32>, !flow.tensor<[512, 1], f32>)
          -> !flow.tensor<[512, 9], f32>
      %3 = flow.pointwise(%2) {fn = "exp", loc = "m.py:3", id = "n3"}
          : (!flow.tensor<[512, 9], f32>) -> !flow.tensor<[512, 9], f32>
      %4 = flow.reduce(%3) {fn = "sum", dims = array<i64: 1>, keep_dims = true, loc = "m.py:3",
          id = "n4"} : (!flow.tensor<[512, 9], f32>) -> !flow.tensor<[512, 1], f32>
      %5 = flow.pointwise(%4) {fn = "log", loc = "m.py:3", id = "n5"}
          : (!flow.tensor<[512, 1], f32>) -> !flow.tensor<[512, 1], f32>
      %6 = flow.pointwise(%2, %5) {fn = "sub", loc = "m.py:3", id = "n6"}
          : (!flow.tensor<[512, 9], f32>, !flow.tensor<[512, 1], f32>)
          -> !flow.tensor<[512, 9], f32>
      %7 = flow.gather(%6, %t) {dim = 1 : i64, loc = "m.py:3", id = "n7"}
          : (!flow.tensor<[512, 9], f32>, !flow.tensor<[512, 1], i64>)
          -> !flow.tensor<[512, 1], f32>
      func.return %7 : !flow.tensor<[512, 1], f32>
    }
    ```

    After:

    ```mlir
    builtin.module attributes {irc.cross_entropy = [
        "n7  m.py:3: 512 x 9 logits, 0.0 MiB: in blocks of 256 rows, 0.0 MiB at a time"]} {
    func.func @forward(%h: !flow.tensor<[512, 4], f32>, %w: !flow.tensor<[9, 4], f32>,
        %t: !flow.tensor<[512, 1], i64>) -> !flow.tensor<[512, 1], f32> {
      %0 = flow.reshape(%t) {loc = "m.py:3", id = "n7.0"}
          : (!flow.tensor<[512, 1], i64>) -> !flow.tensor<[512], i64>
      %1, %2 = flow.extern(%h, %w, %0) {target = "irc::linear_cross_entropy", loc = "m.py:3",
          id = "n7.1", arguments =
          "[[{\22operand\22: 0}, {\22operand\22: 1}, {\22operand\22: 2}, null], {}]"}
          : (!flow.tensor<[512, 4], f32>, !flow.tensor<[9, 4], f32>, !flow.tensor<[512], i64>)
          -> (!flow.tensor<[512], f32>, !flow.tensor<[512], f32>)
      %3 = flow.pointwise(%1) {fn = "neg", loc = "m.py:3", id = "n7.2"}
          : (!flow.tensor<[512], f32>) -> !flow.tensor<[512], f32>
      %4 = flow.reshape(%3) {loc = "m.py:3", id = "n7.3"}
          : (!flow.tensor<[512], f32>) -> !flow.tensor<[512, 1], f32>
      func.return %4 : !flow.tensor<[512, 1], f32>
    }
    }
    ```

    Of smoothed labels, the sum of a row's log-probabilities comes of the mean of the weight's rows
    and the log-sum. It declines where others read the logits (the program gives them as a result)
    or log-probabilities, and where blocks would save less than ``min_bytes``. What it did, and why
    not, is kept in ``irc.cross_entropy``; ``irc explain plan PLAN --fusion`` shows it.
    """

    name = "stream-cross-entropy"
    level: ClassVar[str] = "flow"

    min_bytes: int | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        lines: list[StringAttr] = []
        least = streaming.MIN_BYTES if self.min_bytes is None else self.min_bytes
        for func in op.body.block.ops:
            if not isinstance(func, FuncOp) or func.is_declaration:
                continue
            places = stream_losses(func.body.block, least)
            lines += [StringAttr(str(place)) for place in places]
            if any(place.done for place in places):
                simplify(func.body.block)
        if lines and STREAMED not in op.attributes:
            op.attributes[STREAMED] = ArrayAttr(lines)
