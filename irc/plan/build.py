"""plan-memory: from a program of level task to a plan.

Calls of blocks are inlined (their kernels stay shared), what depends on weights alone is put
apart (:mod:`irc.plan.prepare`), consecutive launches become one segment,
views become aliases, every other value gets a buffer. A buffer lives from the action that writes
it to the last that reads it; what a collective uses lives until its wait. Outputs are fresh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ModuleOp

from irc.errors import InternalError
from irc.plan.arena import Interval, assign_offsets, lower_bound_bytes
from irc.plan.flatten import Flattener, Seconds
from irc.plan.prepare import hoist
from irc.plan.reuse import reuse_dying
from irc.plan.schema import (
    Action,
    Buffer,
    Call,
    Kernel,
    Kernels,
    Plan,
    Step,
    Wait,
    touched,
)
from irc.plan.update import update_in_place


def build_plan(
    module: ModuleOp,
    *,
    backend: str = "cpu",
    seconds: Seconds | None = None,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    predicted_s: float | None = None,
    cluster: str = "",
) -> Plan:
    """Turn a module of level task into a plan.

    Args:
        module: its entry is ``@forward``; all sizes are numbers.
        backend: what the kernels are compiled by.
        seconds: predicts the time of an op; kept with its action for the simulator.
        ranges: for integer inputs by name, the first and last value that makes sense
            (:func:`irc.plan.ranges.input_ranges`).
        predicted_s: seconds of a whole call, by the cost model.
        cluster: the machines that times are predicted for; empty for this one.
    """
    found = unplaced(module, seconds)
    reused, steps = reuse_dying(found.buffers, found.steps, found.kernels)
    return place(
        replace(found, buffers=tuple(reused), steps=tuple(steps)),
        backend=backend,
        ranges=ranges,
        predicted_s=predicted_s,
        cluster=cluster,
    )


def place(
    found: Unplaced,
    *,
    backend: str = "cpu",
    ranges: Mapping[str, tuple[int, int]] | None = None,
    predicted_s: float | None = None,
    cluster: str = "",
) -> Plan:
    """Give every buffer a place, and join launches to segments; see :func:`build_plan`."""
    intervals = intervals_of(found)
    buffers = _place(found.buffers, intervals)
    arena = max((b.offset + b.size_bytes for b in buffers if b.storage == "arena"), default=0)
    lower = lower_bound_bytes([interval for _, interval in intervals])
    known = ranges or {}
    plan = Plan(
        mesh=found.mesh,
        backend=backend,
        buffers=tuple(buffers),
        kernels=found.kernels,
        prepared=tuple(grouped(found.prepared)),
        actions=tuple(grouped(found.steps)),
        inputs=found.inputs,
        weights=found.weights,
        outputs=found.outputs,
        arena_bytes=-(-arena // 64) * 64,
        arena_lower_bytes=lower,
        ranges=tuple(known.get(found.buffers[i].name) for i in found.inputs) if known else (),
        predicted_s=predicted_s,
        cluster=cluster,
    )
    if plan.arena_bytes < lower:
        raise InternalError(f"an arena of {plan.arena_bytes} bytes is below the bound of {lower}")
    return plan


@dataclass(frozen=True)
class Unplaced:
    """A plan whose buffers have no place in the arena yet, and whose launches are not grouped.

    Attributes:
        mesh: as in :class:`Plan`, with ``inputs``, ``weights``, ``outputs`` and ``kernels``.
        prepared: steps on weights alone.
        steps: those of every call.
    """

    mesh: str
    buffers: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    prepared: tuple[Step, ...]
    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    weights: tuple[int, ...]
    outputs: tuple[int, ...]


def unplaced(module: ModuleOp, seconds: Seconds | None = None) -> Unplaced:
    """Return what a module of level task does, as steps on buffers."""
    flat = Flattener(module, seconds or (lambda _: None))
    flat.run()
    updated, steps = update_in_place(flat.buffers, flat.steps, flat.kernels)
    hoisted = hoist(updated, steps, flat.kernels)
    return Unplaced(
        flat.mesh,
        tuple(hoisted.buffers),
        tuple(flat.kernels),
        tuple(hoisted.prepared),
        tuple(hoisted.steps),
        tuple(flat.inputs),
        tuple(flat.weights),
        tuple(flat.outputs),
    )


def intervals_of(plan: Unplaced) -> list[tuple[int, Interval]]:
    """When each buffer of the arena is alive; the prepared steps come first."""
    buffers = plan.buffers
    spans: dict[int, tuple[int, int]] = {}
    for time, step in enumerate((*plan.prepared, *plan.steps)):
        for index in touched(step, plan.steps):
            root = buffers[index].root
            owner = index if root is None else root
            first, _ = spans.get(owner, (time, time))
            spans[owner] = (first, time)
    return [
        (i, Interval(b.size_bytes, *spans.get(i, (0, 0))))
        for i, b in enumerate(buffers)
        if b.storage == "arena"
    ]


def _place(buffers: Sequence[Buffer], found: Sequence[tuple[int, Interval]]) -> list[Buffer]:
    offsets, _ = assign_offsets([interval for _, interval in found])
    placed = list(buffers)
    for (index, _), offset in zip(found, offsets, strict=True):
        placed[index] = replace(placed[index], offset=offset)
    return placed


def grouped(steps: Sequence[Step]) -> list[Action]:
    """Join consecutive launches; renumber what waits refer to."""
    actions: list[Action] = []
    calls: list[Call] = []
    position: dict[int, int] = {}

    def flush() -> None:
        if calls:
            actions.append(Kernels("kernels", tuple(calls)))
            calls.clear()

    for time, step in enumerate(steps):
        if isinstance(step, Call):
            calls.append(step)
            continue
        flush()
        if isinstance(step, Wait):
            step = replace(step, start=position[step.start])
        position[time] = len(actions)
        actions.append(step)
    flush()
    return actions
