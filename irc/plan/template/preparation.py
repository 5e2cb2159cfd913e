"""What a plan makes of weights alone, where some of it depends on the sizes of a call.

A packed weight is the same for every size, and made once. A causal mask or a table of rotations is
made of no input either, but for each length anew: a template computes such things at every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from irc.plan.arena import Interval
from irc.plan.schema import Buffer, Call, Kernel, Library, Step, Storage, touched
from irc.plan.steps import Unplaced
from irc.plan.template.unify import sizes_in


def sized_preparation(plan: Unplaced, sized_kernels: Sequence[bool]) -> frozenset[int]:
    """Return which prepared steps depend on sizes: themselves, or by what they read.

    Args:
        plan: with polynomials for its numbers.
        sized_kernels: for each kernel, whether it has any.
    """
    written: set[int] = set()
    positions: set[int] = set()
    for position, step in enumerate(plan.prepared):
        inputs, outputs = _operands(step, plan.kernels)
        own = isinstance(step, Call) and sized_kernels[step.kernel]
        own = own or any(any(sizes_in(plan.buffers[i])) for i in (*inputs, *outputs))
        if own or any(sizes_in(step)) or any(_root(plan.buffers, i) in written for i in inputs):
            positions.add(position)
            written.update(outputs)
    return frozenset(positions)


def at_every_call(plan: Unplaced, moved: frozenset[int]) -> Unplaced:
    """Return a plan with some of its prepared steps in front of the others instead."""
    if not moved:
        return plan
    steps = [plan.prepared[i] for i in sorted(moved)]
    written = {i for step in steps for i in _operands(step, plan.kernels)[1]}
    # What they read of steps that are run once has to be there at every call, too.
    read = {_root(plan.buffers, i) for step in steps for i in _operands(step, plan.kernels)[0]}
    once = {
        i
        for position, step in enumerate(plan.prepared)
        if position not in moved
        for i in _operands(step, plan.kernels)[1]
    }
    storage = {**dict.fromkeys(written, "arena"), **dict.fromkeys(read & once, "prepared")}
    buffers = tuple(
        replace(buffer, storage=cast("Storage", storage[i])) if i in storage else buffer
        for i, buffer in enumerate(plan.buffers)
    )
    kept = tuple(step for i, step in enumerate(plan.prepared) if i not in moved)
    return replace(plan, buffers=buffers, prepared=kept, steps=(*steps, *plan.steps))


def intervals_of(plan: Unplaced) -> list[tuple[int, Interval]]:
    """When each buffer of the arena is alive; the prepared steps come first."""
    spans: dict[int, tuple[int, int]] = {}
    for time, step in enumerate((*plan.prepared, *plan.steps)):
        for index in touched(step, plan.steps):
            owner = _root(plan.buffers, index)
            first, _ = spans.get(owner, (time, time))
            spans[owner] = (first, time)
    return [
        (i, Interval(b.size_bytes, *spans.get(i, (0, 0))))
        for i, b in enumerate(plan.buffers)
        if b.storage == "arena"
    ]


def _operands(step: Step, kernels: Sequence[Kernel]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    match step:
        case Call():
            count = kernels[step.kernel].num_inputs
            return step.args[:count], step.args[count:]
        case Library():
            return step.inputs, step.outputs
        case _:
            raise AssertionError(f"{step.kind} is never prepared")


def _root(buffers: Sequence[Buffer], index: int) -> int:
    root = buffers[index].root
    return index if root is None else root
