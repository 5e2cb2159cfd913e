"""Pass ``update-in-place``: kernels write states where they lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from irc.dialects.builder import entry
from irc.dialects.launches import CopyOp, LaunchOp
from irc.plan.element_pairs import KernelPairs
from irc.plan.memories import INTO, Memories, decide, decided, num_bytes, signature_of, steps_of


@dataclass(frozen=True)
class UpdateInPlacePass(ModulePass):
    """Let kernels write states where they lie, instead of into memory that is copied back.

    An optimizer reads each parameter and moment once and gives new ones, element by element. Where
    nothing reads the old value later, the kernel's result can be the state's own memory (``into``):
    a third of the traffic, and no copy at all. Linear in the number of operands.

    Before:

    ```mlir
    func.func @forward(%x: !flow.tensor<[4], f32> {role = "input", name = "x"},
        %a: !flow.tensor<[4], f32> {role = "buffer", name = "a"})
        -> (!flow.tensor<[4], f32> {role = "state", name = "a"}) {
      %0 = task.launch(%a, %x) {kernel = @add, loc = "m.py:3", id = "n0"}
          : (!flow.tensor<[4], f32>, !flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      %1 = task.copy(%0) {loc = "unknown", into = array<i64: 1>}
          : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      func.return %1 : !flow.tensor<[4], f32>
    }
    task.kernel @add {template = "rows", space = array<i64: 4>, parallel = 1, num_inputs = 2,
        mapping = #task.map<spatial(1) * repeat(4)>, tile = {}, sources = ["n0"], loc = "m.py:3"}
        : {
    ^bb0(%0: !task.buffer<4, f32>, %1: !task.buffer<4, f32>, %2: !task.buffer<4, f32>):
      %3 = task.load(%0) {offset = 0, strides = array<i64: 1>, loc = "m.py:3", id = "n0"}
          : (!task.buffer<4, f32>) -> !task.value<f32, row>
      %4 = task.load(%1) {offset = 0, strides = array<i64: 1>, loc = "m.py:3", id = "n0"}
          : (!task.buffer<4, f32>) -> !task.value<f32, row>
      %5 = task.pointwise(%3, %4) {fn = "add", loc = "m.py:3", id = "n0"}
          : (!task.value<f32, row>, !task.value<f32, row>) -> !task.value<f32, row>
      task.store(%5, %2) {offset = 0, strides = array<i64: 1>, loc = "m.py:3"}
          : (!task.value<f32, row>, !task.buffer<4, f32>) -> ()
    }
    ```

    After:

    ```mlir
    func.func @forward(%x: !flow.tensor<[4], f32> {role = "input", name = "x"},
        %a: !flow.tensor<[4], f32> {role = "buffer", name = "a"})
        -> (!flow.tensor<[4], f32> {role = "state", name = "a"}) {
      %0 = task.launch(%a, %x) {kernel = @add, loc = "m.py:3", id = "n0", into = array<i64: 1>}
          : (!flow.tensor<[4], f32>, !flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      func.return %0 : !flow.tensor<[4], f32>
    }
    task.kernel @add {template = "rows", space = array<i64: 4>, parallel = 1, num_inputs = 2,
        mapping = #task.map<spatial(1) * repeat(4)>, tile = {}, sources = ["n0"], loc = "m.py:3"}
        : {
    ^bb0(%0: !task.buffer<4, f32>, %1: !task.buffer<4, f32>, %2: !task.buffer<4, f32>):
      %3 = task.load(%0) {offset = 0, strides = array<i64: 1>, loc = "m.py:3", id = "n0"}
          : (!task.buffer<4, f32>) -> !task.value<f32, row>
      %4 = task.load(%1) {offset = 0, strides = array<i64: 1>, loc = "m.py:3", id = "n0"}
          : (!task.buffer<4, f32>) -> !task.value<f32, row>
      %5 = task.pointwise(%3, %4) {fn = "add", loc = "m.py:3", id = "n0"}
          : (!task.value<f32, row>, !task.value<f32, row>) -> !task.value<f32, row>
      task.store(%5, %2) {offset = 0, strides = array<i64: 1>, loc = "m.py:3"}
          : (!task.value<f32, row>, !task.buffer<4, f32>) -> ()
    }
    ```

    A state that something reads after the kernel keeps its copy, and so does one whose kernel reads
    it in another order than it writes.
    """

    name = "update-in-place"
    level: ClassVar[str] = "task"
    also_on: ClassVar[tuple[str, ...]] = ("spmd",)
    after: ClassVar[str] = "insert-copies"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        func = entry(op)
        steps = steps_of(func.body.block)
        copies = [each for each in steps if isinstance(each, CopyOp) and INTO in each.attributes]
        if not copies:
            return
        update = _Update(Memories(func), KernelPairs(op), steps)
        targets = Counter(decided(copy, INTO)[0] for copy in copies)
        for copy in copies:
            (state,) = decided(copy, INTO)
            if targets[state] == 1:
                update.try_at(copy, func.body.block.args[state])
        for launch, into in update.into.items():
            decide(launch, INTO, into)


class _Update:
    """Knows when each memory is touched for the last time.

    Args:
        memories: of the program as it is.
        pairs: of its kernels.
        steps: in order.
    """

    def __init__(self, memories: Memories, pairs: KernelPairs, steps: Sequence[Operation]) -> None:
        self.into: dict[LaunchOp, list[int]] = {}
        self._memories, self._pairs = memories, pairs
        self._time = {step: time for time, step in enumerate(steps)}
        self._last = _last_touch(memories, steps)
        self._positions: dict[LaunchOp, dict[SSAValue, list[int]]] = {}

    def try_at(self, copy: CopyOp, state: BlockArgument) -> None:
        """Let the kernel that gives a state's new value write it, if it may."""
        value = self._memories.whole(copy.x)
        if not isinstance(value, OpResult) or not isinstance(launch := value.op, LaunchOp):
            return
        into = self.into.get(launch)
        fits = (
            self._memories.is_in_arena(value)
            and (into is None or into[value.index] < 0)
            and _lie_alike(value, state)
            and self._last.get(state, -1) <= self._time[launch]
        )
        if fits and self._may_be_one(launch, value.index, state):
            # Written at once when all are known: an optimizer's launch has hundreds of results.
            self.into.setdefault(launch, [-1] * len(launch.results))[value.index] = state.index
            copy.outputs[0].replace_all_uses_with(copy.x)
            copy.detach()
            copy.erase()

    def _may_be_one(self, launch: LaunchOp, place: int, state: BlockArgument) -> bool:
        """True where a kernel reads a state as it writes it, or not at all."""
        if launch not in self._positions:  # a launch may have thousands of operands
            places = self._positions[launch] = dict[SSAValue, list[int]]()
            for position, operand in enumerate(launch.operands):
                places.setdefault(self._memories.root(operand), []).append(position)
        pairs, number = self._pairs.of(launch), len(launch.operands) + place
        return all(
            self._memories.whole(launch.operands[position]) is state and (position, number) in pairs
            for position in self._positions[launch].get(state, ())
        )


def _last_touch(memories: Memories, steps: Sequence[Operation]) -> dict[SSAValue, int]:
    """Return the last step that touches each memory, but for the copies that may go."""
    last: dict[SSAValue, int] = {}
    for time, step in enumerate(steps):
        is_update = isinstance(step, CopyOp) and INTO in step.attributes
        roots = map(memories.root, step.operands) if is_update else memories.touched(step)
        last |= dict.fromkeys(roots, time)
    return last


def _lie_alike(one: SSAValue, other: SSAValue) -> bool:
    """True where two dense values hold as many elements of a dtype, whatever their shapes."""
    return num_bytes(one) == num_bytes(other) and signature_of(one)[1] == signature_of(other)[1]
