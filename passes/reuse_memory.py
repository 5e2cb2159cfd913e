"""Pass ``reuse-memory``: values that are updated element by element stay where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from irc.dialects.builder import entry
from irc.dialects.comm import AllReduceOp, WaitOp
from irc.dialects.launches import LaunchOp
from irc.plan.element_pairs import KernelPairs
from irc.plan.memories import (
    OVER,
    PREPARED,
    Memories,
    collective_of,
    decide,
    num_bytes,
    signature_of,
    steps_of,
)

MIN_BYTES = 1 << 22
"""Smaller values find gaps between others."""


@dataclass(frozen=True)
class ReuseMemoryPass(ModulePass):
    """Let kernels write large results, and all-reduces any, over what nothing reads later.

    A sum that grows by a term for each block (the gradient of a weight that blocks of rows add to)
    is a new value at each step, of which the step before is read for the last time. Where the
    kernel may write it in place, both are one memory: half of the bytes, which a search for gaps
    could not save. An all-reduce of what nothing else reads happens where that lies, and copies
    nothing. ``over`` says of each result which operand it is written over. Linear in the number of
    operands.

    Before:

    ```mlir
    func.func @forward(%x: !flow.tensor<[4], f32>) -> !flow.tensor<[8], f32> {
      %0 = flow.cumulative(%x) {fn = "sum", dim = 0 : i64, exclusive = false, reverse = false,
          loc = "m.py:3", id = "n0"} : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      %1 = comm.all_reduce(%0) {axis = "data", fn = "sum", loc = "m.py:4", id = "n1"}
          : (!flow.tensor<[4], f32>) -> !comm.pending<!flow.tensor<[4], f32>>
      %2 = comm.wait(%1) {loc = "m.py:4", id = "n1"}
          : (!comm.pending<!flow.tensor<[4], f32>>) -> !flow.tensor<[4], f32>
      %3 = flow.concat(%x, %2) {dim = 0 : i64, loc = "m.py:5", id = "n2"}
          : (!flow.tensor<[4], f32>, !flow.tensor<[4], f32>) -> !flow.tensor<[8], f32>
      func.return %3 : !flow.tensor<[8], f32>
    }
    ```

    After:

    ```mlir
    func.func @forward(%x: !flow.tensor<[4], f32>) -> !flow.tensor<[8], f32> {
      %0 = flow.cumulative(%x) {fn = "sum", dim = 0 : i64, exclusive = false, reverse = false,
          loc = "m.py:3", id = "n0"} : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      %1 = comm.all_reduce(%0) {axis = "data", fn = "sum", loc = "m.py:4", id = "n1",
          over = array<i64: 0>} : (!flow.tensor<[4], f32>) -> !comm.pending<!flow.tensor<[4], f32>>
      %2 = comm.wait(%1) {loc = "m.py:4", id = "n1"}
          : (!comm.pending<!flow.tensor<[4], f32>>) -> !flow.tensor<[4], f32>
      %3 = flow.concat(%x, %2) {dim = 0 : i64, loc = "m.py:5", id = "n2"}
          : (!flow.tensor<[4], f32>, !flow.tensor<[4], f32>) -> !flow.tensor<[8], f32>
      func.return %3 : !flow.tensor<[8], f32>
    }
    ```
    """

    name = "reuse-memory"
    level: ClassVar[str] = "task"
    also_on: ClassVar[tuple[str, ...]] = ("spmd",)
    after: ClassVar[str] = "prepare-weights"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        func = entry(op)
        steps = [each for each in steps_of(func.body.block) if PREPARED not in each.attributes]
        reuse, pairs = _Reuse(Memories(func), steps), KernelPairs(op)
        for time, step in enumerate(steps):
            if isinstance(step, AllReduceOp):
                reuse.reduce(step, time)
            elif isinstance(step, LaunchOp) and any(map(reuse.is_large, step.results)):
                reuse.launch(step, [*pairs.of(step)], time)


class _Reuse:
    """Who owns each memory, and until when it is touched; results go over operands.

    Args:
        memories: of the program as it is.
        steps: those of every call.
    """

    def __init__(self, memories: Memories, steps: Sequence[Operation]) -> None:
        self._memories = memories
        self._over: dict[SSAValue, SSAValue] = {}
        self._last: dict[SSAValue, int] = {}
        self._last_but_waits: dict[SSAValue, int] = {}
        self._waits: dict[Operation, int] = {}
        for time, step in enumerate(steps):
            roots = dict.fromkeys(memories.touched(step), time)
            self._last |= roots
            if isinstance(step, WaitOp):
                self._waits[collective_of(step)] = time
            else:
                self._last_but_waits |= roots

    def is_large(self, result: SSAValue) -> bool:
        """True for a result that finds no gap easily."""
        return num_bytes(result) >= MIN_BYTES

    def launch(self, launch: LaunchOp, pairs: Sequence[tuple[int, int]], time: int) -> None:
        """Write large results over operands that die here, where the kernel may."""
        args = [*launch.operands, *launch.results]
        roots = [self._root(value) for value in args]
        over = [-1] * len(launch.results)
        for source, place in pairs:
            old, new = roots[source], args[place]
            if (
                self._are_free(old, new)
                and signature_of(old) == signature_of(new)
                and self._memories.is_dense(args[source])
                and self.is_large(new)
                and self._last[old] == time
                and roots.count(old) == 1
                and roots.count(new) == 1
            ):
                roots[place] = old
                over[place - len(launch.operands)] = source
                self._merge(old, new)
        if max(over) >= 0:
            decide(launch, OVER, over)

    def reduce(self, start: AllReduceOp, time: int) -> None:
        """Let an all-reduce write over its operand, where that is all that reads it."""
        (source,), (result,) = start.inputs, start.outputs
        root = self._root(source)
        fits = (
            self._are_free(root, result)
            and num_bytes(root) == num_bytes(result)
            and signature_of(root)[1] == signature_of(result)[1]
            and self._memories.is_dense(source)
        )
        # Its own wait touches the operand, too.
        wait = self._waits[start]
        if fits and self._last[root] == wait and self._last_but_waits[root] == time:
            decide(start, OVER, [0])
            self._merge(root, result)

    def _are_free(self, old: SSAValue, new: SSAValue) -> bool:
        """True where a result has a memory that a call leases, and another may be that."""
        arena = self._memories.is_in_arena
        return new not in self._over and arena(old) and arena(new)

    def _merge(self, root: SSAValue, result: SSAValue) -> None:
        """Make a result, and with it what is a view of it, views of what it is written over."""
        self._over[result] = root
        self._last[root] = self._last[result]
        self._last_but_waits[root] = self._last_but_waits[result]

    def _root(self, value: SSAValue) -> SSAValue:
        root = self._memories.root(value)
        return self._over.get(root, root)
