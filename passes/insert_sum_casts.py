"""Pass ``insert-sum-casts``: gradients are summed over ranks in a dtype that a user chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from irc.dialects.builder import arguments, entry, functions
from irc.dialects.flow import PointwiseOp, id_of, loc_of, phase_of, tensor
from irc.dialects.placement import Partial
from irc.dialects.sbp import BoxingOp
from irc.dialects.types import TensorType, is_float
from irc.errors import IrcError, did_you_mean
from irc.ops.rules import WIDER
from irc.training.accumulators import ACCUMULATOR

DTYPES = ("f32", "bf16", "f16")


@dataclass(frozen=True)
class InsertSumCastsPass(ModulePass):
    """Cast what each rank has of a weight's gradient before ranks add it up.

    A sum over ranks rounds to the dtype that it is made in. Sums in float32 of gradients in
    bfloat16 lose nothing on the way (Megatron's ``accumulate-allreduce-grads-in-fp32``, the
    ``reduce_dtype`` of FSDP); sums in bfloat16 of gradients in float32 move half the bytes.

    Option: ``dtype`` is f32, bf16 or f16.

    Run: insert-sum-casts{dtype=f32}

    Before:
    ```mlir
    builtin.module attributes {irc.mesh = "data=2"} {
    func.func @forward(%x: !flow.tensor<[4, 6], bf16, [data = S(0)]> {role = "input", name = "x"},
        %g: !flow.tensor<[4, 8], bf16, [data = S(0)]> {role = "input", name = "g"})
        -> (!flow.tensor<[6, 8], f32, [data = B]> {role = "gradient", name = "w"}) {
      %0 = flow.contract(%x, %g) {spec = "bi,bo->io", loc = "m.py:3", id = "n2.g0",
          phase = "backward", grad = "weight"}
          : (!flow.tensor<[4, 6], bf16, [data = S(0)]>, !flow.tensor<[4, 8], bf16, [data = S(0)]>)
          -> !flow.tensor<[6, 8], bf16, [data = P(sum)]>
      %1 = sbp.boxing(%0) {loc = "m.py:3", id = "n2.g0.box0"}
          : (!flow.tensor<[6, 8], bf16, [data = P(sum)]>)
          -> !flow.tensor<[6, 8], bf16, [data = B]>
      %2 = flow.pointwise(%1) {fn = "cast", loc = "m.py:3", id = "n2.g1", phase = "backward",
          grad = "weight"} : (!flow.tensor<[6, 8], bf16, [data = B]>)
          -> !flow.tensor<[6, 8], f32, [data = B]>
      func.return %2 : !flow.tensor<[6, 8], f32, [data = B]>
    }
    }
    ```

    After:
    ```mlir
    builtin.module attributes {irc.mesh = "data=2"} {
    func.func @forward(%x: !flow.tensor<[4, 6], bf16, [data = S(0)]> {role = "input", name = "x"},
        %g: !flow.tensor<[4, 8], bf16, [data = S(0)]> {role = "input", name = "g"})
        -> (!flow.tensor<[6, 8], f32, [data = B]> {role = "gradient", name = "w"}) {
      %0 = flow.contract(%x, %g) {spec = "bi,bo->io", loc = "m.py:3", id = "n2.g0",
          phase = "backward", grad = "weight"}
          : (!flow.tensor<[4, 6], bf16, [data = S(0)]>, !flow.tensor<[4, 8], bf16, [data = S(0)]>)
          -> !flow.tensor<[6, 8], bf16, [data = P(sum)]>
      %1 = flow.pointwise(%0) {fn = "cast", apart = true, loc = "m.py:3", id = "n2.g0.box0.in"}
          : (!flow.tensor<[6, 8], bf16, [data = P(sum)]>)
          -> !flow.tensor<[6, 8], f32, [data = P(sum)]>
      %2 = sbp.boxing(%1) {loc = "m.py:3", id = "n2.g0.box0"}
          : (!flow.tensor<[6, 8], f32, [data = P(sum)]>)
          -> !flow.tensor<[6, 8], f32, [data = B]>
      func.return %2 : !flow.tensor<[6, 8], f32, [data = B]>
    }
    }
    ```

    What reads the sum in its own dtype gets it rounded once. Gradients of activations, which ranks
    of a tensor axis add up, stay as they are.
    """

    name = "insert-sum-casts"
    level: ClassVar[str] = "flow+sbp"

    dtype: str = "f32"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Change the boxings of every function."""
        if self.dtype not in DTYPES:
            raise IrcError(
                "option-value",
                f"insert-sum-casts takes no dtype={self.dtype}",
                help=did_you_mean(self.dtype, DTYPES),
            )
        known = functions(op)
        sums = {v for role, _, v in arguments(entry(op)) if role == ACCUMULATOR}
        for func in known.values():
            for boxing in [each for each in func.body.block.ops if isinstance(each, BoxingOp)]:
                source = boxing.inputs[0]
                if _adds_up(boxing) and _is_gradient(source, known, sums):
                    self._cast(boxing)

    def _cast(self, boxing: BoxingOp) -> None:
        source, result = boxing.inputs[0], boxing.outputs[0]
        if tensor(source).dtype == self.dtype:
            return
        name, loc, before = id_of(boxing), loc_of(boxing), InsertPoint.before(boxing)
        cast = PointwiseOp.make(
            [source], [self._as(source)], fn="cast", apart=True, loc=loc, id=f"{name}.in"
        )
        total = BoxingOp.make(cast.outputs, [self._as(result)])
        total.attributes.update(boxing.attributes)
        back = PointwiseOp.make(total.outputs, [result.type], fn="cast", loc=loc, id=f"{name}.out")
        Rewriter.insert_op([cast, total], before)
        for reader in [use.operation for use in result.uses]:
            if self.dtype in WIDER[tensor(source).dtype] and _is_cast(reader, self.dtype):
                # What is cast to it anyway is not rounded in between.
                reader.results[0].replace_all_uses_with(total.outputs[0])
                Rewriter.erase_op(reader)
        if result.first_use is not None:
            Rewriter.insert_op(back, before)
            result.replace_all_uses_with(back.outputs[0])
        Rewriter.erase_op(boxing)

    def _as(self, value: SSAValue) -> TensorType:
        kind = tensor(value)
        return TensorType.of(kind.shape, self.dtype).with_placement(kind.placement)


