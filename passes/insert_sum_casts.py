"""Pass ``insert-sum-casts``: gradients are summed over ranks in a dtype that a user chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, BlockArgument, Operation, OpResult, SSAValue
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

    What reads the sum in its own dtype gets it rounded once. Where a sum over one axis leaves
    summands of another, which a caller adds up, they go there as they were added up. Gradients of
    activations, which ranks of a tensor axis add up, stay as they are.
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
                source = boxing.x
                if _adds_up(boxing) and _is_gradient(source, known, sums):
                    self._cast(boxing)
            if func is not entry(op):
                self._hand_on(func, op)

    def _cast(self, boxing: BoxingOp) -> None:
        source, result = boxing.x, boxing.outputs[0]
        if tensor(source).dtype == self.dtype:
            return
        name, loc, before = id_of(boxing), loc_of(boxing), InsertPoint.before(boxing)
        summand = self._behind(source)
        if summand is None:
            cast = PointwiseOp.make(
                [source], [self._as(source)], fn="cast", apart=True, loc=loc, id=f"{name}.in"
            )
            Rewriter.insert_op(cast, before)
            summand = cast.outputs[0]
        total = BoxingOp.make([summand], [self._as(result)])
        total.attributes.update(boxing.attributes)
        Rewriter.insert_op(total, before)
        self._round(total.outputs[0], result, loc, f"{name}.out", before)
        Rewriter.erase_op(boxing)
        if isinstance(source.owner, PointwiseOp) and source.first_use is None:
            Rewriter.erase_op(source.owner)  # summands that were rounded on the way here

    def _round(self, total: SSAValue, old: SSAValue, loc: str, name: str, at: InsertPoint) -> None:
        """Give what reads a sum in its own dtype the sum in that of this pass, rounded once."""
        kind = tensor(old)
        for reader in [use.operation for use in old.uses]:
            if self.dtype in WIDER[kind.dtype] and _is_cast(reader, self.dtype):
                # What is cast to it anyway is not rounded in between.
                reader.results[0].replace_all_uses_with(total)
                Rewriter.erase_op(reader)
        if old.first_use is None:
            return
        is_part = kind.placement is not None and bool(kind.placement.partial_axes())
        back = PointwiseOp.make(
            [total], [kind], fn="cast", apart=True if is_part else None, loc=loc, id=name
        )
        Rewriter.insert_op(back, at)
        old.replace_all_uses_with(back.outputs[0])

    def _behind(self, value: SSAValue) -> SSAValue | None:
        """Return the summands of which these are rounded ones; None of what was not rounded."""
        op = value.owner
        if not isinstance(op, PointwiseOp) or not op.apart:
            return None
        return op.a if tensor(op.a).dtype == self.dtype else None

    def _hand_on(self, func: FuncOp, module: ModuleOp) -> None:
        """Return summands of a function as they were added up; its callers go on with them."""
        end = func.body.block.last_op
        assert isinstance(end, ReturnOp)
        for index, value in enumerate(end.operands):
            summand = self._behind(value)
            if summand is None or not value.has_one_use():
                continue
            end.operands[index] = summand
            assert isinstance(value.owner, Operation)
            Rewriter.erase_op(value.owner)
            for call in [op for op in module.walk() if isinstance(op, CallOp)]:
                if call.callee.string_value() == func.sym_name.data:
                    self._receive(call, index, summand.type)
        func.update_function_type()

    def _receive(self, call: CallOp, index: int, kind: Attribute) -> None:
        """Give a call a result of another type, and what reads it the old one."""
        types = [kind if i == index else v.type for i, v in enumerate(call.results)]
        wider = CallOp(call.callee, [*call.operands], types)
        wider.attributes.update(call.attributes)
        Rewriter.insert_op(wider, InsertPoint.before(call))
        name, at = f"{id_of(call)}.{index}.out", InsertPoint.before(call)
        self._round(wider.results[index], call.results[index], loc_of(call), name, at)
        for old, new in zip(call.results, wider.results, strict=True):
            old.replace_all_uses_with(new)
        Rewriter.erase_op(call)

    def _as(self, value: SSAValue) -> TensorType:
        kind = tensor(value)
        return TensorType.of(kind.shape, self.dtype).with_placement(kind.placement)


def _is_cast(op: Operation, dtype: str) -> bool:
    is_cast = isinstance(op, PointwiseOp) and op.fn == "cast"
    return is_cast and tensor(op.results[0]).dtype == dtype


def _adds_up(boxing: BoxingOp) -> bool:
    """Whether ranks have summands before it and not after it."""
    before, after = (tensor(v).placement for v in (boxing.x, boxing.outputs[0]))
    if before is None or after is None or not is_float(tensor(boxing.x).dtype):
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
