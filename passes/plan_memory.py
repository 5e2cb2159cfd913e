"""Pass ``plan-memory``: where in the arena each value lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from irc.dialects.builder import entry
from irc.dialects.comm import CollectiveOp, WaitOp
from irc.dialects.items import ITEM_BYTES
from irc.dialects.launches import ViewOp
from irc.errors import InternalError
from irc.plan.arena import Interval, assign_offsets, lower_bound_bytes
from irc.plan.memories import (
    ARENA,
    ARENA_BYTES,
    ARENA_LOWER_BYTES,
    Memories,
    collective_of,
    decide,
    num_bytes,
    scratch_of,
    signature_of,
    steps_of,
)
from irc.sharding.mesh import mesh_of


@dataclass(frozen=True)
class PlanMemoryPass(ModulePass):
    """Give each value that a call makes for itself a place in one arena.

    A value lives from the step that makes it to the last that reads it; what a collective uses
    lives until its wait. Values that are alive together do not overlap: the largest first, each in
    the smallest gap (:mod:`irc.plan.arena`). ``arena`` is the first byte of each result, and behind
    the results of what a collective packs to send and receives packed; -1 where the memory is
    another's. The module says how many bytes a call leases, and the most alive at one time.

    Before:

    ```mlir
    func.func @forward(%x: !flow.tensor<[4], f32> {role = "input", name = "x"})
        -> !flow.tensor<[4], f32> {
      %0 = flow.cumulative(%x) {fn = "sum", dim = 0 : i64, exclusive = false, reverse = false,
          loc = "m.py:3", id = "n0"} : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      %1 = flow.cumulative(%0) {fn = "sum", dim = 0 : i64, exclusive = false, reverse = false,
          loc = "m.py:4", id = "n1"} : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      %2 = flow.cumulative(%1) {fn = "sum", dim = 0 : i64, exclusive = false, reverse = false,
          loc = "m.py:5", id = "n2"} : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
      func.return %2 : !flow.tensor<[4], f32>
    }
    ```

    After:

    ```mlir
    builtin.module attributes {irc.arena_bytes = 128 : i64, irc.arena_lower_bytes = 128 : i64} {
      func.func @forward(%x: !flow.tensor<[4], f32> {role = "input", name = "x"})
          -> !flow.tensor<[4], f32> {
        %0 = flow.cumulative(%x) {fn = "sum", dim = 0 : i64, exclusive = false, reverse = false,
            loc = "m.py:3", id = "n0", arena = array<i64: 0>}
            : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
        %1 = flow.cumulative(%0) {fn = "sum", dim = 0 : i64, exclusive = false, reverse = false,
            loc = "m.py:4", id = "n1", arena = array<i64: 64>}
            : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
        %2 = flow.cumulative(%1) {fn = "sum", dim = 0 : i64, exclusive = false, reverse = false,
            loc = "m.py:5", id = "n2", arena = array<i64: -1>}
            : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
        func.return %2 : !flow.tensor<[4], f32>
      }
    }
    ```
    """

    name = "plan-memory"
    level: ClassVar[str] = "task"
    also_on: ClassVar[tuple[str, ...]] = ("spmd",)
    after: ClassVar[str] = "reuse-memory"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        func, sizes = entry(op), dict(mesh_of(op).axes)
        memories = Memories(func)
        spans = _spans(memories, steps_of(func.body.block))
        places: list[tuple[Operation, list[int]]] = []
        intervals: list[Interval] = []
        for step in func.body.block.ops:
            own: list[int] = []
            for value in () if isinstance(step, ViewOp | WaitOp) else step.results:
                own.append(len(intervals) if memories.is_in_arena(value) else -1)
                if own[-1] >= 0:
                    intervals.append(Interval(num_bytes(value), *spans.values.get(value, (0, 0))))
            scratch = _scratch_bytes(step, sizes) if isinstance(step, CollectiveOp) else ()
            for size in scratch:
                own.append(-1 if size is None else len(intervals))
                if size is not None:
                    intervals.append(Interval(size, *spans.collectives[step]))
            if own:
                places.append((step, own))
        offsets, _ = assign_offsets(intervals)
        for step, own in places:
            decide(step, ARENA, [-1 if number < 0 else offsets[number] for number in own])
        ends = (each.size_bytes + at for each, at in zip(intervals, offsets, strict=True))
        _write_sizes(op, max(ends, default=0), lower_bound_bytes(intervals))


@dataclass(frozen=True)
class _Spans:
    """The first and the last step at which memories are alive, and what collectives pack."""

    values: dict[SSAValue, tuple[int, int]]
    collectives: dict[Operation, tuple[int, int]]


def _spans(memories: Memories, steps: Sequence[Operation]) -> _Spans:
    spans = _Spans({}, {})
    for time, step in enumerate(steps):
        for root in memories.touched(step):
            first, _ = spans.values.get(root, (time, time))
            spans.values[root] = (first, time)
        if isinstance(step, CollectiveOp):
            spans.collectives[step] = (time, time)
        elif isinstance(step, WaitOp):
            begun = collective_of(step)
            spans.collectives[begun] = (spans.collectives[begun][0], time)
    return spans


def _scratch_bytes(op: CollectiveOp, sizes: dict[str, int]) -> tuple[int | None, ...]:
    """Return the bytes of what a collective packs to send, and receives packed; None: nothing."""
    item = ITEM_BYTES[signature_of(op.outputs[0])[1]]
    packed = scratch_of(op, sizes[op.axis])
    return tuple(None if shape is None else prod(shape) * item for shape in packed)


def _write_sizes(module: ModuleOp, arena: int, lower: int) -> None:
    """Write how much a call leases; in whole cache lines."""
    total = -(-arena // 64) * 64
    if total < lower:
        raise InternalError(f"an arena of {total} bytes is below the bound of {lower}")
    module.attributes[ARENA_BYTES] = IntegerAttr(total, i64)
    module.attributes[ARENA_LOWER_BYTES] = IntegerAttr(lower, i64)
