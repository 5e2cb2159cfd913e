"""From a program of level task whose memory is decided to a plan.

The passes from ``inline-blocks`` to ``plan-memory`` have said what lies where
(:mod:`irc.plan.memories`). Here it is written down: ops as steps, values as buffers, and launches
that follow each other as one segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from xdsl.dialects.builtin import IntegerAttr, ModuleOp

from irc.errors import InternalError
from irc.plan.memories import ARENA_BYTES, ARENA_LOWER_BYTES
from irc.plan.schema import Action, Call, Kernels, Plan, Step, Wait
from irc.plan.steps import Seconds, steps_on_buffers


def build_plan(
    module: ModuleOp,
    *,
    backend: str = "cpu",
    seconds: Seconds | None = None,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    predicted_s: float | None = None,
    cluster: str = "",
) -> Plan:
    """Write down a module of level task as a plan.

    Args:
        module: its entry is ``@forward``; ``plan-memory`` has run.
        backend: what the kernels are compiled by.
        seconds: predicts the time of an op; kept with its action for the simulator.
        ranges: for integer inputs by name, the first and last value that makes sense
            (:func:`irc.plan.ranges.input_ranges`).
        predicted_s: seconds of a whole call, by the cost model.
        cluster: the machines that times are predicted for; empty for this one.
    """
    steps, known = steps_on_buffers(module, seconds), ranges or {}
    return Plan(
        mesh=steps.mesh,
        backend=backend,
        buffers=steps.buffers,
        kernels=steps.kernels,
        prepared=tuple(grouped(steps.prepared)),
        actions=tuple(grouped(steps.steps)),
        inputs=steps.inputs,
        weights=steps.weights,
        outputs=steps.outputs,
        arena_bytes=_bytes(module, ARENA_BYTES),
        arena_lower_bytes=_bytes(module, ARENA_LOWER_BYTES),
        ranges=tuple(known.get(steps.buffers[i].name) for i in steps.inputs) if known else (),
        predicted_s=predicted_s,
        cluster=cluster,
    )


def _bytes(module: ModuleOp, name: str) -> int:
    attr = module.attributes.get(name)
    if not isinstance(attr, IntegerAttr):
        raise InternalError("plan-memory has not run on a program that is to be a plan")
    return attr.value.data


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
