"""Pass ``insert-copies``: what leaves a program is copied where it has no memory of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass

from irc.dialects.builder import arguments, entry
from irc.dialects.launches import CopyOp
from irc.plan.memories import CALLER_ROLES, INTO, Memories, decide, num_bytes, returned


@dataclass(frozen=True)
class InsertCopiesPass(ModulePass):
    """Give each output dense memory of its own, and put each new state where the old one lies.

    A value that is computed for an output is computed in the memory that the caller gets. One that
    shows other memory (an argument, a part of something, another output) is copied. A state's new
    value is copied into the argument (``into``); ``update-in-place`` then takes out the copies of
    those that can be computed there. All states are read before one is written: `a, b = b, a`
    swaps.

    Before:

    ```mlir
    func.func @forward(%x: !flow.tensor<[4], f32> {role = "input", name = "x"},
        %a: !flow.tensor<[4], f32> {role = "buffer", name = "a"},
        %b: !flow.tensor<[4], f32> {role = "buffer", name = "b"})
        -> (!flow.tensor<[4], f32> {role = "output", name = "y"},
            !flow.tensor<[4], f32> {role = "state", name = "a"}) {
      func.return %x, %b : !flow.tensor<[4], f32>, !flow.tensor<[4], f32>
    }
    ```

    After:

    ```mlir
    func.func @forward(%x: !flow.tensor<[4], f32> {role = "input", name = "x"},
        %a: !flow.tensor<[4], f32> {role = "buffer", name = "a"},
        %b: !flow.tensor<[4], f32> {role = "buffer", name = "b"})
        -> (!flow.tensor<[4], f32> {role = "output", name = "y"},
            !flow.tensor<[4], f32> {role = "state", name = "a"}) {
      %y = task.copy(%x) {loc = "unknown"}
          : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      %old = task.copy(%b) {loc = "unknown"} : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      %new = task.copy(%old) {loc = "unknown", into = array<i64: 1>}
          : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      func.return %y, %new : !flow.tensor<[4], f32>, !flow.tensor<[4], f32>
    }
    ```
    """

    name = "insert-copies"
    level: ClassVar[str] = "task"
    also_on: ClassVar[tuple[str, ...]] = ("spmd",)
    after: ClassVar[str] = "update-caches"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        func = entry(op)
        end = func.body.block.last_op
        assert isinstance(end, ReturnOp)
        memories, outputs = Memories(func), set[SSAValue]()
        states: list[_State] = []
        for position, (_, value, state) in enumerate(returned(func)):
            if state is not None:
                states.append(_State(position, value, state))
            elif _is_own(memories, value) and memories.root(value) not in outputs:
                outputs.add(memories.root(value))
            else:
                end.operands[position] = _copied(end, value)
        moved = [each for each in states if not each.lies_there(memories)]
        writable = {
            value
            for role, _, value in arguments(func)
            if role == "cache" or role not in CALLER_ROLES
        }
        read = [
            _copied(end, each.value) if memories.root(each.value) in writable else each.value
            for each in moved
        ]
        for each, value in zip(moved, read, strict=True):
            end.operands[each.position] = _copied(end, value, into=each.argument)


@dataclass(frozen=True)
class _State:
    """A result that is the new value of an argument."""

    position: int
    value: SSAValue
    argument: BlockArgument

    def lies_there(self, memories: Memories) -> bool:
        """True where the new value is the argument itself, or was written into it."""
        same = memories.root(self.value) is self.argument
        return same and not memories.is_view(self.value)


def _is_own(memories: Memories, value: SSAValue) -> bool:
    """True for a value that is all of a memory that the program itself makes."""
    root = memories.root(value)
    whole = memories.is_dense(value) and num_bytes(value) == num_bytes(root)
    return whole and not isinstance(root, BlockArgument)


def _copied(end: Operation, value: SSAValue, into: BlockArgument | None = None) -> SSAValue:
    """Insert a copy of a value in front of the end of its function."""
    copy = CopyOp.make([value], [value.type])
    if into is not None:
        decide(copy, INTO, [into.index])
    block = end.parent_block()
    assert block is not None
    block.insert_op_before(copy, end)
    return copy.outputs[0]
