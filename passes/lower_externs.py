"""Pass ``lower-externs``: library calls that kernels can compute become ops of flow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from irc.dialects.attributes import to_attribute
from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import ExternOp, PointwiseOp, ReduceOp, carry, loc_of
from irc.dialects.noted import noted_placements
from irc.dialects.packed_products import EXPECTED, GroupedContractOp, GroupedOuterOp
from irc.kernels.expert_gradients import expert_derivative, summed_outer
from irc.kernels.experts import grouped_matmul, grouped_rows, layer_of_experts
from irc.kernels.holds import require_static
from irc.kernels.linear_loss import lower_linear_losses
from irc.kernels.pool_gradients import POOLS, pool_call, pool_derivative
from irc.kernels.puts import PUTS, put
from irc.kernels.schedule import require_target
from irc.kernels.searches import SEARCHES, searched
from irc.kernels.transposed import ATEN, ONNX, transposed_convolution
from irc.kernels.weight_gradient import ATEN_BACKWARD, weight_gradient
from irc.kernels.weights.fixed import Fixed
from irc.ops.derivatives_extern import VJP
from irc.ops.experts import EXPERTS
from irc.ops.grouped import GROUPED_MM, GROUPED_ROWS


@dataclass(frozen=True)
class LowerExternsPass(ModulePass):
    r"""Write transposed convolutions, layers of experts and losses as ops that kernels hold.

    A library call reads and writes contiguous tensors in memory; as ops of flow the same
    computation fuses with what stands around it, reads packed weights and stays in one segment.

    Before:

    ```mlir
    func.func @forward(%x: !flow.tensor<[1, 3, 5], f32>, %w: !flow.tensor<[3, 4, 2], f32>)
        -> !flow.tensor<[1, 4, 6], f32> {
      %0 = flow.extern(%x, %w) {target = "aten::convolution", loc = "m.py:3", id = "n0",
          arguments = "[[{\22operand\22:0},{\22operand\22:1},null,[1],[0],[1],true,[0],1],{}]"}
          : (!flow.tensor<[1, 3, 5], f32>, !flow.tensor<[3, 4, 2], f32>)
          -> !flow.tensor<[1, 4, 6], f32>
      func.return %0 : !flow.tensor<[1, 4, 6], f32>
    }
    ```

    After:

    ```mlir
    func.func @forward(%x: !flow.tensor<[1, 3, 5], f32>, %w: !flow.tensor<[3, 4, 2], f32>)
        -> !flow.tensor<[1, 4, 6], f32> {
      %0 = flow.reshape(%w) {loc = "m.py:3", id = "x0_0_0"}
          : (!flow.tensor<[3, 4, 2], f32>) -> !flow.tensor<[1, 3, 4, 2], f32>
      %1 = flow.transpose(%0) {loc = "m.py:3", id = "x0_0_1", perm = array<i64: 0, 2, 1, 3>}
          : (!flow.tensor<[1, 3, 4, 2], f32>) -> !flow.tensor<[1, 4, 3, 2], f32>
      %2 = flow.reshape(%1) {loc = "m.py:3", id = "x0_0_2"}
          : (!flow.tensor<[1, 4, 3, 2], f32>) -> !flow.tensor<[4, 3, 2], f32>
      %3 = flow.convolution(%x, %2) {loc = "m.py:3", id = "n0", strides = array<i64: 1>,
          low = array<i64: 1>, high = array<i64: 1>, dilations = array<i64: 1>, groups = 1 : i64,
          flipped = true}
          : (!flow.tensor<[1, 3, 5], f32>, !flow.tensor<[4, 3, 2], f32>)
          -> !flow.tensor<[1, 4, 6], f32>
      func.return %3 : !flow.tensor<[1, 4, 6], f32>
    }
    ```

    A transposed convolution is an ordinary one for each phase of its stride
    (:mod:`irc.kernels.transposed`), the gradient of its kernel one of the image by the gradient
    (:mod:`irc.kernels.weight_gradient`). Gradients of pools are sums of shifted views
    (:mod:`irc.kernels.pool_gradients`). Grouped matmuls and layers of experts become
    ``flow.grouped_contract`` where their matrices are fixed (:mod:`irc.kernels.experts`). The loss
    of a linear layer and its gradients become calls of a function for each block of its rows
    (:mod:`irc.kernels.linear_loss`).

    On a GPU only layers of experts, which a library runs one expert after the other, and losses are
    written so; for the rest libraries have kernels there. It declines on empty or complex tensors.
    """

    name = "lower-externs"
    level: ClassVar[str] = "spmd"

    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        require_target(self.target)
        lowered = KNOWN if self.target == "cpu" else frozenset({EXPERTS})
        fixed = Fixed(op)
        for number, func in enumerate(list(op.body.block.ops)):
            if isinstance(func, FuncOp) and not func.is_declaration:
                require_static(func)
                lower_linear_losses(op, func)
                _lower(func, fixed, f"x{number}_", lowered)


BY_ROWS = (PointwiseOp, ReduceOp, GroupedContractOp, GroupedOuterOp)
"""Ops of a layer of experts that go over its rows: others bring matrices in order."""

KNOWN = frozenset({
    ATEN, ATEN_BACKWARD, ONNX, EXPERTS, GROUPED_ROWS, *GROUPED_MM, *POOLS, *PUTS, *SEARCHES,
    VJP,
})  # fmt: skip
"""The library calls that kernels can compute."""


def _lower(func: FuncOp, fixed: Fixed, prefix: str, lowered: frozenset[str]) -> None:
    """Rewrite a function in place: the calls that are ``lowered``."""
    block = func.body.block
    for number, op in enumerate(list(block.ops)):
        if not isinstance(op, ExternOp) or op.target not in lowered:
            continue
        b, before = FlowBuilder(block, f"{prefix}{number}_", before=op), op.prev_op
        b.loc = loc_of(op)
        if (replacement := _lowered(b, op, fixed)) is None:
            continue
        results = replacement if isinstance(replacement, list) else [replacement]
        _stamp(before, op)
        _name(results, op)
        for old, new in zip(op.outputs, results, strict=True):
            old.replace_all_uses_with(new)
        op.detach()
        op.erase()


def _name(results: Sequence[SSAValue], op: ExternOp) -> None:
    """Give what makes the first result the name of the call, and the placements of its results."""
    owner = results[0].owner
    assert isinstance(owner, Operation), "an op has just made it"
    carry(owner, op)
    placed = noted_placements(
        [old for old, new in zip(op.outputs, results, strict=True) if new.owner is owner]
    )
    if placed is not None and len(placed) == len(owner.results):
        owner.attributes["sbp"] = placed


def _stamp(before: Operation | None, op: ExternOp) -> None:
    """Mark what stands between two ops as the call is: of the backward pass, of expected rows."""
    earlier = op.prev_op
    expected = _expected(before, op)
    while earlier is not None and earlier is not before:
        if expected is not None and isinstance(earlier, BY_ROWS):
            earlier.attributes[EXPECTED] = to_attribute(expected)
        for key in ("phase", "grad"):
            if key in op.attributes:
                earlier.attributes[key] = op.attributes[key]
        earlier = earlier.prev_op


def _expected(before: Operation | None, op: ExternOp) -> float | None:
    """Return the part of the rows of experts that is expected, where ops are those of a layer."""
    earlier = op.prev_op
    while earlier is not None and earlier is not before:
        if isinstance(earlier, GroupedContractOp | GroupedOuterOp) and earlier.fill is not None:
            return earlier.fill
        earlier = earlier.prev_op
    return None


def _lowered(b: FlowBuilder, op: ExternOp, fixed: Fixed) -> SSAValue | list[SSAValue] | None:
    """Append what a call computes; None where it stays."""
    match op.target:
        case target if target in (ATEN, ONNX):
            return transposed_convolution(b, op, fixed)
        case target if target == ATEN_BACKWARD:
            return weight_gradient(b, op)
        case target if target in POOLS:
            return pool_call(b, op)
        case target if target == VJP:
            return pool_derivative(b, op) or expert_derivative(b, op, fixed)
        case target if target in PUTS:
            return put(b, op)
        case target if target in SEARCHES:
            return searched(b, op)
        case target if target == EXPERTS:
            return layer_of_experts(b, op, fixed)
        case target if target in GROUPED_MM:
            return grouped_matmul(b, op, fixed) or summed_outer(b, op)
        case target if target == GROUPED_ROWS:
            return grouped_rows(b, op, fixed)
        case _:
            return None