def _is_cast(op: Operation, dtype: str) -> bool:
    is_cast = isinstance(op, PointwiseOp) and op.plain["fn"] == "cast"
    return is_cast and tensor(op.results[0]).dtype == dtype


def _adds_up(boxing: BoxingOp) -> bool:
    """Whether ranks have summands before it and not after it."""
    before, after = (tensor(v).placement for v in (boxing.inputs[0], boxing.outputs[0]))
    if before is None or after is None or not is_float(tensor(boxing.inputs[0]).dtype):
        return False
    summed = [axis for axis, placed in before.axes if placed == Partial("sum")]
    return any(after[axis] != Partial("sum") for axis in summed)


def _is_gradient(value: SSAValue, known: Mapping[str, FuncOp], sums: set[SSAValue]) -> bool:
    """Whether a value serves the gradient of a weight alone."""
    if isinstance(value, BlockArgument):
        return value in sums
    op = value.owner
    assert isinstance(op, Operation)
    assert isinstance(value, OpResult)
    if isinstance(op, CallOp):
        end = known[op.callee.string_value()].body.block.last_op
        assert isinstance(end, ReturnOp)
        return _is_gradient(end.operands[value.index], known, sums)
    if not phase_of(op) and op.operands:
        return _is_gradient(op.operands[0], known, sums)  # a boxing, or a cast of this pass
    grad = op.attributes.get("grad")
    return isinstance(grad, StringAttr) and grad.data == "weight"
