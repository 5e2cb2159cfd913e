"""Pass ``inline-blocks``: calls of blocks become what the blocks do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from irc.dialects.builder import entry, functions
from irc.dialects.flow import id_of, rename_ids
from irc.errors import IrcError

MAX_CALL_DEPTH = 32


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
        inlining = _Inlining(known)
        for call in [each for each in entry(op).body.block.ops if isinstance(each, CallOp)]:
            inlining.replace(call)
        for name in inlining.called:
            known[name].detach()
            known[name].erase(safe_erase=False)


class _Inlining:
    """Writes the ops of blocks in front of calls.

    Args:
        known: the functions of the module by name.
    """

    def __init__(self, known: Mapping[str, FuncOp]) -> None:
        self.called: dict[str, None] = {}
        self._known = known

    def replace(self, call: CallOp) -> None:
        """Put the ops of a block in the place of a call of the entry."""
        block = call.parent_block()
        assert block is not None
        ops: list[Operation] = []
        values = self._body(call, call.operands, "", 0, ops)
        block.insert_ops_before(ops, call)
        for result, value in zip(call.results, values, strict=True):
            result.replace_all_uses_with(value)
        call.detach()
        call.erase()

    def _body(
        self, call: CallOp, given: Sequence[SSAValue], path: str, depth: int, ops: list[Operation]
    ) -> list[SSAValue]:
        name = call.callee.string_value()
        if depth > MAX_CALL_DEPTH:
            raise IrcError("ir-invalid", f"@{name} calls itself, or too deeply")
        self.called[name] = None
        block, path = self._known[name].body.block, f"{path}{id_of(call)}/"
        values: dict[SSAValue, SSAValue] = dict(zip(block.args, given, strict=True))
        for op in block.ops:
            if isinstance(op, ReturnOp):
                break
            if isinstance(op, CallOp):
                made = self._body(op, [values[v] for v in op.operands], path, depth + 1, ops)
            else:
                copy = op.clone(values)
                # What has no id of its own goes by that of the call.
                copy.attributes.setdefault("id", StringAttr(""))
                rename_ids(copy, path.__add__)
                ops.append(copy)
                made = copy.results
            values.update(zip(op.results, made, strict=True))
        end = block.last_op
        assert end is not None
        return [values[value] for value in end.operands]
