"""Pass ``prepare-weights``: what depends on weights alone is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from irc.dialects.builder import arguments, entry
from irc.dialects.comm import CollectiveOp, WaitOp
from irc.dialects.launches import CopyOp, ViewOp
from irc.kernels.weights.fixed import CONSTANT_ROLES, IMPURE
from irc.plan.memories import INTO, PREPARED, Memories, decide, decided, steps_of

NAMES = frozenset({"id", "loc"})
"""Attributes that say nothing of what a step computes."""


@dataclass(frozen=True)
class PrepareWeightsPass(ModulePass):
    """Mark the ops that read nothing but weights which no op writes.

    Packing a weight for a kernel, folding a batch norm into a convolution, joining three
    projections, a causal mask: none of them changes from call to call. They are run when a plan is
    loaded. ``prepared`` says of each result whether the ops of a call read it (1), so that it is
    kept, or the preparation alone (0). Linear in the number of operands.

    Before:

    ```mlir
    func.func @forward(%x: !flow.tensor<[4, 4], f32> {role = "input", name = "x"},
        %w: !flow.tensor<[4, 4], f32> {role = "parameter", name = "w"})
        -> !flow.tensor<[4, 8], f32> {
      %0 = flow.cumulative(%w) {fn = "sum", dim = 0 : i64, exclusive = false, reverse = false,
          loc = "m.py:3", id = "n0"} : (!flow.tensor<[4, 4], f32>) -> !flow.tensor<[4, 4], f32>
      %1 = flow.cumulative(%0) {fn = "sum", dim = 1 : i64, exclusive = false, reverse = false,
          loc = "m.py:4", id = "n1"} : (!flow.tensor<[4, 4], f32>) -> !flow.tensor<[4, 4], f32>
      %2 = flow.concat(%x, %1) {dim = 1 : i64, loc = "m.py:5", id = "n2"}
          : (!flow.tensor<[4, 4], f32>, !flow.tensor<[4, 4], f32>) -> !flow.tensor<[4, 8], f32>
      func.return %2 : !flow.tensor<[4, 8], f32>
    }
    ```

    After:

    ```mlir
    func.func @forward(%x: !flow.tensor<[4, 4], f32> {role = "input", name = "x"},
        %w: !flow.tensor<[4, 4], f32> {role = "parameter", name = "w"})
        -> !flow.tensor<[4, 8], f32> {
      %0 = flow.cumulative(%w) {fn = "sum", dim = 0 : i64, exclusive = false, reverse = false,
          loc = "m.py:3", id = "n0", prepared = array<i64: 0>}
          : (!flow.tensor<[4, 4], f32>) -> !flow.tensor<[4, 4], f32>
      %1 = flow.cumulative(%0) {fn = "sum", dim = 1 : i64, exclusive = false, reverse = false,
          loc = "m.py:4", id = "n1", prepared = array<i64: 1>}
          : (!flow.tensor<[4, 4], f32>) -> !flow.tensor<[4, 4], f32>
      %2 = flow.concat(%x, %1) {dim = 1 : i64, loc = "m.py:5", id = "n2"}
          : (!flow.tensor<[4, 4], f32>, !flow.tensor<[4, 4], f32>) -> !flow.tensor<[4, 8], f32>
      func.return %2 : !flow.tensor<[4, 8], f32>
    }
    ```

    What is computed twice of the same, such as the mask that each layer makes for its kernel, is
    computed and kept once.

    What a program returns is computed at every call, and so is what is drawn, exchanged, or run by
    a library of which it is not known that it gives the same twice.
    """

    name = "prepare-weights"
    level: ClassVar[str] = "task"
    also_on: ClassVar[tuple[str, ...]] = ("spmd",)
    after: ClassVar[str] = "update-in-place"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        func = entry(op)
        if equal := _equal(func, _prepared(func, Memories(func))):
            for step, first in equal.items():
                for result, other in zip(step.results, first.results, strict=True):
                    result.replace_all_uses_with(other)
                step.detach()
                step.erase()
        memories = Memories(func)
        prepared = _prepared(func, memories)
        apart = set(prepared)
        kept = {
            memories.root(value)
            for step in steps_of(func.body.block)
            if step not in apart
            for value in step.operands
        }
        for step in prepared:
            decide(step, PREPARED, [int(result in kept) for result in step.results])


def _prepared(func: FuncOp, memories: Memories) -> list[Operation]:
    """Return the steps that read nothing but weights which no step writes, in order."""
    fixed, prepared = _fixed_arguments(func), list[Operation]()
    for step in steps_of(func.body.block):
        if (
            _is_function(step)
            and all(map(memories.is_in_arena, step.results))
            and all(memories.root(value) in fixed for value in step.operands)
        ):
            prepared.append(step)
            fixed.update(step.results)
    return prepared


def _equal(func: FuncOp, prepared: Sequence[Operation]) -> dict[Operation, Operation]:
    """Return by step, or view of what one gives, the first one that computes the same."""
    steps, known = set(prepared), dict[object, Operation]()
    equal: dict[Operation, Operation] = {}
    same = {value: value for value in _fixed_arguments(func)}
    for op in func.body.block.ops:
        if op not in steps and not (isinstance(op, ViewOp) and op.operands[0] in same):
            continue
        named = {**op.properties, **op.attributes}
        said = tuple((name, named[name]) for name in sorted(named) if name not in NAMES)
        read = tuple(same.get(value, value) for value in op.operands)
        first = known.setdefault((op.name, said, read, tuple(op.result_types)), op)
        if first is not op:
            equal[op] = first
        same |= zip(op.results, first.results, strict=True)
    return equal


def _fixed_arguments(func: FuncOp) -> set[SSAValue]:
    """Return the weights that no step writes."""
    written = {place for op in func.body.block.ops for place in decided(op, INTO)}
    return {
        value
        for place, (role, _, value) in enumerate(arguments(func))
        if role in CONSTANT_ROLES and place not in written
    }


def _is_function(step: Operation) -> bool:
    """True for a step that gives the same results whenever it is given the same operands."""
    return not isinstance(step, (CollectiveOp, WaitOp, CopyOp, *IMPURE))
